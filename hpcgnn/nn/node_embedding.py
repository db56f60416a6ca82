"""NodeEmbedding: a table with one row per node; each rank holds and trains the rows of its own nodes.

Take 5 nodes and two ranks, which own nodes 0, 3, 4 and 1, 2. Their tables have three rows and two, in ascending order
of the nodes' numbers in the source. A lookup of node 3 on rank 0 is its row 1. Only a node's owner reads its row. Other
ranks get the rows that layers compute from it, as halo rows, and send gradients back. So the owner has the complete
gradient of a row, and neither it nor Adam's moments ever travel; only the gradients of all other weights are summed
over the ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

from hpcgnn.errors import ConfigError
from hpcgnn.ops.counter import INITIAL, CounterKey, words_of

ROWS_AT_ONCE = 1 << 12     # rows that are drawn at once
MOST_SEEDS = 1 << 31


class NodeEmbedding(nn.Module):
    """`torch.nn.Embedding(graph.num_nodes, embedding_dim)`, shared out: each rank holds the rows of its own nodes.

    It is called with nodes' source numbers, like an `nn.Embedding` on the whole graph. A forward of PyTorch Geometric's
    kind takes them as `n_id`, a model on LocalGraph as `graph.node_index`. Memory, the optimizer's moments and the time
    of a step cover only the rank's own rows, and their gradients are not summed over the ranks.

    The weight begins with draws of a standard normal distribution, a function of `seed`, node and column, so that any
    number of ranks begins with the same rows. `state_dict()` holds the rank's rows in ascending order of the nodes; on
    one rank this is the whole table. Checkpoints, exported weights and `Run.save` hold the whole table in the order of
    the source, which an `nn.Embedding` of the same name loads; so does this class, taking its own rows.

    Parameters
    ----------
    graph : hpcgnn.Graph         from `hpcgnn.open`
    embedding_dim : int          columns
    seed : int or None           seed of the first values; None draws one from torch's generator, so that
                                 `torch.manual_seed` decides

    Attributes
    ----------
    weight : (num_own_nodes, embedding_dim) float32
    node_index : (num_own_nodes,) int64      ascending, the number in the source of each row's node
    num_embeddings : int                     nodes of the whole graph

    Raises
    ------
    ConfigError      a graph that is not open, or columns or a seed that are no positive whole number

    Examples
    --------
    >>> class Net(torch.nn.Module):
    ...     def __init__(self, graph):
    ...         super().__init__()
    ...         self.embedding = hpcgnn.NodeEmbedding(graph, 64)
    ...         self.conv = torch_geometric.nn.SAGEConv(64, graph.num_classes)
    ...
    ...     def forward(self, x, edge_index, n_id):
    ...         return self.conv(self.embedding(n_id), edge_index)
    """

    def __init__(self, graph: Any, embedding_dim: int, seed: int | None = None):
        super().__init__()
        index = getattr(graph, "node_index", None)
        if index is None or graph.num_nodes is None:
            raise ConfigError(f"NodeEmbedding was given a {type(graph).__name__} for its graph; give what "
                              "hpcgnn.open(SHARDS) returns, which knows the nodes of this rank")
        if type(embedding_dim) is not int or embedding_dim < 1:
            raise ConfigError(f"NodeEmbedding was given {embedding_dim!r} columns; give a whole number of at least 1")
        seed = int(torch.randint(MOST_SEEDS, ())) if seed is None else seed
        if type(seed) is not int or not 0 <= seed < 1 << 32:
            raise ConfigError(f"NodeEmbedding was given the seed {seed!r}; give a whole number from 0 to 2**32 - 1")
        self.num_embeddings, self.embedding_dim, self.seed = graph.num_nodes, embedding_dim, seed
        self.register_buffer("node_index", torch.as_tensor(index).cpu().sort().values, persistent=False)
        # By `row_of`, the last time. `_version` would be nn.Module's, which state_dict() hands on.
        self._asked: torch.Tensor | None = None
        self._asked_version: int | None = None
        self._answer: torch.Tensor | None = None
        self.weight = nn.Parameter(torch.empty(len(self.node_index), embedding_dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the first values again."""
        key = CounterKey(self.seed, 0, INITIAL, 0)
        for start in range(0, len(self.weight), ROWS_AT_ONCE):
            ids = self.node_index[start:start + ROWS_AT_ONCE].cpu().numpy()
            uniform = (words_of(ids, self.embedding_dim, key) + 0.5) / (1 << 32)
            self.weight[start:start + ROWS_AT_ONCE] = torch.special.ndtri(torch.from_numpy(uniform))

    def row_of(self, number: torch.Tensor) -> torch.Tensor:
        """Return the row indices of nodes in `weight`, of the shape of `number`.

        Parameters
        ----------
        number : int64 tensor, of nodes of this rank

        Raises
        ------
        ConfigError      a node of another rank, or none of the graph
        """
        # Every layer and epoch asks for the same numbers.
        if self._asked is number and self._asked_version == number._version:
            return self._answer
        row = torch.searchsorted(self.node_index, number.contiguous()).clamp_(max=max(0, len(self.node_index) - 1))
        is_other = self.node_index[row] != number if len(self.node_index) else torch.ones_like(row, dtype=torch.bool)
        if bool(is_other.any()):
            raise ConfigError(f"NodeEmbedding was asked for node {int(number[is_other][0])}, and this rank holds the "
                              f"rows of its own {len(self.node_index)} nodes of {self.num_embeddings}; look up own "
                              "nodes by n_id or graph.node_index, and get rows of neighbors from a convolution or "
                              "graph.halo")
        self._asked, self._asked_version, self._answer = number, number._version, row
        return row

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        """Return the rows of nodes, (..., embedding_dim) for numbers of any shape; errors as in `row_of`."""
        if has_torch_function_unary(number):      # a distributed model says which nodes torch.arange(len(x)) is
            return handle_torch_function(NodeEmbedding.forward, (number,), self, number)
        return functional.embedding(self.row_of(number), self.weight)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, seed={self.seed}"

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        """Take this rank's rows of a table of all nodes, or a table of only these rows."""
        name = f"{prefix}weight"
        found = state_dict.get(name)
        if found is not None and len(found) == self.num_embeddings != len(self.weight):
            state_dict[name] = found[self.node_index.to(found.device)]
        super()._load_from_state_dict(state_dict, prefix, *args)


