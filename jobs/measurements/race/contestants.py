"""Contestants of a race: `Ours` and `Peer`, the settings that each tries, and what all have in common.

`RaceSettings` and `PeerSettings` travel to a peer's process as JSON. Imports neither NumPy nor torch.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from itertools import product
from typing import Any

from hpcgnn.bench.timing import OURS
from hpcgnn.errors import ConfigError


@dataclass(frozen=True)
class RaceSettings:
    """What all contestants have in common: dropout, convolution, LayerNorm, ReLU; Adam."""

    model: str                  # a key of PEERS_MODEL
    # epochs, seconds: limits of a training, whichever comes first; seconds without evaluations
    epochs: int
    seconds: float
    layers: int = 3
    hidden: int = 256
    enough: float = math.inf    # validation score that ends a training; infinite: only the limits end it


@dataclass(frozen=True)
class PeerSettings(RaceSettings):
    """One training of a peer."""

    lr: float = 0.01
    # dropout, input_dropout: shares of the hidden rows and of the input rows that are dropped in training
    dropout: float = 0.5
    input_dropout: float = 0.0
    kind: str = "sampler"           # how batches are made, of KINDS
    batch: int = 1024               # training nodes in one process's batch; approximate unless neighbors are drawn
    fanout: tuple[int, ...] = ()    # neighbors drawn per node in each layer, the input's first; empty: none are drawn
    seed: int = 0
    # processes: how many train together; rank: number of this one
    processes: int = 1
    rank: int = 0
    store: str = ""                 # file by which several processes find each other


# hpcgnn's model -> what peers train; "": peers don't take part. For pyg-sage, PyTorch Geometric's own class that hpcgnn
# trains unchanged, peers have the same layers from their libraries.
PEERS_MODEL = {"sage": "sage", "gcn": "gcn", "gat": "gat", "pyg-sage": "sage", "sage-max": "", "gin": "", "gcnii": "",
               "jknet": "", "appnp": ""}
OWN_MODEL = "pyg-sage"     # has no dropout of the input rows
OWN_CLASS = "torch_geometric.nn:GraphSAGE"
OWN_ARGUMENTS = '{"norm": "layer_norm", "norm_kwargs": {"mode": "node"}}'
FULL_GRAPH, AUTO, BY_ROW = "1", "auto", "rows:"      # steps per epoch
FANOUTS = (5, 5, 5), (15, 10, 5)                      # neighbors drawn per node in each layer, the input's first
DRAWING = ("sampler", "labor")                        # kinds of batches that draw neighbors by a fanout
KINDS = {"dgl": ("sampler", "labor", "uniform"), "pyg": ("sampler", "clusters")}
SAMPLING_LIBRARIES = ("pyg_lib", "torch_sparse")      # PyTorch Geometric's loader draws neighbors with one of them
PYG_LEFT_OUT = ("pyg sampler is left out: PyTorch Geometric's NeighborLoader needs pyg-lib or torch-sparse, and "
                "neither is installed")


@dataclass(frozen=True)
class Ours:
    """A contestant of ours: METHOD or METHOD:BITS, steps per epoch (a number or "auto"), and precision."""

    method: str = "vanilla"
    steps: str = FULL_GRAPH
    precision: str = "fp32"

    @property
    def name(self) -> str:
        steps = {FULL_GRAPH: "full graph", AUTO: AUTO}.get(self.steps, f"{self.steps} steps")
        return f"{OURS} {self.method}, {steps}" + ("" if self.precision == "fp32" else f", {self.precision}")

    def flags(self) -> dict[str, str]:
        """Its flags of `hpcgnn train`."""
        method, _, bits = self.method.partition(":")
        own = {"method": method, "bits": bits, "steps": "" if self.steps == FULL_GRAPH else self.steps,
               "precision": "" if self.precision == "fp32" else self.precision}
        return {name: value for name, value in own.items() if value}

    def choices(self, batches: tuple[int, ...]) -> list[list[dict[str, Any]]]:
        """None of its own, since the number of steps fixes the batch; see `Peer.choices`."""
        return []


@dataclass(frozen=True)
class Peer:
    """A peer that trains on batches."""

    package: str                         # a key of KINDS
    kind: str                            # how its batches are made, of KINDS
    processes: tuple[int, ...] = (1,)    # numbers of processes that divide a batch, to try

    @property
    def name(self) -> str:
        return f"{self.package} {self.kind}"

    @property
    def driver(self) -> str:
        """Module that trains it."""
        return f"measurements.race.{self.package}_{'sampler' if self.kind in DRAWING else self.kind}"

    def choices(self, batches: tuple[int, ...]) -> list[list[dict[str, Any]]]:
        """Its own settings to try, a list of changes of Settings for each: batch, processes, fanout."""
        fanouts = FANOUTS if self.kind in DRAWING else ((),)
        return [[{"fanout": fanout} for fanout in fanouts],
                [{"processes": processes} for processes in self.processes], [{"batch": batch} for batch in batches]]


Contestant = Ours | Peer


def list_ours(methods: tuple[str, ...], steps: tuple[str, ...], precisions: tuple[str, ...]) -> list[Ours]:
    """All combinations, in the order given."""
    return [Ours(*combination) for combination in product(methods, steps, precisions)]


def list_peers(asked: dict[str, tuple[int, ...]]) -> tuple[list[Peer], list[str]]:
    """Contestants from installed packages, and a sentence on each that is left out.

    `asked` has the numbers of processes by PACKAGE, which means all kinds of its batches, or PACKAGE-KIND.
    """
    peers, remarks = list[Peer](), []
    can_sample = any(map(importlib.util.find_spec, SAMPLING_LIBRARIES))
    for name, processes in asked.items():
        package, _, kind = name.partition("-")
        for one in (kind,) if kind else KINDS[package]:
            if (package, one) == ("pyg", "sampler") and not can_sample:
                remarks.append(PYG_LEFT_OUT)
            else:
                peers.append(Peer(package, one, processes))
    return peers, remarks


def parse_processes(text: str, default: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Read PEER or PEER:PROCESSES with commas as ascending numbers of processes by peer.

    A peer without a number has the default. Raises ConfigError for anything but a positive number.
    """
    asked: dict[str, tuple[int, ...]] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        peer, has_number, number = item.partition(":")
        if has_number and not (number.isdecimal() and int(number) > 0):
            raise ConfigError(f"--peer has {item!r}; expected PEER or PEER:PROCESSES, as in dgl:2")
        numbers = (int(number),) if has_number else default
        asked[peer] = tuple(sorted({*asked.get(peer, ()), *numbers}))
    return asked


