"""What the subcommands of `hpcgnn bench` share: options, where they run, and how they say what they have found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcgnn.bench import environment
from hpcgnn.cli.steps import Steps
from hpcgnn.errors import HpcgnnError
from hpcgnn.units import time_text

if TYPE_CHECKING:
    from hpcgnn.bench.result import BenchmarkResult

DEVICE_REPEAT, DEVICE_SECONDS = 20, 0.2     # of a contestant on a GPU, where a repetition takes milliseconds


@dataclass(frozen=True)
class Shared:
    """Holds the options of the group, which are the same for every benchmark, None where one was not given, and the
    device, "cpu" or "cuda"; and the steps that somebody may watch.
    """

    repeat: int | None = None
    threads: int | None = None
    out: Path | None = None
    device: str = "cpu"
    steps: Steps = field(default_factory=Steps.watched, compare=False)

    def refuse_threads(self, reason: str) -> None:
        """Raise UsageError where --threads was given to a benchmark that can't take it."""
        if self.threads is not None:
            raise click.UsageError(f"--threads is not for this benchmark: {reason}")


class SharedOptionsGroup(click.Group):
    """Takes its own options behind the name of a subcommand too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move the group's options to the front, with their values, and parse as `click.Group` does."""
        names = {name for option in self.params for name in option.opts}
        words, front, rest = iter(args), [], []
        for word in words:
            if word.partition("=")[0] not in names:
                rest.append(word)
            elif "=" in word:
                front.append(word)
            elif (value := next(words, None)) is not None:
                front += [word, value]
            else:
                raise click.UsageError(f"{word} needs a value")
        return super().parse_args(ctx, front + rest)


def check_graphs(graphs: tuple[str, ...]) -> None:
    """Refuse a graph that can't be drawn before anything is measured."""
    from hpcgnn.bench.graphs import drawn_arcs

    for source in graphs:
        drawn_arcs(source)


def prepare_output(out: Path | None) -> None:
    """Refuse a folder that can't take the results before minutes are spent on them."""
    if out is not None:
        from hpcgnn.bench.result import open_folder

        open_folder(out)


def open_place(kind: str, shared: Shared, threads: int, repeat: int = 7) -> tuple[dict[str, Any], Any]:
    """Start anew with so many threads, check the device and the folder, say where the benchmark runs, and return the
    machine and the Place.
    """
    environment.run_in(environment.with_kept_memory(environment.thread_environment(threads)))
    if shared.device == "cuda":
        from hpcgnn.bench import chip

        chip.check_device()
    prepare_output(shared.out)
    machine = announce(kind, threads)
    place = place_of(shared, repeat)
    return {**machine, **place.describe()}, place


def place_of(shared: Shared, repeat: int) -> Any:
    """Return the Place that the benchmark runs in; on the host each contestant is timed `repeat` times."""
    from hpcgnn.bench.timing import Effort

    if shared.device == "cpu":
        from hpcgnn.bench.host import HostPlace

        return HostPlace(Effort(shared.repeat or repeat), begin=shared.steps.begin)
    from hpcgnn.bench.device import DevicePlace

    return DevicePlace(Effort(shared.repeat or DEVICE_REPEAT, DEVICE_SECONDS), begin=shared.steps.begin)


def announce(kind: str, threads: int) -> dict[str, Any]:
    """Describe the machine, and say what is measured where, before seconds pass with imports, graphs and work."""
    from hpcgnn.bench.machine import describe_machine

    machine = describe_machine(threads)
    click.echo(f"hpcgnn: bench {kind} on {machine['processor']}, {threads} threads, {machine['simd']}, load "
               f"{machine['load_average'][0]:.2f}", err=True)
    return machine


def finish(kind: str, machine: dict[str, Any], benchmark, shared: Shared, failures: list[str] | None = None,
           result_type: type[BenchmarkResult] | None = None) -> None:
    """Measure, writing the files after every row, so that a run that is ended leaves what it has; then print the table.

    A `result_type` shows the rows in its own way.

    Raises
    ------
    HpcgnnError      a part could not be measured; the others are published before
    """
    from hpcgnn.bench.result import BenchmarkResult

    result = (result_type or BenchmarkResult)(kind, machine, [], [] if failures is None else failures)
    out = shared.out
    with shared.steps as steps:
        steps.begin("prepares what is measured first")
        for row in benchmark.measure():
            result.measurements.append(row)
            steps.end(f"{row.group}: {row.case}", time_text(row.median()))
            steps.begin("prepares what is measured next")
            if out is not None:
                result.write(out)
    click.echo(result.as_text(), nl=False)
    if out is not None:
        result.write(out)
        say_results(out, result.draw(out))
    if failures:
        raise HpcgnnError(f"bench {kind} could not measure {'; '.join(failures)}")


def say_results(out: Path, missing: str | None) -> None:
    """Print where the results are, and why there is no picture among them."""
    click.echo(f"results: {out}" + (f"; {missing}" if missing else ""))
