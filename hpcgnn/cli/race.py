"""`make_race` reads the options of `hpcgnn bench time-to-score`, and refuses before training what can't be raced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcgnn.bench.epoch import find_mpirun
from hpcgnn.bench.peers.names import parse_peers
from hpcgnn.bench.race.benchmark import Graph, RaceBenchmark, Trials
from hpcgnn.bench.race.contestants import (
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
from hpcgnn.bench.timing import Begin
from hpcgnn.cli.measurement import parse_choices, parse_list
from hpcgnn.errors import ConfigError
from hpcgnn.methods import METHODS

PRECISIONS = ("fp32", "fp16", "bf16")
DRAWN_CLASSES, DRAWN_FEATURES = 40, 128


def make_race(graph: str, flags: dict[str, Any], threads: int, begin: Begin, device: str = "cpu") -> RaceBenchmark:
    """The benchmark that a command line asks for; on a device hpcgnn trains without peers.

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
