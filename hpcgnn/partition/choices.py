"""Names and defaults of the options of hpcgnn preprocess; without imports, so that help is quick."""

from __future__ import annotations

METIS_PARTITIONERS = ("metis", "metis-cut")
# Partitioners that take weights of nodes, and so balance more than nodes.
WEIGHING_PARTITIONERS = ("kaminpar", *METIS_PARTITIONERS)
PARTITIONERS = (*WEIGHING_PARTITIONERS, "ldg", "random", "contiguous")
DEFAULT_PARTITIONER = "kaminpar"
TRAINING = "training"
BALANCES = ("nodes", "edges", "both", TRAINING)
# A node's dense products in a layer of 256 columns, forward and backward, take as long as the aggregation of this many
# in-edges: 25 (GCN) to 55 (GraphSAGE) in bfloat16 and 65 to 170 in float32, measured on cores with AVX-512 BF16.
EDGES_A_NODE = 64
EPOCHS_AN_EVALUATION = 5     # the default of hpcgnn train --eval-every
DEFAULT_LAYERS = 3           # and of --layers
REORDERS = ("none", "nested", "metis", "degree", "rcm", "condense-edge")
DEFAULT_REORDER = "nested"
MEASURED = "run"      # in --balance run:FOLDER
MOST_LAYERS = 1024
# Nodes of a cluster for training in steps. With many small clusters, a step resembles the whole graph; larger clusters
# keep more edges inside a step.
ROWS_A_CLUSTER = 106
# Chosen for graphs that leave no memory for KaMinPar, which cuts the clusters.
FRUGAL_PARTITIONERS = ("ldg", "random", "contiguous")


def split_balance(text: str) -> tuple[str, str]:
    """Split the text of --balance at its colon: kind, and layers or run folder; both are empty for another text."""
    kind, colon, rest = text.partition(":")
    is_number = rest.isascii() and rest.isdigit() and 1 <= int(rest) <= MOST_LAYERS
    has_rest = (kind == TRAINING and is_number) or (kind == MEASURED and bool(rest))
    return (kind, rest) if (has_rest if colon else kind in BALANCES) else ("", "")


def default_balance(partitioner: str) -> str:
    """The quantity that a partitioner balances by default: a layer's work, or nodes if it takes no weights."""
    return "both" if partitioner in WEIGHING_PARTITIONERS else "nodes"
