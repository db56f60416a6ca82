"""Training methods: each is one row of a table that names where its widths come from and how its exchanges run.

A method is never a branch in the training loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from hpcgnn.adaptive.controller import Controller, DescentTest
from hpcgnn.adaptive.cost_model import fit_links, fixed_links
from hpcgnn.adaptive.node_bits import parse_percentiles, parse_widths
from hpcgnn.adaptive.policies import (
    BudgetedWidths,
    DrawnWidths,
    FixedWidths,
    LeveledWidths,
    SolvedWidths,
    WidthPolicy,
    level_shares,
)
from hpcgnn.adaptive.solving import Solver
from hpcgnn.config import TrainConfig
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.reach import tell_owners
from hpcgnn.exchange.ring import Link
from hpcgnn.exchange.schedule import Execution
from hpcgnn.exchange.timing import time_rounds
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.training.precision import storage_bits

AUTO_WIDTHS = {"random": "2,4,8", "adaqp": "2,4,8", "sylvie": "1,2,4,8", "joint": "1,2,4,8"}
SYLVIE_PERCENTILES = TrainConfig.percentiles
# How a model's rows are summed, which weighs the variance of a message; attention is counted as a mean.
REDUCTION = {"sage": "mean", "sage-max": "mean", "gat": "mean", "gin": "sum"}

# A softmax over rows of 1 or 2 bits is biased, and weights that grew up with that bias can't do without it: they fit
# the training nodes, and answer wrongly from rows as they are.
STARTS_WIDE = ("gat",)
LEAST_BASE = {"gat": 4}     # where the user names no widths


@dataclass(frozen=True)
class Setting:
    """What policies are made from.

    Attributes
    ----------
    comm : MPI communicator
    config : TrainConfig
    plan : ExchangePlan
    graph : LocalGraph
    importance : (num_inner + num_halo,) float32
    """

    comm: MPI.Comm
    config: TrainConfig
    plan: ExchangePlan
    graph: LocalGraph
    importance: np.ndarray


@dataclass(frozen=True)
class Method:
    """One composition of policies.

    Attributes
    ----------
    widths : function            collective: a WidthPolicy
    mode : {"synchronous", "pipelined", "adaptive"}
    execution : function         settings of the exchange beyond those that all methods share
    """

    description: str
    widths: Callable[[Setting], WidthPolicy]
    mode: str = "synchronous"
    execution: Callable[[TrainConfig], dict] = lambda config: {}


def _stored(setting: Setting) -> WidthPolicy:
    return FixedWidths(storage_bits(setting.config.precision))


def _leveled(setting: Setting) -> WidthPolicy:
    widths = widths_of(setting.config)
    percentiles = parse_percentiles(setting.config.percentiles, len(widths))
    return LeveledWidths(widths, percentiles, setting.importance, setting.plan, least_base(setting.config))


def _solver(setting: Setting) -> Solver:
    """Collective: squares of the coefficients come from the receivers, the links' costs from timed rounds."""
    comm, config, graph = setting.comm, setting.config, setting.graph
    squares = graph.halo_squares(REDUCTION.get(config.model, "gcn"))
    told = tell_owners(comm, setting.plan, squares)
    if config.deterministic:
        links = fixed_links(comm.size)
    else:
        links = fit_links(comm.size, *time_rounds(comm, Link(1e6 * config.link_mbps)))
    return Solver(comm, setting.plan, told, links, widths_of(config), config.group_size, config.lam, config.solver,
                  config.solver_seconds)


def _budgeted(setting: Setting) -> WidthPolicy:
    solver = _solver(setting)
    shares = level_shares(parse_percentiles(SYLVIE_PERCENTILES), len(solver.widths))
    return BudgetedWidths(solver, setting.config.period, shares, least_base(setting.config))


PIPELINED = {"is_pipelined": True, "staleness": 1}
METHODS: dict[str, Method] = {
    "vanilla": Method("rows as they are stored, synchronous", _stored),
    "uniform": Method("every message at --bits, synchronous", lambda setting: FixedWidths(setting.config.bits)),
    "random": Method("every row at a width drawn from --widths, synchronous",
                     lambda setting: DrawnWidths(widths_of(setting.config))),
    "sylvie": Method("widths by importance and by how fast the loss falls, pipelined while it falls well", _leveled,
                     "adaptive", lambda config: PIPELINED),
    "adaqp": Method("widths solved from traced ranges and measured links, synchronous",
                    lambda setting: SolvedWidths(_solver(setting), setting.config.period)),
    "joint": Method("widths solved under a budget that follows the loss, pipelined while it falls well", _budgeted,
                    "adaptive", lambda config: PIPELINED),
    "pipegcn": Method("rows as they are stored, always those of the epoch before", _stored, "pipelined",
                      lambda config: {**PIPELINED, "smoothing": config.smoothing}),
    "bns": Method("a share of the boundary rows in every epoch, as they are stored", _stored,
                  execution=lambda config: {"share": config.share}),
    "sancus": Method("rows as they are stored, from ranks whose rows have moved", _stored,
                     execution=lambda config: {"skip_change": config.skip_change, "staleness": config.staleness}),
}


def widths_of(config: TrainConfig) -> tuple[int, ...]:
    """The widths that the method chooses from.

    Raises
    ------
    ConfigError      malformed --widths
    """
    return parse_widths(AUTO_WIDTHS[config.method] if config.widths == "auto" else config.widths)


def least_base(config: TrainConfig) -> int:
    """The least base width of sylvie and joint."""
    return LEAST_BASE.get(config.model, 1) if config.widths == "auto" else 1


def check_method(config: TrainConfig) -> None:
    """Check the settings that are lists.

    Raises
    ------
    ConfigError      malformed --widths or --percentiles
    """
    if config.method in AUTO_WIDTHS:
        widths = widths_of(config)
        if config.method == "sylvie":
            parse_percentiles(config.percentiles, len(widths))


def execution_of(config: TrainConfig) -> Execution:
    """How the exchanges of a run are executed."""
    return Execution(predicts=config.predict == "previous", rematerializes=config.rematerialize,
                     link_bytes_per_second=1e6 * config.link_mbps, **METHODS[config.method].execution(config))


def new_controller(setting: Setting) -> Controller:
    """Collective: the controller of the configured method."""
    config = setting.config
    method = METHODS[config.method]
    test = DescentTest(config.descent_window, config.descent_test, config.descent_smoothing, config.most_rises,
                       config.most_drift, config.layers)
    return Controller(setting.comm, method.widths(setting), method.mode, test, config.model in STARTS_WIDE)
