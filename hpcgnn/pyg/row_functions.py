"""RowFunctions: torch's functions that look at all nodes, or draw, as they are over several ranks."""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hpcgnn.errors import ConfigError
from hpcgnn.ops.pointwise import dropout
from hpcgnn.pyg.batch_norm import batch_norm
from hpcgnn.pyg.passing import ForwardPassing

DRAWING = (functional.alpha_dropout, functional.feature_alpha_dropout, functional.dropout1d, functional.dropout2d,
           functional.dropout3d, functional.rrelu, functional.gumbel_softmax)


class RowFunctions(TorchFunctionMode):
    """Within this block, dropout drops by the ids of nodes or edges, and batch normalization is over all ranks.

    Parameters
    ----------
    passing : ForwardPassing
    """

    def __init__(self, passing: ForwardPassing):
        super().__init__()
        self._passing = passing

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Call a function, or what stands for it."""
        kwargs = kwargs or {}
        if func is functional.dropout:
            return self._dropout(*args, **kwargs)
        if func is functional.batch_norm:
            return self._batch_norm(*args, **kwargs)
        if func in DRAWING and kwargs.get("training", True):
            raise ConfigError(f"the model calls {func.__name__}, whose draws would differ with the number of ranks; "
                              "use torch.nn.functional.dropout, which draws by the nodes' ids")
        return func(*args, **kwargs)

    def _dropout(self, rows: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False):
        if not training or p == 0.0:
            return rows
        dropped = rows * 0.0 if p == 1.0 else self._dropped(rows, p)
        return rows.copy_(dropped) if inplace and dropped is not rows else dropped

    def _dropped(self, rows: torch.Tensor, probability: float) -> torch.Tensor:
        graph = self._passing.graph
        key = graph.next_dropout(probability)
        if key is None:
            return rows
        everywhere = self._passing.all_rows_of(rows)
        if everywhere is not None:
            # Halo rows of the input are here: what their owners drop is dropped here, and nothing has to be sent.
            all_rows = dropout(everywhere, probability, graph.ids(0, graph.num_rows), key)
            dropped = all_rows[:graph.num_inner]
            self._passing.keep_constant(dropped, all_rows)
            return dropped
        flat = rows.reshape(len(rows), -1)
        return dropout(flat, probability, self._ids_of(rows), key).view_as(rows)

    def _ids_of(self, rows: torch.Tensor):
        """Return (n,) int64 ids of what the rows belong to: edges while messages pass, else nodes."""
        passing, graph = self._passing, self._passing.graph
        if passing.passed is not None and len(rows) == passing.passed.shape[1]:
            return passing.edges.draw_ids(passing.passed).cpu().numpy()
        if len(rows) in (graph.num_inner, graph.num_rows):
            return graph.ids(0, len(rows))
        raise ConfigError(f"the model drops out {len(rows)} rows, which are neither this rank's {graph.num_inner} "
                          "nodes nor the edges of a message, so its draws would differ with the number of ranks")

    def _batch_norm(self, rows: torch.Tensor, running_mean=None, running_var=None, weight=None, bias=None,
                    training: bool = False, momentum: float = 0.1, eps: float = 1e-5):
        passing = self._passing
        if not training:
            return functional.batch_norm(rows, running_mean, running_var, weight, bias, False, momentum, eps)
        is_of_edges = passing.passed is not None and len(rows) == passing.passed.shape[1]
        if rows.dim() != 2 or (len(rows) != passing.graph.num_inner and not is_of_edges):
            raise ConfigError(f"the model normalizes {tuple(rows.shape)} over a batch, which can't be distributed: "
                              f"this rank has {passing.graph.num_inner} nodes; normalize rows of nodes, (nodes, "
                              "columns)")
        return batch_norm(passing.graph, rows, running_mean, running_var, weight, bias, momentum, eps)