def parse_dropouts(text: str) -> tuple[tuple[float, float], ...]:
    """Read RATE or RATE:INPUT with commas as pairs: dropout of the hidden rows, and of the input rows (else as RATE).

    Raises ConfigError for anything outside of [0, 1).
    """
    pairs = []
    for item in text.split(","):
        rate, _, of_input = item.strip().partition(":")
        try:
            pair = float(rate), float(of_input or rate)
        except ValueError:
            pair = math.nan, math.nan
        if not all(0 <= number < 1 for number in pair):
            raise ConfigError(f"--dropout has {item!r}; expected RATE or RATE:INPUT, from 0 up to below 1, as in 0.3:0")
        pairs.append(pair)
    return tuple(dict.fromkeys(pairs))


def parse_steps(text: str) -> tuple[str, ...]:
    """Read a list of steps per epoch: positive numbers, "rows:" with such a number, and "auto".

    Raises ConfigError for anything else.
    """
    items = tuple(dict.fromkeys(item.strip() for item in text.split(",")))
    for item in items:
        number = item.removeprefix(BY_ROW)
        if item != AUTO and not (number.isdecimal() and int(number) > 0):
            raise ConfigError(f"--steps has {item!r}; expected positive numbers, {BY_ROW}NUMBER or auto, with commas "
                              "between them")
    return items


def parse_methods(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Read a list of METHOD or METHOD:BITS. Raises ConfigError for an unknown method or wrong bits."""
    items = tuple(dict.fromkeys(item.strip() for item in text.split(",")))
    for item in items:
        method, has_bits, bits = item.partition(":")
        if method not in known or (has_bits and not bits.isdecimal()):
            raise ConfigError(f"--method has {item!r}; expected METHOD or METHOD:BITS of {', '.join(known)}")
    return items


def parse_targets(text: str) -> tuple[tuple[float, bool], ...]:
    """Read shares of the best score, or scores in percent as in 62%; ascending pairs (number, is a share).

    Raises ConfigError for a mixture, and for numbers outside of (0, 1] or (0, 100] percent.
    """
    items = [item.strip() for item in text.split(",")]
    is_share = not items[0].endswith("%")
    try:
        found = sorted({float(item) if is_share else float(item.removesuffix("%")) / 100 for item in items})
    except ValueError:
        found = []
    if not found or not all(0 < number <= 1 for number in found) or \
            any(item.endswith("%") == is_share for item in items):
        raise ConfigError(f"--target is {text!r}; expected shares above 0 and up to 1, as in 0.95,0.98,1.0, or scores, "
                          "as in 62%,64%")
    return tuple((number, is_share) for number in found)
