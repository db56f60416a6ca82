"""RowFunctions: makes torch functions that look at all nodes, or draw randomly, return what they would on one process.

Draws for nodes and edges are keyed by global ids, so they don't depend on the number of ranks. A tensor with one row
per node of the whole graph, such as the weight of `nn.Embedding(num_nodes, dim)`, is in the source's order: a forward
that reads it row by row gets the rows of this rank's nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hpcgnn.errors import ConfigError
from hpcgnn.nn.linear import batch_norm
from hpcgnn.nn.node_embedding import NodeEmbedding
from hpcgnn.ops.counter import CounterKey
from hpcgnn.ops.pointwise import dropout
from hpcgnn.pyg.edges import SealedEdges
from hpcgnn.pyg.passing import ForwardPassing, flat_rows

REFUSED_DRAWS = (functional.alpha_dropout, functional.feature_alpha_dropout, functional.dropout1d,
                 functional.dropout2d, functional.dropout3d, functional.rrelu, functional.gumbel_softmax)
# Refused if they draw for nodes; draws for columns are the same on all ranks.
NODE_DRAWS = (torch.randperm, torch.randint, torch.randint_like, torch.multinomial, torch.poisson, torch.rrelu,
              torch.Tensor.multinomial, torch.Tensor.random_, torch.Tensor.geometric_, torch.Tensor.log_normal_,
              torch.Tensor.cauchy_, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout,
              torch.native_dropout)
# They read tensors without asking their class.
MADE_OF_OTHERS = (torch.tensor, torch.sparse_coo_tensor, torch.sparse_csr_tensor, torch.sparse_csc_tensor,
                  torch.sparse_compressed_tensor)
DRAW_BITS = 24     # bits of a keyed draw: the precision of float32
READS = {"__get__", "__len__", "size", "dim", "numel", "nelement", "stride", "is_floating_point", "is_contiguous",
         "element_size", "data_ptr", "storage_offset", "get_device", "__hash__", "__repr__", "requires_grad_",
         "type", "t", "transpose", "permute", "einsum", "bmm", "cdist", "bilinear"}
MATRIX_READS = {"t", "transpose", "permute", "einsum", "bmm", "cdist", "bilinear"}
# Their second argument is a matrix; its rows are not nodes.
PRODUCTS = {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "mv"}
OVER_ROWS = {"sum", "mean", "max", "min", "amax", "amin", "norm", "std", "var", "prod", "softmax", "log_softmax",
             "normalize", "logsumexp", "cumsum", "argmax", "argmin", "sort", "argsort", "topk", "unique"}
SAME_ELEMENTS = {"to", "long", "int", "clone", "contiguous", "cuda", "cpu", "detach"}


class _BatchNorm(NamedTuple):
    """The arguments of functional.batch_norm after the rows."""

    running_mean: torch.Tensor | None = None
    running_var: torch.Tensor | None = None
    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5


def _drops_inside(func: Callable, args: tuple, kwargs: dict) -> bool:
    """Whether an attention or a recurrent layer drops values out by draws of its own."""
    if func is functional.scaled_dot_product_attention:
        return kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0) > 0
    if func is functional.multi_head_attention_forward:
        return args[10] > 0 and kwargs.get("training", True)
    if getattr(func, "__name__", "") in ("gru", "lstm", "rnn_tanh", "rnn_relu") and len(args) == 9:
        dropout, training = args[5:7]
        return isinstance(dropout, float) and dropout > 0 and training
    return False


class RowFunctions(TorchFunctionMode):
    """Context in which torch functions on nodes return what they would on one process; see the module."""

    def __init__(self, passing: ForwardPassing):
        super().__init__()
        self._passing, self._tables = passing, passing.tables
        self._positions: dict[int, torch.Tensor] = {}     # by id(); holding the tensors keeps ids unique
        self._instead: dict[Callable, Callable] = {
            functional.dropout: self._dropout, torch.dropout: self._dropout, torch.dropout_: self._dropout_in_place,
            functional.batch_norm: self._batch_norm, functional.embedding: self._embedding,
            NodeEmbedding.forward: self._node_embedding, torch.arange: self._arange,
            torch.rand: self._drawn, torch.randn: self._drawn, torch.rand_like: self._drawn,
            torch.randn_like: self._drawn, torch.bernoulli: self._bernoulli, torch.Tensor.bernoulli: self._bernoulli,
            torch.normal: self._normal, torch.Tensor.bernoulli_: self._refilled, torch.Tensor.normal_: self._refilled,
            torch.Tensor.uniform_: self._refilled, torch.Tensor.exponential_: self._refilled,
            nn.init.normal_: self._refilled, nn.init.uniform_: self._refilled}
        self._instead |= {func: self._refused for func in NODE_DRAWS}
        self._instead |= {func: self._made for func in MADE_OF_OTHERS}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._tables and func is not functional.embedding:
            args, kwargs = self._with_own_rows(func, args, kwargs)
        instead = self._instead.get(func)
        if instead is not None:
            out = instead(func, *args, **kwargs)
            self._passing.note(args, out)
            return out
        if func in REFUSED_DRAWS and kwargs.get("training", True):
            raise ConfigError(f"the model calls {func.__name__}; its draws would differ with the number of ranks; "
                              "use torch.nn.functional.dropout, which draws by the nodes' ids")
        if _drops_inside(func, args, kwargs):
            raise ConfigError(f"the model calls {func.__name__} with dropout, whose draws would differ with the number "
                              "of ranks; set its dropout to 0, and use torch.nn.functional.dropout before or after it, "
                              "which draws by the nodes' ids")
        out = func(*args, **kwargs)
        if self._positions and args and id(args[0]) in self._positions and func.__name__ in SAME_ELEMENTS:
            self._positions[id(out)] = out
        self._passing.note(args, out)
        return out

    # Tables of all nodes

    def _with_own_rows(self, func, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        # Functions that read rows get this rank's rows instead of tables.
        tables, name = self._tables, getattr(func, "__name__", "")
        found = [one for one in (*args, *kwargs.values()) if id(one) in tables or isinstance(one, (list, tuple))]
        if not found or name in READS:
            if name in MATRIX_READS:
                self._check_is_whole(name, *args)
            return args, kwargs
        first = args[0] if args else None
        if id(first) in tables:
            if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
                raise ConfigError(f"the model writes to {tables[id(first)]}, which has one row per node, in its "
                                  "forward; a rank would write its own nodes' rows only, so keep no rows between "
                                  "passes")
            if name in ("__getitem__", "index_select"):
                return self._indexed(name, args, kwargs)
            if name in OVER_ROWS and (kwargs["dim"] if "dim" in kwargs else args[1] if len(args) > 1 else None) not in (
                    1, -1):
                self._check_is_whole(name, first)
                return args, kwargs
        if name in PRODUCTS:
            self._check_is_whole(name, *args[1:])
            return (self._passing.own_rows(first), *args[1:]), kwargs
        own = self._passing.own_rows
        return tuple(map(own, args)), {key: own(value) for key, value in kwargs.items()}

    def _check_is_whole(self, name: str, *values: Any) -> None:
        """Raise ConfigError if a function that needs the whole table is given a table with only this rank's rows."""
        for value in values:
            if id(value) in self._passing.embeddings:
                raise ConfigError(f"the model takes {name.strip('_')} of all rows of {self._tables[id(value)]}, and a "
                                  "rank holds only the rows of its own nodes; look rows up by n_id, or use "
                                  "torch.nn.Embedding, which every rank holds as a whole")

    def _rows(self, table: torch.Tensor, numbers: Any) -> Any:
        """Row of each node in a table; in a table of all nodes, its node number."""
        embedding = self._passing.embeddings.get(id(table))
        return numbers if embedding is None else embedding.row_of(torch.as_tensor(numbers, device=table.device))

    def _indexed(self, name: str, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        # Positions and slices take this rank's rows; node numbers take the rows they name.
        table, *rest = args
        if name == "index_select":
            rest = [rest[0] if rest else kwargs["dim"], rest[1] if len(rest) > 1 else kwargs["index"]]
            return (table, rest[0], self._rows(table, self._numbers(rest[1], table))), {}
        index = rest[0] if isinstance(rest[0], tuple) else (rest[0],)
        first, others = index[0] if index else Ellipsis, index[1:]
        if first is Ellipsis or (isinstance(first, slice) and first.start in (None, 0) and first.step in (None, 1)
                                 and (first.stop is None or first.stop in self._passing.lengths)):
            return (self._passing.own_rows(table), (slice(None) if isinstance(first, slice) else first, *others)), {}
        return (table, (self._rows(table, self._numbers(first, table)), *others)), {}

    def _numbers(self, index: Any, table: Any) -> Any:
        if id(index) in self._positions:
            return self._passing.number_of(table)
        return self._passing.own_rows(index)

    def _embedding(self, func, index: torch.Tensor, weight: torch.Tensor, padding_idx=None, max_norm=None,
                   norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False):
        if max_norm is not None or scale_grad_by_freq:
            raise ConfigError(f"the model has an embedding with {'max_norm' if max_norm else 'scale_grad_by_freq'}, "
                              "which looks at the rows of one rank; leave it out")
        rows = self._rows(weight, self._numbers(index, weight))
        return func(rows, weight, padding_idx, None, norm_type, False, sparse)

    def _node_embedding(self, func, embedding: NodeEmbedding, index: torch.Tensor):
        return func(embedding, self._numbers(index, embedding.weight))

    def _arange(self, func, *args: Any, **kwargs: Any):
        out = func(*args, **kwargs)
        if len(out) in self._passing.lengths and not out.is_floating_point() and (len(args) == 1 or (
                len(out) > 1 and out[0] == 0 and out[1] == 1)):
            self._positions[id(out)] = out
        return out

    # Draws

    def _dropout(self, func, rows: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *,
                 train: bool | None = None):
        if not (training if train is None else train) or p == 0.0:
            return rows
        dropped = rows * 0.0 if p == 1.0 else self._dropped(rows, p)
        return rows.copy_(dropped) if inplace and dropped is not rows else dropped

    def _dropout_in_place(self, func, rows: torch.Tensor, p: float, train: bool):
        return self._dropout(func, rows, p, train, True)

    def _dropped(self, rows: torch.Tensor, probability: float) -> torch.Tensor:
        graph = self._passing.graph
        if rows.dim() == 3 and len(rows) == 1 and rows.shape[1] == graph.num_inner != 1:
            return self._dropped(rows[0], probability)[None]      # attention to all nodes has rows of the one graph
        key = graph.next_dropout(probability)
        if key is None:
            return rows
        everywhere = self._passing.all_rows_of(rows)
        if everywhere is not None:
            # Halo rows of the input are here: the same draws zero the same values as on their owners, so nothing is
            # sent.
            all_rows = dropout(everywhere, probability, self._passing.ids_of(everywhere), key)
            dropped = all_rows[:len(rows)]
            self._passing.keep_constant(dropped, all_rows)
            return dropped
        flat = flat_rows(rows)
        ids = self._passing.ids_of(rows)
        if ids is None:
            raise ConfigError(f"the model drops out a tensor of shape {tuple(rows.shape)}, and its rows are neither "
                              f"this rank's {graph.num_inner} nodes nor the edges of a message, so draws would differ "
                              "with the number of ranks; let nodes be the first dimension")
        return dropout(flat, probability, ids, key).view_as(rows)

    def _uniform(self, like: torch.Tensor) -> torch.Tensor | None:
        ids = self._passing.ids_of(like) if like.dim() else None
        if ids is None:
            return None
        key, flat = self._passing.graph.next_draw(), flat_rows(like.detach())
        ones, drawn = torch.ones_like(flat, dtype=torch.float32), torch.zeros_like(flat, dtype=torch.float32)
        for bit in range(DRAW_BITS):      # each bit is a dropout of one half, under a key of its own
            drawn += (dropout(ones, 0.5, ids, CounterKey(*key[:4], bit + 1)) > 0) * 2.0 ** (-1 - bit)
        return (drawn + 2.0 ** (-2 - DRAW_BITS)).view_as(like)

    def _drawn(self, func, *args: Any, **kwargs: Any):
        # If torch itself draws, its generator advances on all ranks alike.
        given = {name: value for name, value in kwargs.items() if name != "generator"}
        out = (torch.empty_like if func in (torch.rand_like, torch.randn_like) else torch.empty)(*args, **given)
        self._passing.note(args, out)
        uniform = self._uniform(out)
        if uniform is None:
            return func(*args, **kwargs)
        values = _normal_of(uniform) if func in (torch.randn, torch.randn_like) else uniform
        return values.to(out.dtype).requires_grad_(out.requires_grad)

    def _bernoulli(self, func, rows: torch.Tensor, p: Any = None, **kwargs: Any):
        uniform = self._uniform(rows)
        if uniform is None:
            return func(rows, **kwargs) if p is None else func(rows, p, **kwargs)
        return (uniform < (rows if p is None else p)).to(rows.dtype)

    def _normal(self, func, mean: Any = 0.0, std: Any = 1.0, size: Any = None, **kwargs: Any):
        out = torch.as_tensor(mean) + torch.as_tensor(std) if size is None else torch.empty(size)
        uniform = self._uniform(out)
        if uniform is None:
            return func(mean, std, **kwargs) if size is None else func(mean, std, size, **kwargs)
        return (_normal_of(uniform) * std + mean).to(out.dtype)

    def _refilled(self, func, *args: Any, **kwargs: Any):
        rows = args[0] if args else kwargs["tensor"]  # torch.nn.init names all its arguments
        uniform = self._uniform(rows)
        if uniform is None:
            return func(*args, **kwargs)
        named = {
            _FILL_NAMES.get(name, name): value for name, value in kwargs.items() if name not in ("tensor", "generator")
        }
        with torch.no_grad():
            return rows.copy_(_FILL[func.__name__](uniform, *args[1:], **named))

    def _made(self, func, *args: Any, **kwargs: Any):
        given = next((one for one in (*args, *kwargs.values()) if isinstance(one, SealedEdges)), None)
        return func(*args, **kwargs) if given is None else SealedEdges.__torch_function__(func, (), args, kwargs)

    def _refused(self, func, *args: Any, **kwargs: Any):
        out = func(*args, **kwargs)
        first = out[0] if isinstance(out, tuple) else out
        if first.dim() and self._passing.ids_of(first) is not None:
            raise ConfigError(f"the model calls {func.__name__} for {len(first)} rows, this rank's nodes or edges, and "
                              "these draws would differ with the number of ranks; use dropout, rand, randn or "
                              "bernoulli, which draw by the nodes' ids")
        return out

    def _batch_norm(self, func, rows: torch.Tensor, *more, **named):
        passing, given = self._passing, _BatchNorm(*more, **named)
        if not given.training or passing.graph.is_trial:
            if given.running_mean is None:
                given = given._replace(running_mean=rows.new_zeros(rows.shape[1]),
                                       running_var=rows.new_ones(rows.shape[1]))
            return functional.batch_norm(rows, *given._replace(training=False))
        if rows.dim() != 2 or not (passing.is_of_nodes(rows) or passing.is_of_edges(rows)):
            raise ConfigError(f"the model normalizes {tuple(rows.shape)} over a batch, which can't be distributed: "
                              f"this rank has {passing.graph.num_inner} nodes; normalize rows of nodes, (nodes, "
                              "columns), or of edges")
        if passing.replay is not None:      # the first run already updated them
            given = given._replace(running_mean=None, running_var=None)
        return batch_norm(passing.graph, rows, given.running_mean, given.running_var, given.weight, given.bias,
                          given.momentum, given.eps)


def _normal_of(uniform: torch.Tensor) -> torch.Tensor:
    return torch.special.ndtri(uniform.double())


_FILL_NAMES = {"from": "low", "to": "high", "a": "low", "b": "high"}
_FILL: dict[str, Callable[..., torch.Tensor]] = {
    "bernoulli_": lambda uniform, p=0.5: uniform < p,
    "normal_": lambda uniform, mean=0.0, std=1.0: _normal_of(uniform) * std + mean,
    "uniform_": lambda uniform, low=0.0, high=1.0: uniform * (high - low) + low,
    "exponential_": lambda uniform, lambd=1.0: -uniform.log() / lambd,
}
