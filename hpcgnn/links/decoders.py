"""Decoders: how the rows of two nodes and a relation give the score of a link.

A question names a node and a relation; a decoder makes it a row, the query. The scores of all nodes as answers are the
products of their rows with the query. So drawn nodes and all candidates are one matrix product; for `mlp` alone each
pair is a row of a network.

    decoder     score of (u, r, v)           query of (u, r, ?)     query of (?, r, v)
    dot         <u, v>                       u                      v
    distmult    <u * r, v>                   u * r                  v * r
    complex     Re <u * r, conj(v)>          u * r                  v * conj(r)
    mlp         network(u * r * v)           u * r                  v * r

For `complex`, the first half of a row holds the real parts, the second half the imaginary parts.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from hpcgnn.config import LINK_DECODER
from hpcgnn.errors import ConfigError
from hpcgnn.ops.aggregation import chosen_rows

DOT, DISTMULT, COMPLEX, NETWORK = "dot", "distmult", "complex", "mlp"
MOST_VALUES = 1 << 22      # of products of rows, column by column, at a time
Score = Callable[[torch.Tensor], torch.Tensor]      # of products (.., dim), (.., 1)


class DistMult(nn.Module):
    """Relations scale the columns of rows.

    Parameters
    ----------
    relation_names : sequence of str
    dim : int                      columns of the nodes' rows

    Attributes
    ----------
    weight : (num_relations, dim) float32
    relations : (8,) uint8         hash of the names, by which a graph with other relations is refused

    Reference: Yang et al., Embedding Entities and Relations for Learning and Inference in Knowledge Bases, ICLR 2015.
    """

    def __init__(self, relation_names: Sequence[str], dim: int):
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(len(relation_names), dim)))
        digest = hashlib.blake2b("\n".join(relation_names).encode(), digest_size=8).digest()
        self.register_buffer("relations", torch.tensor(list(digest), dtype=torch.uint8))

    def query(self, rows: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        """Queries (n, dim) that ask for the targets of the sources `rows`, (n, dim), by relation, (n,) int64."""
        return rows * chosen_rows(self.weight, relation)

    def source_query(self, rows: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        """Queries (n, dim) that ask for the sources of the targets `rows`, (n, dim), by relation, (n,) int64."""
        return self.query(rows, relation)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        written = state_dict.get(f"{prefix}relations")
        if written is not None and not torch.equal(written.cpu(), self.relations.cpu()):
            raise ConfigError("the model was trained on other relations than this graph has, or in another order; name "
                              "the graph that it was trained on, or one with the same relations")
        super()._load_from_state_dict(state_dict, prefix, *args)


class ComplEx(DistMult):
    """Relations multiply rows of complex numbers.

    Raises ConfigError for an odd number of columns.

    Reference: Trouillon et al., Complex Embeddings for Simple Link Prediction, ICML 2016.
    """

    def __init__(self, relation_names: Sequence[str], dim: int):
        if dim % 2:
            raise ConfigError(f"decoder complex needs rows of an even number of columns, for real and imaginary parts, "
                              f"found {dim}; change it by one")
        super().__init__(relation_names, dim)

    def query(self, rows: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        return _complex_product(rows, *self._parts(relation))

    def source_query(self, rows: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        real, imaginary = self._parts(relation)
        return _complex_product(rows, real, -imaginary)

    def _parts(self, relation: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return chosen_rows(self.weight, relation).chunk(2, dim=1)


def _complex_product(rows: torch.Tensor, real: torch.Tensor, imaginary: torch.Tensor) -> torch.Tensor:
    a, b = rows.chunk(2, dim=1)
    return torch.cat([a * real - b * imaginary, a * imaginary + b * real], dim=1)


class MLP(DistMult):
    """A network of two layers scores the product of two rows, column by column, and their relation's row.

    Without relations, `weight` is None and the product is of the two rows.

    Attributes
    ----------
    network : dim columns, as many hidden ones with ReLU, one score

    Reference: the link predictor of Hu et al., Open Graph Benchmark, NeurIPS 2020, in the examples beside its paper.
    """

    def __init__(self, relation_names: Sequence[str], dim: int):
        super().__init__(relation_names, dim)
        if not any(relation_names):
            self.weight = None
        self.network = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def query(self, rows: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        return rows if self.weight is None else super().query(rows, relation)


DECODERS: dict[str, type[DistMult]] = {DISTMULT: DistMult, COMPLEX: ComplEx, NETWORK: MLP}


def network_of(decoder: nn.Module | None) -> nn.Module | None:
    """What makes scores of products; None if a score is the sum of its product."""
    return decoder.network if isinstance(decoder, MLP) else None


def scores_of_pairs(network: Score | None, queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The score of each query with its own row, (n,), from queries and rows (n, dim)."""
    products = queries * rows
    return products.sum(1) if network is None else network(products).squeeze(-1)


def scores_of_all(network: Score | None, queries: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The score of each query, (n, dim), with each row, (m, dim): (n, m)."""
    if network is None:
        return queries @ rows.t()
    some = queries.split(max(1, MOST_VALUES // max(1, rows.numel())))
    return torch.cat([network(part[:, None] * rows).squeeze(-1) for part in some])


def own_decoder(model: nn.Module, setting: str) -> nn.Module | None:
    """The decoder that a user's model brings as `link_decoder`; None if it brings none.

    Raises ConfigError: it has no `query`, or the settings name another decoder.
    """
    found: Any = getattr(model, LINK_DECODER, None)
    if found is None or type(found) in DECODERS.values():
        return None
    if not isinstance(found, nn.Module) or not callable(getattr(found, "query", None)):
        raise ConfigError(f"{type(model).__name__}.{LINK_DECODER} is a {type(found).__name__} without query(rows, "
                          "relation), which makes a question's row; add it, or give the attribute another name")
    if setting != "auto":
        raise ConfigError(f"decoder {setting} has no effect on {type(model).__name__}, which brings its own as "
                          f"{LINK_DECODER}; leave one out")
    return found


def queries(decoder: nn.Module | None, rows: torch.Tensor, relation: torch.Tensor, asks_sources: bool) -> torch.Tensor:
    """The queries of nodes with the rows (n, dim), by relation (n,) int64; without a decoder, the rows themselves."""
    if decoder is None:
        return rows
    return decoder.source_query(rows, relation) if asks_sources else decoder.query(rows, relation)


def cubes(decoder: nn.Module | None, rows: torch.Tensor) -> torch.Tensor:
    """Sum over the columns of each row of the cubes of absolute values, (n,); of the moduli, if they are complex.

    Reference: N3 of Lacroix et al., Canonical Tensor Decomposition for Knowledge Base Completion, ICML 2018.
    """
    if isinstance(decoder, ComplEx):
        return sum(part.square() for part in rows.chunk(2, dim=1)).pow(1.5).sum(dim=1)
    return rows.abs().pow(3).sum(dim=1)


def in_float64(decoder: nn.Module | None) -> nn.Module | None:
    """A copy on the host that computes in float64."""
    return None if decoder is None else copy.deepcopy(decoder).cpu().double()
