"""`import_dgl` imports DGL's graphs and products without its sampler library, which needs one version of torch."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import numpy as np
import torch

from hpcgnn.errors import ConfigError

SAMPLER = "dgl.graphbolt"


class _Absent(ModuleType):
    __path__ = ()  # type: ignore[assignment]  # a package without a folder; ModuleType wants a list that may change
    __file__ = None

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments, **named):
        return self

    def __mro_entries__(self, bases):
        return (object,)


def import_dgl() -> ModuleType:
    """Import the module `dgl`, on PyTorch. Raises ConfigError, with the reason, where it can't be imported."""
    os.environ.setdefault("DGLBACKEND", "pytorch")    # otherwise DGL asks, and writes a file to the home folder
    # DGL loads a library that is built for one version of torch, and refuses to start with any other.
    sys.modules.setdefault(SAMPLER, _Absent(SAMPLER))
    try:
        import dgl
        import dgl.ops
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(f"DGL is installed but can't be imported ({error}); install what it misses, "
                          "or leave dgl out of --peer") from error
    return dgl


def make_graph(indptr: np.ndarray, indices: np.ndarray, model: str) -> Any:
    """The graph with both sparse formats made beforehand; for GCN and GAT with self-loops, as DGL needs them."""
    dgl, target = import_dgl(), np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
    graph = dgl.graph((torch.from_numpy(indices), torch.from_numpy(target)), num_nodes=len(indptr) - 1,
                      idtype=torch.int32)
    graph = (dgl.add_self_loop(graph) if model in ("gcn", "gat") else graph).formats(
        ["csr", "csc", *["coo"] * (model == "gat")])      # attention is computed edge by edge
    graph.create_formats_()
    return graph
