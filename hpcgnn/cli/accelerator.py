"""`hpcgnn bench accelerator`: what it reads, prints and writes."""

from __future__ import annotations

import click

from hpcgnn.accelerators.design import read_design
from hpcgnn.bench import environment
from hpcgnn.bench.accelerator_workload import Sweep
from hpcgnn.cli.measurement import Shared, announce, prepare_output, say_results
from hpcgnn.run.output import time_text


def model_accelerators(shared: Shared, sources: tuple[str, ...], names: tuple[str, ...], sweep: str | None) -> None:
    """Run every workload of the sources on every design, print the tables, and write what --out asks for.

    Raises
    ------
    ConfigError      a design, a sweep or a source can't be read
    UsageError       an option that only timed benchmarks have
    """
    if shared.repeat is not None:
        raise click.UsageError("--repeat is not for this benchmark: a model has the same cycles every time")
    shared.refuse_threads("the model runs on one")
    designs = tuple(read_design(name) for name in names)
    points = None if sweep is None else Sweep.parse(sweep)
    environment.run_in(environment.with_kept_memory(environment.thread_environment(environment.available_cores())))
    from hpcgnn.bench import accelerator as modeled
    from hpcgnn.bench.accelerator import draw_outcomes, name_of, print_designs, print_gains, print_outcomes
    from hpcgnn.bench.accelerator_workload import draw_degrees
    from hpcgnn.bench.result import why_no_picture

    prepare_output(shared.out)
    machine = announce("accelerator", 1)
    benchmark = modeled.AcceleratorBenchmark(sources, designs, points)
    outcomes, records = [], []
    with shared.steps as steps:
        steps.begin("reads graphs and models")
        for outcome, seconds in benchmark.outcomes(steps.begin):
            outcomes.append(outcome)
            records.append(modeled.record(outcome, seconds))
            steps.end(f"{outcome.workload}: {name_of(outcome)}", time_text(seconds))
            steps.begin("goes on")
            if shared.out is not None:
                modeled.write_outcomes(shared.out, machine, records, benchmark.degrees)
    print_designs(designs)
    print_outcomes(outcomes)
    print_gains(outcomes)
    if shared.out is not None:
        missing = why_no_picture(modeled.PICTURE)
        if missing is None:
            draw_outcomes(shared.out / modeled.PICTURE, outcomes)
            draw_degrees(shared.out / modeled.DEGREES, benchmark.degrees)
        say_results(shared.out, missing)
