"""`hpcgnn watch`: shows the progress of the training in a run folder, until it ends."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcgnn.cli import GivenPath
from hpcgnn.errors import ConfigError, TrainingError

if TYPE_CHECKING:
    from rich.live import Live

CONFIG, METRICS, SUMMARY, LOCK, CHECKPOINT = "config.toml", "metrics.jsonl", "summary.json", "run.lock", "checkpoint.h5"
SECONDS = 1.0        # between two looks
RUNNING, COMPLETE, GONE = "running", "complete", "gone"


@click.command()
@click.argument("run_folder", type=GivenPath())
def command(run_folder: Path) -> None:
    """Show the progress of the training in RUN_FOLDER, until it ends.

    If standard output is not a terminal, a line is printed at each change. The status is 0 if the run is complete, and
    1 if its process ended before.
    """
    watched = WatchedRun(run_folder)
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    screen = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with screen or contextlib.nullcontext():
        while watched.look() == RUNNING:
            show(watched, screen)
            time.sleep(SECONDS)
        show(watched, screen)
    if watched.state == GONE:
        raise TrainingError(watched.sentence)
    click.echo(watched.sentence)


def show(watched: WatchedRun, screen: Live | None) -> None:
    """Draw the run's progress on a terminal; elsewhere print a line after each change."""
    from rich.text import Text

    from hpcgnn.report.live import line_of, lines_of

    standing = watched.standing()
    if screen is not None:
        lines = ["waits for the first epoch"] if standing is None else lines_of(standing, watched.folder / CHECKPOINT)
        screen.update(Text("\n".join([watched.heading, *lines]), no_wrap=True, overflow="ellipsis"), refresh=True)
    elif standing is not None and watched.has_changed():
        click.echo(line_of(standing))


class WatchedRun:
    """A run folder that is read again and again.

    Attributes
    ----------
    state : {"running", "complete", "gone"}

    Raises
    ------
    ConfigError      there is no run in the folder
    """

    def __init__(self, folder: Path):
        from hpcgnn.report.live import MetricsTail
        from hpcgnn.training.run_lock import Holder

        if not any((folder / name).exists() for name in (CONFIG, METRICS, LOCK)):
            raise ConfigError(f"{folder} holds no run; name a folder that hpcgnn train --out has made")
        self.folder, self.state, self._tail = folder, RUNNING, MetricsTail(folder / METRICS)
        self._mine, self._seen_at = Holder.of_this_process(), time.monotonic()
        self._holder: Holder | None = None
        self._touched: int | None = None
        self._config: dict[str, Any] = {}
        self._num_shown = -1

    def look(self) -> str:
        # The lock is released after the summary is written, so it is read first.
        is_held = self._is_held()
        self._config = self._config or self._read_config()
        self._tail.read_on()
        self.state = COMPLETE if (self.folder / SUMMARY).exists() else RUNNING if is_held else GONE
        return self.state

    def standing(self):
        from hpcgnn.report.live import Standing

        return Standing(self._config, self._tail.records) if self._tail.records else None

    def has_changed(self) -> bool:
        before, self._num_shown = self._num_shown, len(self._tail.records)
        return self._num_shown != before

    @property
    def heading(self) -> str:
        provenance = self._config.get("provenance", {})
        words = [str(self._config[name]) for name in ("model", "method") if name in self._config]
        if "dataset" in provenance:
            words.append(f"on {provenance['dataset']}, {provenance.get('ranks', '?')} ranks")
        if self._holder is not None and self.state != COMPLETE:
            words = [*words[:-1], f"{words[-1]};", str(self._holder)] if words else [str(self._holder)]
        return f"{self.folder}: {' '.join(words)}"

    @property
    def sentence(self) -> str:
        last = self._tail.records[-1] if self._tail.records else None
        place = "before its first epoch" if last is None else f"after epoch {last['epoch']} of seed {last['seed']}"
        if self.state == COMPLETE:
            return f"{self.folder} is complete; hpcgnn report draws it"
        if self._holder is None:
            return f"{self.folder} was stopped {place}, and no process holds it; the same command with --resume goes on"
        return (f"{self.folder} was stopped {place}: its {self._holder} is gone; the same command with --resume "
                "goes on")

    def _is_held(self) -> bool:
        """Whether a live process holds the folder, or one on another machine still touches its lock."""
        from hpcgnn.training.run_lock import PATIENCE_SECONDS, Holder

        try:
            content, touched = (self.folder / LOCK).read_bytes(), (self.folder / LOCK).stat().st_mtime_ns
        except FileNotFoundError:
            self._holder = None
            return False
        except OSError as error:
            raise ConfigError(f"{self.folder / LOCK} can't be read: {error.strerror}") from error
        self._holder = Holder.from_text(content)
        is_alive = self._holder.is_alive(self._mine)
        if touched != self._touched:
            self._touched, self._seen_at = touched, time.monotonic()
        return time.monotonic() - self._seen_at < PATIENCE_SECONDS if is_alive is None else is_alive

    def _read_config(self) -> dict[str, Any]:
        from hpcgnn.registry import read_toml

        return read_toml(self.folder / CONFIG) if (self.folder / CONFIG).exists() else {}
