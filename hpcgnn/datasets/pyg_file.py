"""`pyg:FILE`: the tensors of a PyTorch Geometric graph, saved as a dict. Pickles of objects are never loaded."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.given import finish_dataset
from hpcgnn.datasets.limits import check_file
from hpcgnn.datasets.objects.choices import Choices
from hpcgnn.datasets.objects.pyg import graph_of_data
from hpcgnn.datasets.objects.pyg_graphs import are_graphs, is_graph
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.spec import choice_of, ignored_of, split_of, split_path
from hpcgnn.errors import DatasetError

SETTINGS = ("label", "features", "weight", "id", "split", "ignore")
WAY_OUT = ("in Python, save its tensors by torch.save(data.to_dict(), FILE), or pass the object itself to "
           "hpcgnn.preprocess(data, ...)")


def load_pyg(rest: str, options: SourceOptions) -> GraphDataset:
    """Load "FILE[,label=KEY][,features=KEY][,weight=KEY][,id=KEY][,split=KEY or number][,ignore=...]", torch.save of
    Data.to_dict(); the dataset is named after the file.

    Raises
    ------
    DatasetError      a file that is missing, damaged, holds objects, or no graph
    """
    file, settings = split_path(rest, SETTINGS, "a pyg: source")
    path = Path(file)
    check_file(path)
    try:
        import torch

        with _known_classes(torch):
            held = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise DatasetError(f"{path} does not exist; expected a file of torch.save") from None
    except UnpicklingError:
        raise DatasetError(f"{path} is a pickle of objects, or damaged; a pickle can run code when it is loaded, so it "
                           f"is not; {WAY_OUT}") from None
    except Exception as error:  # A damaged file can raise anything.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(f"{path} can't be read as a file of torch.save ({reason}); it is damaged or of another "
                           "format") from None
    # PyG's datasets save the tensors, and where each of several graphs begins.
    if not (is_graph(held) or (isinstance(held, list | tuple) and are_graphs(held))):
        raise DatasetError(f"{path} holds a {type(held).__name__} without edge_index; {WAY_OUT}")
    choices = Choices(
        features=False if options.features == "structural" else choice_of(settings.get("features")),
        labels=choice_of(settings.get("label")), edge_weight=choice_of(settings.get("weight")),
        node_ids=choice_of(settings.get("id")), splits=split_of(settings.get("split")),
        ignore=ignored_of(settings.get("ignore")))
    return finish_dataset(graph_of_data(held, choices, path.stem), options)


class _Class:
    """Stands for PyG's Data, which its datasets name beside the tensors, so that nothing of PyG is imported."""


def _known_classes(torch: Any) -> AbstractContextManager:
    """Let a file name the class of its graphs; before torch 2.5 such a file is refused."""
    known = getattr(torch.serialization, "safe_globals", None)
    return nullcontext() if known is None else known([(_Class, "torch_geometric.data.data.Data")])
