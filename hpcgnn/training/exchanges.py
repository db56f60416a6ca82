"""Exchanges: how the messages of a run are put together: what ranks of a node share, and what is summed on its way.

The rooms that are joined here do not know of each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from hpcgnn.config import LEAST_ROTATED, ROTATED, TrainConfig
from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.compute_node import ComputeNode, are_worth_it, split_nodes
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.outgoing_rows import OutgoingRows
from hpcgnn.exchange.plan import ExchangePlan
from hpcgnn.exchange.pre_aggregation import PreAggregation
from hpcgnn.exchange.reach import Reach
from hpcgnn.exchange.ring import Link
from hpcgnn.exchange.transport import Transport
from hpcgnn.graph.normalization import weighted_degree
from hpcgnn.ops.counter import BACKWARD, FORWARD
from hpcgnn.partition.partition import Partition


@dataclass(frozen=True)
class Exchanges:
    """What moves the rows of a run.

    Attributes
    ----------
    exchange : HaloExchange
    plan : ExchangePlan               of its messages
    mates : tuple of int              the ranks of this one's node
    node : ComputeNode or None        what they share
    sums : PreAggregation or None     what is summed before it is sent
    """

    exchange: HaloExchange
    plan: ExchangePlan
    mates: tuple[int, ...]
    node: ComputeNode | None
    sums: PreAggregation | None

    @classmethod
    def open(cls, comm: MPI.Comm, config: TrainConfig, part: Partition, reach: Reach | None, transport: Transport,
             full_bits: int) -> Exchanges:
        """Collective: put together what the settings ask for.

        Parameters
        ----------
        full_bits : {32, 16}      width of rows as they are stored
        """
        plan, link = ExchangePlan.build(part), Link(1e6 * config.link_mbps)
        mates, ranks_of_node = _mates_of(comm, config)

        def node_of(plan: ExchangePlan) -> ComputeNode | None:
            return None if ranks_of_node is None else ComputeNode.build(comm, ranks_of_node, plan)

        outgoing = inputs = sums = None
        if config.pre_aggregation == "on" and comm.size > 1:
            node = node_of(plan)
            inputs = HaloExchange(comm, plan if node is None else node.plan, UniformBits(full_bits), config.exchange,
                                  full_bits, transport=transport, link=link, node=node)
            sums = PreAggregation.build(comm, part, plan, reach)
            outgoing, plan, reach = OutgoingRows(sums, _inner_degree(part)), sums.plan, sums.reach
        node = node_of(plan)
        if node is not None:
            plan, reach = node.plan, reach and node.reach(comm, reach)
        kind = config.method.exchange()
        exchange = HaloExchange(comm, plan, UniformBits(full_bits), config.exchange, full_bits, reach,
                                kind.predicting() if config.predict == "previous" else kind, config.rematerialize,
                                transport, link, config.pipeline, *rotated_rows(config), config.sum_bits, node,
                                outgoing, inputs)
        return cls(exchange, plan, mates, node, sums)

    def importance(self, part: Partition) -> np.ndarray:
        """Collective: return the importance of what messages hold, (plan.num_inner + plan.num_halo,) float32."""
        known = part.importance if self.sums is None else self.sums.importance
        return known if self.node is None else self.exchange.received_values(known[:self.plan.num_inner])


def rotated_rows(config: TrainConfig) -> tuple[frozenset[int], int]:
    """Return the purposes whose messages are rotated, and of how many columns a row must be."""
    is_own = config.code == "auto"
    directions = ROTATED[config.method.own_code() if is_own else config.code]
    purpose = {"forward": FORWARD, "backward": BACKWARD}
    return frozenset(purpose[direction] for direction in directions), LEAST_ROTATED if is_own else 1


def _mates_of(comm: MPI.Comm, config: TrainConfig) -> tuple[tuple[int, ...], MPI.Comm | None]:
    """Collective: return the ranks of this one's node, and their communicator where they share rows."""
    node = split_nodes(comm, config.ranks_per_node)
    mates = tuple(node.allgather(comm.rank))
    if config.may_share_rows and (config.nodes_aware == "on" or are_worth_it(comm, node)):
        return mates, node
    node.Free()
    return mates, None


def _inner_degree(part: Partition) -> np.ndarray:
    """Return (num_inner,) in-degrees in the whole graph, or sums of weights where arcs have them: inner rows have all
    their arcs here.
    """
    if part.edge_weight is not None:
        return weighted_degree(part.indptr, part.edge_weight)
    return part.in_degree[:part.num_inner]
