"""Shared by the subcommands of `hpcgnn bench`: options, the place where they run, and their output."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import click

from hpcgnn.bench import environment
from hpcgnn.errors import HpcgnnError
from hpcgnn.run.output import time_text, watched_stream

if TYPE_CHECKING:
    from hpcgnn.bench.result import BenchmarkResult


def parse_list(option: str, text: str, kind: type) -> tuple:
    try:
        numbers = tuple(kind(item) for item in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) <= 0:
        raise click.UsageError(f"{option} is {text!r}; expected positive numbers with commas between them")
    return numbers


def parse_choices(option: str, text: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for word in words:
        if word not in choices:
            raise click.UsageError(f"{option} has {word!r}; expected a list of {', '.join(choices)}")
    return words


CLEAR_LINE = "\r\x1b[2K"


class Steps:
    """Shows the running step and each step's result on standard error.

    On a terminal the running step is the last line, after the time since the start, and its result replaces it. If
    HPCGNN_PROGRESS=1 asks for progress in a file, step and result are separate lines. Otherwise only results are
    printed, one line each. `stream` None shows no progress.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream, self._started = stream, time.monotonic()
        self._is_live = stream is not None and stream.isatty()

    @classmethod
    def watched(cls) -> Steps:
        return cls(watched_stream())

    def begin(self, step: str) -> None:
        if self._stream is None:
            return
        end = "" if self._is_live else "\n"
        line = self._fitting(self._timed(f"{step} .."))
        print(f"{self._clear}{line}", end=end, file=self._stream, flush=True)

    def end(self, step: str, found: str) -> None:
        if self._stream is None:
            print(f"{step}: {found}", file=sys.stderr, flush=True)
        else:
            print(f"{self._clear}{self._timed(f'{step}: {found}')}", file=self._stream, flush=True)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if self._is_live:
            print(self._clear, end="", file=self._stream, flush=True)

    @property
    def _clear(self) -> str:
        return CLEAR_LINE if self._is_live else ""

    def _timed(self, text: str) -> str:
        seconds = time.monotonic() - self._started
        elapsed = f"{seconds:.0f} s" if seconds < 99.5 else time_text(seconds)
        return f"{elapsed:>11}  {text}"

    def _fitting(self, line: str) -> str:
        # A line that wraps could not be cleared again.
        if not self._is_live:
            return line
        columns = os.get_terminal_size(self._stream.fileno()).columns
        return line[:columns - 1] if columns else line      # some terminals don't tell


DEVICE_REPEAT, DEVICE_SECONDS = 20, 0.2     # per contestant on a GPU, where a repetition takes milliseconds


@dataclass(frozen=True)
class Shared:
    """Options of the group, None if not given; the device, "cpu" or "cuda"; and the `Steps` that show progress."""

    repeat: int | None = None
    threads: int | None = None
    out: Path | None = None
    device: str = "cpu"
    steps: Steps = field(default_factory=Steps.watched, compare=False)

    def refuse_threads(self, reason: str) -> None:
        """Raise UsageError if --threads was given to a benchmark that can't take it."""
        if self.threads is not None:
            raise click.UsageError(f"--threads is not for this benchmark: {reason}")


class SharedOptionsGroup(click.Group):
    """Also accepts its own options after the name of a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # The group's options and their values move to the front.
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
    if out is not None:
        from hpcgnn.bench.result import open_folder

        open_folder(out)


def open_place(kind: str, shared: Shared, threads: int, repeat: int = 7) -> tuple[dict[str, Any], Any]:
    """Restart with `threads` threads, check the device and the folder, and return the machine and the Place.

    On the host each contestant is timed `repeat` times.
    """
    environment.run_in(environment.with_kept_memory(environment.thread_environment(threads)))
    if shared.device == "cuda":
        from hpcgnn.bench.device import check_device

        check_device()
    prepare_output(shared.out)
    machine = announce(kind, threads)
    # These import torch, which takes seconds.
    from hpcgnn.bench.device import DevicePlace
    from hpcgnn.bench.place import Place
    from hpcgnn.bench.timing import Effort

    if shared.device == "cpu":
        return machine, Place(Effort(shared.repeat or repeat), begin=shared.steps.begin)
    place = DevicePlace(Effort(shared.repeat or DEVICE_REPEAT, DEVICE_SECONDS), begin=shared.steps.begin)
    return {**machine, **place.describe()}, place


def announce(kind: str, threads: int) -> dict[str, Any]:
    """Describe the machine, and print what is measured where, before imports and graphs take seconds."""
    from hpcgnn.bench.machine import describe_machine

    machine = describe_machine(threads)
    click.echo(f"hpcgnn: bench {kind} on {machine['processor']}, {threads} threads, {machine['simd']}, load "
               f"{machine['load_average'][0]:.2f}", err=True)
    return machine


def finish(kind: str, machine: dict[str, Any], benchmark, shared: Shared, failures: list[str] | None = None,
           result_type: type[BenchmarkResult] | None = None) -> None:
    """Measure, write the files after every row, so that an interrupted run leaves its results, and print the table.

    `result_type` decides how rows are shown.

    Raises
    ------
    HpcgnnError      a part could not be measured; the other parts were published
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
    click.echo(f"results: {out}" + (f"; {missing}" if missing else ""))
