"""Train what a table of the papers needs and is not there, and print the table; jobs/reproduce.sh says how it is asked.

reproduce_tables.py lists the runs. Here they are chosen, started one after another, and told as a table.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

from reproduce_columns import COLUMNS, WARM_UP, Finished, seconds_file, setting_text
from reproduce_conditions import Conditions
from reproduce_figures import draw
from reproduce_runs import STAND_INS, Run
from reproduce_tables import TABLES, Table
from score_table import print_table

from hpcgnn.errors import ConfigError, HpcgnnError
from hpcgnn.registry import read_toml

STOPPED = 75      # status of hpcgnn after a signal
EVERYTHING = "all"


# Commands

def preprocess_command(run: Run, conditions: Conditions) -> list[str]:
    """Return what makes the shards of a run."""
    return ["hpcgnn", "preprocess", f"npz:{conditions.datasets / run.graph.name}.npz",
            "--out", str(conditions.shards / run.shards), "--parts", str(run.ranks),
            "--normalize-features", run.graph.normalization]


def train_command(run: Run, conditions: Conditions) -> list[str]:
    """Return what trains a run, or goes on with it."""
    settings = run.of_method()
    named = [f"--{name}={settings.pop(name)}" for name in ("model", "method")]
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={_text(value)}")]
    return ["hpcgnn", "train", str(conditions.shards / run.shards), *named, *words, "--seed", "0",
            "--repeat", str(run.seeds), "--checkpoint-every", "0", "--out", str(conditions.runs / run.folder),
            "--resume"]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def missing(runs: Iterable[Run], conditions: Conditions) -> list[Run]:
    """Return the runs that are not complete with as many seeds as are asked for."""
    found = ((run, Finished.read(conditions.runs, conditions.shards, run)) for run in runs)
    return [run for run, finished in found if finished is None or finished.num_seeds < run.seeds]


def call(command: list[str], made: Path, ranks: int = 1) -> str:
    """Run a command, note beside what it makes its seconds and what it says, and return why it failed, or ""."""
    made.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    launch = ["bash", "-c", 'hpcgnn_mpirun "$@"', "hpcgnn_mpirun", str(ranks)] if command[1] == "train" else []
    with open(_beside(made, "log"), "w") as log:
        done = subprocess.run([*launch, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    with open(seconds_file(made), "a") as file:
        file.write(f"{time.perf_counter() - started:.3f}\n")
    said = _beside(made, "log").read_text(errors="replace").splitlines()
    if done.returncode == STOPPED:
        raise HpcgnnError(f"stopped by a signal; the same command goes on: {made}")
    if done.returncode == 0:
        return ""
    return next((line for line in reversed(said) if line.startswith("hpcgnn: ")), f"status {done.returncode}, see "
                f"{_beside(made, 'log')}").removeprefix("hpcgnn: ")


def _beside(made: Path, ending: str) -> Path:
    return made.with_name(f"{made.name}.{ending}")


def train(runs: list[Run], conditions: Conditions) -> None:
    """Train the runs one after another; one that fails, as where a method does not converge, is told and left out.

    Raises
    ------
    ConfigError      there are no graphs
    """
    if runs and (conditions.datasets is None or not conditions.datasets.is_dir()):
        raise ConfigError(f"HPCGNN_DATASETS is '{conditions.datasets or ''}'; set it to the folder that holds the "
                          "graphs' .npz files")
    for number, run in enumerate(runs, 1):
        print(f"{number} of {len(runs)}: {run.folder}, {run.seeds} seeds of {run.epochs} epochs", file=sys.stderr,
              flush=True)
        shards, folder = conditions.shards / run.shards, conditions.runs / run.folder
        failure = ""
        if not (shards / "graph.h5").exists():
            failure = call(preprocess_command(run, conditions), shards)
        failure = failure or call(train_command(run, conditions), folder, run.ranks)
        if failure:
            _beside(folder, "failed").write_text(failure)
            print(f"failed: {failure}", file=sys.stderr, flush=True)
        else:
            _beside(folder, "failed").unlink(missing_ok=True)


# The table

def print_report(paper: str, name: str, table: Table, runs: list[Run], conditions: Conditions) -> None:
    """Print a table of what there is under what it needs to be read."""
    found = {run.folder: finished for run in runs
             if (finished := Finished.read(conditions.runs, conditions.shards, run)) is not None}
    print(f"## {paper} {name}: {table.title}\n")
    print("\n".join(head(table, runs, found, conditions)) + "\n")
    if all(column in SETTINGS for column in table.columns):
        print_table(table.columns, [[_setting_of(run, column) for column in table.columns] for run in runs])
        return
    print_table(table.columns, [_line(finished, _reference(finished, found, conditions), table)
                                for finished in found.values()])
    print()
    for run in runs:
        failed = _beside(conditions.runs / run.folder, "failed")
        if failed.exists():
            print(f"- {run.folder} failed: {failed.read_text()}")
    if absent := len(missing(runs, conditions)):
        print(f"- {absent} of {len(runs)} runs are missing or have fewer seeds than asked for")
    if table.figure and found:
        print(f"- picture: {draw(table.figure, table.title, found, conditions.runs / f'{paper}-{name}.png')}")


def _reference(finished: Finished, found: Mapping[str, Finished], conditions: Conditions) -> Finished | None:
    """Return vanilla's run, also where the table leaves it out."""
    run = finished.run.reference
    return found.get(run.folder) or Finished.read(conditions.runs, conditions.shards, run)


