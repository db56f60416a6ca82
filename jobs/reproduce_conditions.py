"""Which runs of the tables of jobs/reproduce.sh are asked for, and how: the variables of the environment.

No file is read or written here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from reproduce_runs import Run
from reproduce_tables import Table

from hpcgnn.errors import ConfigError

VARIABLE = "HPCGNN_REPRODUCE_"


@dataclass(frozen=True)
class Conditions:
    """What the variables of the environment ask for; None and empty leave the tables as they are."""

    out: Path
    datasets: Path | None
    seeds: int | None
    epochs: int | None
    hidden: int | None
    link_mbps: float | None
    only: Mapping[str, tuple[str, ...]]

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Conditions:
        """Return the conditions of HPCGNN_DATASETS and HPCGNN_REPRODUCE_*.

        Raises
        ------
        ConfigError      a number is none, or below 1
        """
        given = {name: environment.get(VARIABLE + name, "")
                 for name in ("OUT", "SEEDS", "EPOCHS", "HIDDEN", "LINK_MBPS")}
        datasets = environment.get("HPCGNN_DATASETS", "")
        return cls(Path(given["OUT"] or "runs/reproduce"), Path(datasets) if datasets else None,
                   _count("SEEDS", given["SEEDS"]), _count("EPOCHS", given["EPOCHS"]),
                   _count("HIDDEN", given["HIDDEN"]), _pace(given["LINK_MBPS"]),
                   {name: tuple(environment.get(VARIABLE + name, "").split())
                    for name in ("DATASETS", "MODELS", "METHODS", "RANKS")})

    @property
    def runs(self) -> Path:
        """Return the folder of the runs; those that are shorter or narrower, or have slower links, lie apart."""
        parts = ["full" if self.epochs is None else f"{self.epochs}-epochs",
                 *([] if self.hidden is None else [f"{self.hidden}-hidden"]),
                 *([] if self.link_mbps is None else [f"{self.link_mbps:g}-MBps"])]
        return self.out / "-".join(parts)

    @property
    def shards(self) -> Path:
        """Return the folder of the shards."""
        return self.out / "shards"

    def of(self, table: Table) -> list[Run]:
        """Return the runs of a table that are asked for, each once, as they are asked for."""
        chosen = (run for run in table.runs
                  if all(not words or {*words} & _words_of(run)[name] for name, words in self.only.items()))
        return list(dict.fromkeys(map(self._changed, chosen)))

    def check(self, tables: Iterable[Table]) -> None:
        """Check that some table has what the variables name.

        Raises
        ------
        ConfigError      none has
        """
        runs = [run for table in tables for run in table.runs]
        for name, words in self.only.items():
            known = sorted({word for run in runs for word in _words_of(run)[name]})
            for word in words:
                if word not in known:
                    raise ConfigError(f"{VARIABLE}{name} names {word!r}, which is not in what is asked for; there "
                                      f"{'is' if len(known) == 1 else 'are'} {', '.join(known)}")

    def _changed(self, run: Run) -> Run:
        settings = dict(run.settings)
        if self.epochs is not None:
            settings |= {"epochs": self.epochs, "eval_every": min(settings["eval_every"], self.epochs)}
        if self.hidden is not None:
            settings["hidden"] = self.hidden
        if self.link_mbps is not None:
            settings["link_mbps"] = self.link_mbps
        return replace(run, settings=tuple(settings.items()), seeds=self.seeds or run.seeds)


def _count(name: str, text: str) -> int | None:
    if text and (not text.isdecimal() or int(text) < 1):
        raise ConfigError(f"{VARIABLE}{name} must be a whole number of at least 1, found {text!r}")
    return int(text) if text else None


def _pace(text: str) -> float | None:
    with suppress(ValueError):
        if not text or float(text) > 0:
            return float(text) if text else None
    raise ConfigError(f"{VARIABLE}LINK_MBPS must be a number of MB/s above 0, found {text!r}")


def _words_of(run: Run) -> dict[str, set[str]]:
    """Return by which words each variable chooses a run."""
    return {"DATASETS": {run.source, run.graph.name}, "MODELS": {run.model}, "METHODS": {run.method},
            "RANKS": {str(run.ranks)}}
