"""Files of Adaptive-Packages: the codes that each layer of an integer model reads, one sealed file per part.

`part-RRRR.h5` has groups `layer-0`, `layer-1`, .. as `hpcgnn.lowbit.package_shards` lays them out, and
dataset `node_id`, (num_rows,) int64, the global ids of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

from hpcgnn.errors import ShardError
from hpcgnn.lowbit.package import PackagedRows
from hpcgnn.lowbit.package_shards import read_packages_of, write_packages
from hpcgnn.shards.schema import check_layout, holds
from hpcgnn.shards.sealed import open_sealed, write_sealed

KIND, VERSION = "activations", 2
ADVICE = "run hpcgnn infer --packages again"
Layers = Sequence[tuple[PackagedRows, np.ndarray]]     # packages of all rows, and one scale per row


def activation_path(folder: Path, part: int) -> Path:
    return folder / f"part-{part:04d}.h5"


def write_activations(folder: Path, part: int, node_id: np.ndarray, layers: Layers) -> None:
    """Write one part: node_id, (num_rows,) int64, and per layer packages with scales; ShardError on a full disk."""
    def fill(file: h5py.File) -> None:
        file["node_id"] = node_id
        for number, (packed, scale) in enumerate(layers):
            write_packages(file.create_group(f"layer-{number}"), packed, scale)

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ShardError(f"{folder} can't be made: {error.strerror}; choose another folder") from error
    write_sealed(activation_path(folder, part), KIND, VERSION, fill)


def read_activations(folder: Path, part: int) -> tuple[np.ndarray, list[tuple[PackagedRows, np.ndarray]]]:
    """Read the rows' global ids, and packages and scales by layer; ShardError for a missing or damaged file."""
    path = activation_path(folder, part)
    with open_sealed(path, KIND, VERSION, advice=ADVICE) as file:
        if not holds(file, "node_id"):
            raise ShardError(f"{path} has no node_id; {ADVICE}")
        check_layout(file, path, {"node_id": (np.int64, (file["node_id"].size,))}, ADVICE)
        node_id = file["node_id"][()]
        names = [f"layer-{number}" for number in range(len(file) - 1)]
        for name in names:
            if not holds(file, name):
                raise ShardError(f"{path} has no {name}; {ADVICE}")
        layers = [read_packages_of(file[name], name, path, ADVICE) for name in names]
    for name, (packed, _) in zip(names, layers, strict=True):
        if packed.num_rows != len(node_id):
            raise ShardError(f"{path} has {packed.num_rows} rows of {name} and {len(node_id)} ids; {ADVICE}")
    return node_id, layers
