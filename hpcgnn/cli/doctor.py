"""`hpcgnn doctor` says what this machine can do, and what slows a training on it."""

from __future__ import annotations

import click

from hpcgnn.bench import environment

NUM_ROWS, WIDTH = 16_384, 256
SECONDS_A_PRODUCT = 1.0


@click.command("doctor")
@click.option("--threads", type=click.IntRange(min=1), help="[default: as many as there are cores]")
def command(threads: int | None) -> None:
    """Say what this machine is, at which rate it multiplies rows in each precision, and what slows a training on it."""
    threads = threads or environment.available_cores()
    environment.run_in(environment.thread_environment(threads))
    # These import torch, which reads the number of threads once.
    from hpcgnn.bench.doctor import complaints, machine_lines
    from hpcgnn.bench.host import HostPlace
    from hpcgnn.bench.kernels import measure_dense
    from hpcgnn.bench.result import table_text
    from hpcgnn.bench.timing import Effort

    for line in machine_lines(threads):
        click.echo(line)
    place = HostPlace(Effort(5, SECONDS_A_PRODUCT))
    measured = list(measure_dense(place, NUM_ROWS, WIDTH, ("fp32", "bf16", "fp16")))
    click.echo(table_text(measured, complaints(measured)), nl=False)