class Nodes(NamedTuple):
    """The nodes of a rank, as a NodeEmbedding asks for them."""

    node_index: torch.Tensor      # (num_own_nodes,) int64
    num_nodes: int                # of the whole graph


class Embedded(nn.Module):
    """A built-in model whose input rows are the features, then a learned row of each node.

    Learned rows change in every epoch, so the first layer sends them as hidden rows are sent, with the features beside
    them.
    """

    num_hops = None      # the table has rows of all nodes, so every pass computes all rows

    def __init__(self, module: nn.Module, nodes: Nodes, embedding_dim: int):
        super().__init__()
        self.module, self.embedding = module, NodeEmbedding(nodes, embedding_dim)
        for trait in ("reduction", "attends", "weighs_self", "takes_edge_weights", "takes_relations"):
            if hasattr(module, trait):
                setattr(self, trait, getattr(module, trait))

    def forward(self, graph: Any, x: torch.Tensor) -> torch.Tensor:
        """Collective: map (num_inner, num_features) input rows to logits."""
        rows = self.embedding(graph.node_index).to(x.dtype)
        return self.module(graph, torch.cat([x, rows], dim=1))

    def first_layer_parameters(self) -> list[nn.Parameter]:
        return self.module.first_layer_parameters()


def own_tables(model: nn.Module) -> dict[str, NodeEmbedding]:
    """The tables of a model that hold rows of own nodes, by the names of their weights in its state."""
    return {f"{place}.weight" if place else "weight": module
            for place, module in model.named_modules(remove_duplicate=False) if isinstance(module, NodeEmbedding)}
