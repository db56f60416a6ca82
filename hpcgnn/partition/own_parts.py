"""Parts that come from elsewhere: the part that owns each node, as an array or a file has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.datasets.columns import as_numbers
from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.ids import NodeRows
from hpcgnn.datasets.node_files import read_node_file
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.errors import ConfigError
from hpcgnn.partition.choices import PARTITIONERS


def own_parts(partitioner: Any, owner: Any = None) -> Any:
    """Return the array or the path of a file that says the part of each node, or None where a partitioner is named.

    Parameters
    ----------
    partitioner : one of PARTITIONERS, or what `owner` may be
    owner : array, path or None

    Raises
    ------
    ConfigError      neither a partitioner nor a file
    """
    given = partitioner if owner is None else owner
    if isinstance(given, Path) or (isinstance(given, str) and given not in PARTITIONERS):
        if not Path(given).is_file():
            raise ConfigError(f"unknown partitioner {str(given)!r}; choose one of {', '.join(PARTITIONERS)}, or give a "
                              "file with the part of each node")
        return Path(given)
    return None if isinstance(given, str) else given


def read_own_parts(given: Any, dataset: GraphDataset, num_parts: int) -> np.ndarray:
    """Return the part of each node, (num_nodes,) int32.

    Parameters
    ----------
    given : Path, or (num_nodes,) column of any library
        A file is .npy or text with a part a line, as METIS writes it, in the order of nodes, or with a node's id before

    Raises
    ------
    ConfigError      another number of nodes, a part that is none of 0 .. num_parts - 1, or a part without a node
    DatasetError     a file that is missing or malformed, an id that no node has
    """
    what = f"the parts of nodes in {given}" if isinstance(given, Path) else "the parts of nodes"
    row = None
    if isinstance(given, Path):
        file = read_node_file(given, np.float64, SourceOptions())
        given = np.asarray(file.values) if hasattr(file.values, "shape") else file.values
        if file.ids is not None:
            NodeRows(file.ids, str(file.path))      # refuses an id that the file names twice
            rows = NodeRows(np.arange(dataset.num_nodes) if dataset.node_name is None else dataset.node_name,
                            dataset.name)
            row = rows.find(file.ids, f"a row of {file.path.name} that leads")
    part = as_numbers(given, what)
    part = part[:, 0] if part.ndim == 2 and part.shape[1] == 1 else part
    if part.shape != (dataset.num_nodes,):
        raise ConfigError(f"{what} have shape {part.shape}, and {dataset.name} has {dataset.num_nodes} nodes; expected "
                          "a part for each")
    if row is not None:
        ordered = np.empty_like(part)
        ordered[row] = part
        part = ordered
    is_bad = ~((part >= 0) & (part < num_parts) & (np.floor(part) == part))
    if is_bad.any():
        node = int(np.argmax(is_bad))
        from_one = "; these count from 1, so subtract 1" * bool(part.min() == 1 and part.max() == num_parts)
        raise ConfigError(f"{what} put node {dataset.name_of(node)} into part {part[node]:g}; expected whole numbers "
                          f"from 0 to {num_parts - 1}, as parts is {num_parts}{from_one}")
    count = np.bincount(part.astype(np.int64), minlength=num_parts)
    if (count == 0).any():
        raise ConfigError(f"{what} leave part {int(np.argmin(count))} of {num_parts} without a node; expected at least "
                          "one in each")
    return part.astype(np.int32)
