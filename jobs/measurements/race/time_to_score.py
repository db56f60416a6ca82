"""Race hpcgnn and peers that train on batches to a validation score: seconds, epochs and bytes until each has it.

    python jobs/measurements/race/time_to_score.py GRAPH [--steps auto] [--peer dgl,pyg] [--out DIR]

This process imports neither NumPy nor torch, because a child's peak memory begins with its parent's.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import click

from hpcgnn.bench.environment import available_cores
from hpcgnn.bench.epoch import find_mpirun
from hpcgnn.bench.peers import parse_peers
from hpcgnn.bench.timing import Begin
from hpcgnn.cli.grouped import parse_set
from hpcgnn.cli.measurement import Shared, announce, finish, parse_choices, parse_list, prepare_output
from hpcgnn.command_line import run
from hpcgnn.data.options import NORMALIZATIONS
from hpcgnn.errors import ConfigError
from hpcgnn.methods import METHODS
from hpcgnn.run.output import prepare_streams

sys.path.append(str(Path(__file__).resolve().parents[2]))
from measurements.race.benchmark import Graph, RaceBenchmark, Trials
from measurements.race.contestants import (
    KINDS,
    PEERS_MODEL,
    RaceSettings,
    list_ours,
    list_peers,
    parse_dropouts,
    parse_methods,
    parse_processes,
    parse_steps,
    parse_targets,
)
from measurements.race.result import RaceResult

PRECISIONS = ("fp32", "fp16", "bf16")
DRAWN_CLASSES, DRAWN_FEATURES = 40, 128
OF_RACE: dict[str, click.ParamType] = {
    "seconds": click.FloatRange(min=0, min_open=True), "stop_at_target": click.BOOL, "batch": click.STRING,
    "normalize": click.Choice(NORMALIZATIONS)}
RACE_DEFAULTS = {"batch": "1024", "seconds": 600.0, "stop_at_target": False, "normalize": "auto"}


def make_race(graph: str, flags: dict[str, Any], threads: int, begin: Begin, device: str = "cpu") -> RaceBenchmark:
    """The benchmark that a command line asks for. Refuses before training what can't be raced.

    Raises
    ------
    ConfigError, UsageError      an option can't be used, or there is no such graph
    """
    races = [RaceSettings(model, flags["epochs"], flags["seconds"])
             for model in parse_choices("--model", flags["model"], tuple(PEERS_MODEL))]
    trials = Trials(parse_list("--lr", flags["lr"], float), parse_dropouts(flags["dropout"]),
                    parse_list("batch", flags["batch"], int), flags["seeds"])
    ours = list_ours(parse_methods(flags["method"], tuple(METHODS)), parse_steps(flags["steps"]),
                     parse_choices("--precision", flags["precision"], PRECISIONS))
    asked = parse_processes(flags["peer"], tuple(sorted({1, threads})))
    for race in races:
        if asked and not PEERS_MODEL[race.model]:
            raise ConfigError(f"--model has {race.model}, which no peer trains; leave it or --peer out")
    parse_peers(",".join(asked), tuple(name for package, kinds in KINDS.items()
                                       for name in (package, *(f"{package}-{kind}" for kind in kinds))))
    check_batches(trials.batches, asked)
    if asked and device != "cpu":
        raise ConfigError(f"--peer has {', '.join(asked)}, and peers of this benchmark train on the host; leave --peer "
                          f"or --device {device} out")
    peers, remarks = list_peers(asked)
    if flags["ranks"] > 1:
        find_mpirun()
    return RaceBenchmark(Graph(source_of(graph), flags["normalize"]), races, [*ours, *peers],
                         parse_targets(flags["target"]), trials, flags["ranks"], threads, remarks, begin,
                         flags["stop_at_target"], device)


def check_batches(batches: tuple[int, ...], asked: dict[str, tuple[int, ...]]) -> None:
    """Raise ConfigError if a batch has fewer training nodes than a peer has processes."""
    most = max((number for numbers in asked.values() for number in numbers), default=1)
    if min(batches) < most:
        raise ConfigError(f"batch has {min(batches)}, which {most} processes of a peer can't divide; ask for larger "
                          "ones, or for fewer processes with --peer PEER:PROCESSES")


def source_of(graph: str) -> str:
    """The graph as RaceBenchmark takes it: an existing path, or a SOURCE of preprocess. Raises ConfigError for neither.
    """
    if graph.startswith("drawn:"):
        # This imports torch, which an archive does not need.
        from hpcgnn.bench.graphs import SYNTHETIC_DEGREE, drawn_arcs

        return (f"synthetic:nodes={round(drawn_arcs(graph) / SYNTHETIC_DEGREE)},mean_degree={SYNTHETIC_DEGREE},"
                f"features={DRAWN_FEATURES},classes={DRAWN_CLASSES}")
    if not Path(graph).exists() and ":" not in graph:
        raise ConfigError(f"there is no graph {graph}; expected an .npz archive, a folder of shards, drawn:EDGES, or a "
                          "SOURCE of hpcgnn preprocess")
    return graph


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("graph")
@click.option("--target", default="0.95,0.98,1.0", show_default=True,
              help="Scores to reach: shares of the best validation score of full-graph training, or percentages, as in "
                   "62%,64%.")
@click.option("--model", default="sage", show_default=True, metavar="LIST",
              help="Models to train: sage, gcn, gat, pyg-sage (PyTorch Geometric's own); without peers, any other.")
@click.option("--method", default="vanilla", show_default=True, metavar="LIST",
              help="hpcgnn's methods, each METHOD or METHOD:BITS.")
@click.option("--steps", default="1", show_default=True, metavar="LIST",
              help="hpcgnn's steps per epoch: numbers and auto. Full-graph training with 1 also takes part if it sets "
                   "the --target.")
@click.option("--precision", default="fp32", show_default=True,
              help="Precision of hpcgnn's rows and products: fp32, bf16 or fp16; peers train in fp32.")
@click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True,
              help="hpcgnn trains in one process with --threads threads, or on this many ranks with one thread each.")
@click.option("--peer", default="", metavar="LIST",
              help="Libraries to compare with, of dgl, pyg, or one kind of their batches, as in dgl-labor; each may be "
                   "PEER:PROCESSES, else it tries 1 process and --threads of them. [default: none]")
@click.option("--lr", default="0.003,0.01", show_default=True, help="Learning rates that all contestants try.")
@click.option("--dropout", default="0.5:0,0.2:0", show_default=True, metavar="LIST",
              help="Dropout rates that all contestants try, RATE or RATE:INPUT. INPUT is the rate of the input rows.")
@click.option("--epochs", type=click.IntRange(min=1), default=100, show_default=True, help="Most epochs of a training.")
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE",
              help="batch: list of training nodes per step (1024); every peer tries each, and divides it among its "
                   "processes. seconds: most seconds of a training, without its evaluations (600). stop_at_target=true "
                   "ends a training when it reaches the highest target, and a trial when it can't be the first there; "
                   "full-graph training that sets the targets goes on to its limit. normalize: normalization of "
                   "features, as preprocess's --normalize-features.")
@click.option("--repeat", type=click.IntRange(min=1), default=1, show_default=True,
              help="Seeds of the trials that are first at a target.")
@click.option("--threads", type=click.IntRange(min=1), help="[default: as many as there are cores]")
@click.option("--out", type=click.Path(path_type=Path),
              help="Folder for bench.json, table.txt and bench.png; the first two are rewritten after every row.")
@click.option("--device", type=click.Choice(("cpu", "cuda")), default="cpu", show_default=True,
              help="Where hpcgnn trains; peers train on the host.")
def command(graph: str, assignments: tuple[str, ...], repeat: int, threads: int | None, out: Path | None, device: str,
            **flags: Any) -> None:
    """Train on GRAPH until a validation score is reached, with hpcgnn and with peers that train on batches.

    GRAPH is an .npz archive, a folder of shards, drawn:EDGES, or another SOURCE of preprocess. With --device cuda
    hpcgnn trains on a GPU, and peers can't take part. --repeat is the number of seeds of the trials that are first
    at a target, and their medians are reported; trials are compared on the first seed.
    """
    shared, threads = Shared(repeat, threads, out, device), threads or available_cores()
    flags |= {"seeds": repeat, **RACE_DEFAULTS, **parse_set(assignments, OF_RACE)}
    benchmark = make_race(graph, flags, threads, shared.steps.begin, device)
    prepare_output(out)
    finish("time-to-score", announce("time-to-score", threads), benchmark, shared, benchmark.failures, RaceResult)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)      # a training that was started here ends too
    prepare_streams()
    sys.exit(run(sys.argv[1:], command, Path(__file__).name))
