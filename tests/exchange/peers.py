"""Lists that a plan has of its peers alone, spread over all ranks, as tests compare them."""

from __future__ import annotations

from hpcgnn.exchange.plan import NO_ROWS


def by_rank(plan, lists, nothing=NO_ROWS):
    """What a list of one entry a peer has for each rank; `nothing` for ranks that are no peers."""
    found = dict(zip(plan.peers, lists, strict=True))
    return [found.get(rank, nothing) for rank in range(plan.num_ranks)]
