"""Contestants of a race: `Ours` and `Peer`, the settings that each may try, and the settings that all share.

`RaceSettings` and `PeerSettings` travel to a peer's process as JSON. Imports neither NumPy nor torch.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from itertools import product

from hpcgnn.bench.race.curve import Settings
from hpcgnn.bench.timing import OURS
from hpcgnn.errors import ConfigError


@dataclass(frozen=True)
class RaceSettings:
    """Settings that all contestants share: dropout, convolution, LayerNorm, ReLU; Adam."""

    model: str
    # epochs, seconds: limits of a training, whichever comes first; seconds without evaluations
    epochs: int
    seconds: float
    eval_every: int             # epochs between evaluations; the last epoch has one too
    layers: int = 3
    hidden: int = 256
    dropout: float = 0.5
    enough: float = math.inf    # validation score that ends a training; infinite: only the limits end it


@dataclass(frozen=True)
class PeerSettings(RaceSettings):
    """One training of a peer."""

    lr: float = 0.01
    batch: int = 1024               # training nodes in one process's batch; approximate with clusters
    fanout: tuple[int, ...] = ()    # neighbors drawn per node in each layer, the input's first; empty: clusters
    seed: int = 0
    # processes: how many train together; rank: number of this one
    processes: int = 1
    rank: int = 0
    store: str = ""                 # file by which several processes find each other

    def is_evaluated(self, epoch: int) -> bool:
        """Whether scores are taken after this many epochs, unless it is the last one."""
        return epoch == self.epochs or epoch % self.eval_every == 0


FULL_GRAPH, AUTO, BY_ROW = "1", "auto", "rows:"      # steps per epoch
FANOUTS = (15, 10, 5), (5, 5, 5)                      # neighbors drawn per node in each layer, the input's first
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

    def candidates(self, rates: tuple[float, ...], batches: tuple[int, ...]) -> list[Settings]:
        """Settings to try: learning rates only, since the number of steps fixes the batch."""
        return [Settings(rate) for rate in rates]


@dataclass(frozen=True)
class Peer:
    """A peer that trains on batches: drawn neighbors, or clusters if `fanout` is empty."""

    package: str                         # {"dgl", "pyg"}
    fanout: tuple[int, ...] = ()         # neighbors drawn per node in each layer, the input's first
    processes: tuple[int, ...] = (1,)    # numbers of processes that divide a batch, to try

    @property
    def name(self) -> str:
        return f"{self.package} sampler {','.join(map(str, self.fanout))}" if self.fanout else \
            f"{self.package} clusters"

    @property
    def driver(self) -> str:
        """Module that trains it."""
        return f"hpcgnn.bench.peers.{self.package}_{'sampler' if self.fanout else 'clusters'}"

    def candidates(self, rates: tuple[float, ...], batches: tuple[int, ...]) -> list[Settings]:
        """Settings to try: learning rates times batch sizes times numbers of processes."""
        return [Settings(*chosen) for chosen in product(rates, batches, self.processes)]


Contestant = Ours | Peer


def list_ours(methods: tuple[str, ...], steps: tuple[str, ...], precisions: tuple[str, ...]) -> list[Ours]:
    """All combinations, in the order given."""
    return [Ours(*combination) for combination in product(methods, steps, precisions)]


def list_peers(asked: dict[str, tuple[int, ...]]) -> tuple[list[Peer], list[str]]:
    """Contestants from installed packages, and a sentence on each that is left out.

    `asked` has the numbers of processes by package.
    """
    peers, remarks = [], []
    can_sample = any(map(importlib.util.find_spec, SAMPLING_LIBRARIES))
    for package, processes in asked.items():
        if package == "pyg" and not can_sample:
            remarks.append(PYG_LEFT_OUT)
        else:
            peers += [Peer(package, fanout, processes) for fanout in FANOUTS]
        if package == "pyg":
            peers.append(Peer(package, processes=processes))
    return peers, remarks


def parse_processes(text: str, default: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Read PACKAGE or PACKAGE:PROCESSES with commas as ascending numbers of processes by package.

    A package without a number has the default. Raises ConfigError for anything but a positive number.
    """
    asked: dict[str, tuple[int, ...]] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        package, has_number, number = item.partition(":")
        if has_number and not (number.isdecimal() and int(number) > 0):
            raise ConfigError(f"--peer has {item!r}; expected PACKAGE or PACKAGE:PROCESSES, as in dgl:2")
        numbers = (int(number),) if has_number else default
        asked[package] = tuple(sorted({*asked.get(package, ()), *numbers}))
    return asked


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


def parse_targets(text: str) -> tuple[float, ...]:
    """Read shares of the best score, ascending. Raises ConfigError for numbers outside of (0, 1]."""
    try:
        shares = tuple(sorted({float(item) for item in text.split(",")}))
    except ValueError:
        shares = ()
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ConfigError(f"--target is {text!r}; expected shares above 0 and up to 1, with commas between them, as in "
                          "0.95,0.98,1.0")
    return shares
