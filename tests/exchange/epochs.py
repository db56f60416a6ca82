"""Exchanges over several epochs: one rank's part under a kind, and rows whose values say whose and when they are.

Small integers, so that every width carries them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcgnn.exchange.bits import EpochPlan, UniformBits
from hpcgnn.exchange.codec import Coding
from hpcgnn.exchange.compute_node import ComputeNode, SharedExchange
from hpcgnn.exchange.halo import HaloExchange, Waiting
from hpcgnn.exchange.kinds import Kept
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.sender import Wire
from hpcgnn.exchange.transfer import Link, split_nodes
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows
from hpcgnn.widths import BIT_WIDTHS

PIPELINED = Kept       # kinds are made for one exchange each, so tests name them by what makes them
VALUES = 8     # rows of an epoch that differ; integers below 256 have no error in bfloat16
SEED = 5


@dataclass(frozen=True)
class ChangingBits:
    """Widths of `choices` that differ from row to row and from epoch to epoch."""

    epoch: int
    choices: tuple[int, ...] = BIT_WIDTHS

    def widths(self, layer, purpose, source, destination, rows):
        place = np.arange(len(rows)) + 5 * self.epoch + layer + purpose + 2 * source + destination
        return np.array(self.choices, np.uint8)[place % len(self.choices)]


class Epochs:
    """Collective: one rank's exchange and graph, driven epoch by epoch.

    Parameters
    ----------
    pieces : Pieces               see `cut`
    new_kind : function           makes the exchange kind
    bytes_per_second : float      pace of an imitated link
    overlaps : bool               see `LocalGraph`
    pipeline : str                see `Wire`
    rotated : purposes            see `Coding`
    ranks_per_node : int or None  see `split_nodes`; None: no rank shares rows
    send_share : float            see `Coding`
    """

    def __init__(self, comm, pieces, new_kind=PIPELINED, algorithm="ring", overlaps=True, bytes_per_second=0.0,
                 pipeline="thread", rotated=frozenset(), ranks_per_node=None, send_share=1.0):
        self.pieces, self.part = pieces, pieces.parts[comm.rank]
        self.plan, node = ExchangePlan.build(self.part), None
        if ranks_per_node is not None:
            node = ComputeNode.build(comm, split_nodes(comm, ranks_per_node), self.plan)
            self.plan = node.plan
        self.exchange = HaloExchange(comm, self.plan, UniformBits(32),
                                     Wire(algorithm, link=Link(bytes_per_second), pipeline=pipeline),
                                     Coding(rotated=rotated, send_share=send_share), kind=new_kind())
        if node is not None:
            self.exchange = SharedExchange(self.exchange, node)
        if not overlaps:
            self.exchange = Waiting(self.exchange)
        features = self.exchange.input_rows(torch.from_numpy(self.part.features))
        self.graph = LocalGraph(LocalRows(self.part.indptr, self.part.indices, self.part.node_id, self.part.in_degree,
                                          features), self.exchange)

    @property
    def num_inner(self):
        return self.part.num_inner

    def stamp(self, epoch, dim=5):
        """(num_inner + num_halo, dim) float32, each row its node's and the epoch's own number."""
        value = VALUES * epoch + self.graph.node_id % VALUES
        return torch.from_numpy(np.repeat(value[:, None], dim, axis=1).astype(np.float32))

    def begin(self, epoch, bit_plan, is_asynchronous=False, is_traced=False, differing=frozenset()):
        """Start an epoch of training."""
        self.exchange.begin_epoch(EpochPlan(bit_plan, is_asynchronous, is_traced, differing=differing))
        self.graph.begin_forward(SEED, epoch, is_training=True)

    def there_and_back(self, rows, gradient):
        """Collective: one exchange each way: (halo rows, gradients that came home), both without what was here."""
        h = rows[:self.num_inner].clone().requires_grad_()
        h_all = self.graph.halo(h)
        of_halo = gradient.clone()
        of_halo[:self.num_inner] = 0
        h_all.backward(of_halo)
        return h_all.detach()[self.num_inner:], h.grad

    @property
    def copies(self):
        """(num_inner, 1) float32, on how many ranks each inner row is a halo row."""
        return torch.from_numpy(np.bincount(self.part.boundary_index, minlength=self.num_inner)[:, None]).float()