def _line(finished: Finished, vanilla: Finished | None, table: Table) -> list[str]:
    return [COLUMNS[column](finished, vanilla) for column in table.columns]


SETTINGS = ("graph", "model", "layers", "hidden", "norm", "lr", "dropout", "epochs", "group_size", "lam")


def _setting_of(run: Run, column: str) -> str:
    return {"graph": f"{run.source} ({run.graph.name})", "model": run.model}.get(column) or setting_text(run, column)


def head(table: Table, runs: list[Run], found: Mapping[str, Finished], conditions: Conditions) -> list[str]:
    """Return what stands above a table: which graphs, conditioned how, under which conditions, on which machine."""
    lines = [f"- {run.source} is {run.graph.name}: {STAND_INS[run.source][1]}"
             for run in {run.source: run for run in runs if run.source in STAND_INS}.values()]
    lines += [f"- {graph.name}: {graph.epochs} epochs, features {graph.normalization}; {graph.evidence}"
              for graph in {run.graph.name: run.graph for run in runs}.values()]
    if table.remark:
        lines.append(f"- {table.remark}")
    if conditions.epochs is not None:
        lines.append(f"- A TRIAL of {conditions.epochs} epochs each: scores mean nothing")
    if conditions.hidden is not None:
        lines.append(f"- all models are {conditions.hidden} wide, whatever the papers have")
    lines.append("- messages travel as fast as memory carries them" if conditions.link_mbps is None else
                 f"- messages are paced as by links of {conditions.link_mbps:g} MB/s a rank")
    places = [read_toml(finished.folder / "config.toml").get("provenance", {}) for finished in found.values()]
    for what in ("processor", "cores", "commit"):
        if values := sorted({str(place[what]) for place in places if what in place}):
            lines.append(f"- {what}: {', '.join(values)}")
    return [*lines, "- scores in percent, at the best validation score; seconds of an epoch are medians, after "
            f"{WARM_UP} epochs; offline (preprocess), rest (start, evaluation), assigning and training are seconds of "
            "one training"]


# The program

def chosen_tables(paper: str, names: list[str]) -> dict[str, Table]:
    """Return the tables that the arguments name.

    Raises
    ------
    ConfigError      there is no such paper or table
    """
    if paper not in TABLES:
        raise ConfigError(f"there is no paper {paper!r}; there are {', '.join(TABLES)}")
    tables = TABLES[paper]
    by_lower = {name.lower(): name for name in tables}
    for name in names:
        if name.lower() not in (*by_lower, EVERYTHING):
            raise ConfigError(f"{paper} has no table {name!r}; it has {', '.join(tables)}")
    wanted = {name.lower() for name in names} or {EVERYTHING}
    return {name: table for name, table in tables.items() if EVERYTHING in wanted or name.lower() in wanted}


def reproduce(arguments: argparse.Namespace, conditions: Conditions) -> int:
    """Do what was asked for, and return the status: 1 where runs are missing at the end."""
    left, tables = 0, chosen_tables(arguments.paper, arguments.table)
    conditions.check(tables.values())
    for name, table in tables.items():
        runs = conditions.of(table)
        if not runs:
            print(f"{arguments.paper} {name} has nothing of what is asked for")
            continue
        is_trained = any(column not in SETTINGS for column in table.columns)
        todo = missing(runs, conditions) if is_trained else []
        if arguments.dry_run:
            print_commands(todo, conditions)
            continue
        if not arguments.table_only:
            train(todo, conditions)
            left += len(missing(todo, conditions))
        text = StringIO()
        with redirect_stdout(text):
            print_report(arguments.paper, name, table, runs, conditions)
        print(text.getvalue())
        conditions.runs.mkdir(parents=True, exist_ok=True)
        (conditions.runs / f"{arguments.paper}-{name}.md").write_text(text.getvalue())
    return 1 if left else 0


def print_commands(runs: list[Run], conditions: Conditions) -> None:
    """Print what would be run."""
    join = shlex.join if conditions.datasets else " ".join      # quotes would keep the shell from the variable
    conditions = conditions if conditions.datasets else replace(conditions, datasets=Path("$HPCGNN_DATASETS"))
    made = {run.shards for run in runs if (conditions.shards / run.shards / "graph.h5").exists()}
    for run in runs:
        if run.shards not in made:
            made.add(run.shards)
            print(join(preprocess_command(run, conditions)))
        print(f"hpcgnn_mpirun {run.ranks}", join(train_command(run, conditions)))


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="jobs/reproduce.sh", description=__doc__)
    parser.add_argument("paper", nargs="?", help=", ".join(TABLES))
    parser.add_argument("table", nargs="*", help="names of tables and figures, or all")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    parser.add_argument("--table-only", action="store_true", help="print the table of what there is")
    arguments = parser.parse_args()
    if arguments.paper is None:
        for paper, tables in TABLES.items():
            for name, table in tables.items():
                print(f"{paper} {name}: {table.title}; {len(set(table.runs))} runs")
        return 0
    try:
        return reproduce(arguments, Conditions.read(os.environ))
    except HpcgnnError as error:
        print(f"hpcgnn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hpcgnn: stopped; the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
