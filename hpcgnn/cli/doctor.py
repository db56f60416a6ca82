"""`hpcgnn doctor` says what this machine can do, what slows a training on it, and what to change."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcgnn.bench import environment
from hpcgnn.run.process import launched_rank, launched_size

if TYPE_CHECKING:
    from hpcgnn.bench.checkup import Finding

NUM_ROWS, WIDTH = 16_384, 256
SECONDS_A_PRODUCT = 1.0
RUNS = Path("runs")         # where train puts a run without --out


@click.command("doctor")
@click.option("--threads", type=click.IntRange(min=1),
              help="Threads that multiply rows. [default: as many as there are cores]")
def command(threads: int | None) -> None:
    """Show this machine's MPI, cores, GPU, Slurm, packages and speed of multiplying rows, and say what to change.

    Under mpirun or srun it shows where each rank is bound instead of the rates. Ends with status 1 if a training can't
    start before something is changed.
    """
    from hpcgnn.bench.checkup import lines_of

    variables, threads = dict(os.environ), threads or environment.available_cores()
    # torch, which is imported below, reads the number of threads once.
    environment.set_environment(environment.thread_environment(threads))
    findings = look_around(variables)
    if launched_rank() != 0:
        return
    for line in lines_of(findings):
        click.echo(line)
    if launched_size()[1] == "1":
        show_rates(threads)
    if any(one.is_broken for one in findings):
        raise click.exceptions.Exit(1)


def look_around(variables: dict[str, str]) -> list[Finding]:
    """Collective: the findings of all ranks, on every rank. `variables` is the environment as the user has set it."""
    from hpcgnn.bench.checkup import (
        binding_findings,
        core_findings,
        disk_findings,
        extra_findings,
        gpu_findings,
        mpi_findings,
        place_here,
    )

    found = [*mpi_findings(), *core_findings(variables)]
    launch = sys.modules.get("hpcgnn.run.launch")
    if launch is not None and launch.has_company():
        found += binding_findings(launch.join().allgather(place_here(variables)))
    return [*found, *gpu_findings(), *disk_findings(RUNS), *extra_findings()]


def show_rates(threads: int) -> None:
    # These import torch.
    from hpcgnn.bench.checkup import complaints, machine_lines
    from hpcgnn.bench.kernels import measure_dense
    from hpcgnn.bench.place import Place
    from hpcgnn.bench.result import table_text
    from hpcgnn.bench.timing import Effort
    from hpcgnn.run.output import wrapped

    for line in machine_lines(threads):
        click.echo(wrapped(line))
    place = Place(Effort(5, SECONDS_A_PRODUCT))
    measured = list(measure_dense(place, NUM_ROWS, WIDTH, ("fp32", "bf16", "fp16")))
    click.echo(table_text(measured, complaints(measured)), nl=False)
