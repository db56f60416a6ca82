"""What one may choose of parts and the order of their rows. Commands read it, so nothing is imported here."""

from __future__ import annotations

METIS_PARTITIONERS = ("metis", "metis-cut")
PARTITIONERS = (*METIS_PARTITIONERS, "ldg", "random", "contiguous")
BALANCES = ("nodes", "edges", "both")
# A node's dense products in a layer of 256 columns, forward and backward, take as long as the aggregation of so many
# in-edges: 25 (GCN) to 55 (GraphSAGE) in bfloat16 and 65 to 170 in float32, measured on cores with AVX-512 BF16.
EDGES_A_NODE = 64
REORDERS = ("none", "metis", "degree", "rcm", "condense-edge")


def default_balance(partitioner: str) -> str:
    """Return what a partitioner balances by default: METIS a layer's work, the others, which know no weights, nodes."""
    return "both" if partitioner in METIS_PARTITIONERS else "nodes"
