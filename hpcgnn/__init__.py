"""hpcgnn: distributed full-graph training of graph neural networks with bit-packed messages.

    import hpcgnn
    graph = hpcgnn.open("shards/cora-p2")
    run = hpcgnn.fit(model, graph, method="sylvie", epochs=200, out="runs/mine")

Public names are listed here, in `__all__`; all else may change between versions. A name is imported when it is first
used, so that `import hpcgnn` takes no time. The rooms of the package are described in ARCHITECTURE.md.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcgnn.errors import HpcgnnError as HpcgnnError
    from hpcgnn.errors import Interrupted as Interrupted
    from hpcgnn.library.fit import fit as fit
    from hpcgnn.library.graph import Graph as Graph
    from hpcgnn.library.graph import open as open
    from hpcgnn.library.launch import launch as launch
    from hpcgnn.library.preprocess import preprocess as preprocess
    from hpcgnn.library.run import Run as Run
    from hpcgnn.library.run import open_run as open_run
    from hpcgnn.nn.node_embedding import NodeEmbedding as NodeEmbedding
    from hpcgnn.pyg.distribute import DistributedModel as DistributedModel
    from hpcgnn.pyg.distribute import distribute as distribute
    from hpcgnn.results.plain import load_model as load_model
    from hpcgnn.training.callbacks import Callback as Callback
    from hpcgnn.training.trackers import MLflow as MLflow
    from hpcgnn.training.trackers import TensorBoard as TensorBoard
    from hpcgnn.training.trackers import WandB as WandB

__version__ = "0.3.0"
_HOMES = {
    "Callback": "hpcgnn.training.callbacks",
    "DistributedModel": "hpcgnn.pyg.distribute",
    "Graph": "hpcgnn.library.graph",
    "HpcgnnError": "hpcgnn.errors",
    "Interrupted": "hpcgnn.errors",
    "MLflow": "hpcgnn.training.trackers",
    "NodeEmbedding": "hpcgnn.nn.node_embedding",
    "Run": "hpcgnn.library.run",
    "TensorBoard": "hpcgnn.training.trackers",
    "WandB": "hpcgnn.training.trackers",
    "distribute": "hpcgnn.pyg.distribute",
    "fit": "hpcgnn.library.fit",
    "launch": "hpcgnn.library.launch",
    "load_model": "hpcgnn.results.plain",
    "open": "hpcgnn.library.graph",
    "open_run": "hpcgnn.library.run",
    "preprocess": "hpcgnn.library.preprocess",
}
__all__ = [
    "Callback",
    "DistributedModel",
    "Graph",
    "HpcgnnError",
    "Interrupted",
    "MLflow",
    "NodeEmbedding",
    "Run",
    "TensorBoard",
    "WandB",
    "distribute",
    "fit",
    "launch",
    "load_model",
    "open",
    "open_run",
    "preprocess",
]


def _end_all_ranks(kind, error, traceback, show=sys.excepthook) -> None:
    """Show an error that was not caught before `hpcgnn.open`, and end the ranks that wait there for this one."""
    show(kind, error, traceback)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1:
        sys.stderr.flush()
        mpi.COMM_WORLD.Abort(1)


# Restored by `open` before it installs its own hook.
_end_all_ranks.show = sys.excepthook  # type: ignore[attr-defined]  # functions take attributes
sys.excepthook = _end_all_ranks


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'hpcgnn' has no attribute {name!r}")
    if name != "launch" and _HOMES[name].startswith(("hpcgnn.library", "hpcgnn.nn", "hpcgnn.pyg", "hpcgnn.training")):
        import_module("hpcgnn.run.launch")      # launch prepares MPI, so this import comes before any other of MPI
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
