"""Feature rows as a group of an HDF5 file: codes as Adaptive-Package, and a scale per row.

`PackageFeatures` is the format that `hpcgnn.shards.feature_formats` calls "package".

The codes that each layer of an integer model reads are one sealed file per part: `part-RRRR.h5` has groups `layer-0`,
`layer-1`, .. of packages, and dataset `node_id`, (num_rows,) int64, the global ids of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.errors import KernelError, ShardError
from hpcgnn.lowbit.package import MAX_INTERVAL, PackagedRows, PackageFormat, PackageWriter, layout_of
from hpcgnn.lowbit.package_features import check_feature_bits, quantize_features
from hpcgnn.shards.feature_formats import PACKAGE
from hpcgnn.shards.features import FeatureStorage, has_negative_features
from hpcgnn.shards.folder import find_shard
from hpcgnn.shards.reader import open_part
from hpcgnn.shards.schema import PACKAGES, GraphInfo, Layout, check_layout, holds, integer_of, part_file
from hpcgnn.shards.sealed import AGAIN, open_sealed, write_sealed
from hpcgnn.shards.structure import is_finite

KIND, VERSION = "activations", 2
ADVICE = "run hpcgnn infer --packages again"
Layers = Sequence[tuple[PackagedRows, np.ndarray]]     # packages of all rows, and a scale a row
SCALARS = ("num_rows", "dim", "num_bits", "num_position_bits", "interval")
ARRAYS = tuple(layout_of(0, 0, 0, 1))
ATTRIBUTES = (*SCALARS, "lengths", "is_signed")


class PackageFeatures:
    """Feature rows of a part, rounded to at most `bits` bits and stored as packages."""

    @staticmethod
    def choose(dataset: GraphDataset, form: str, bits: int) -> FeatureStorage:
        is_signed = has_negative_features(dataset)
        check_feature_bits(bits, is_signed)
        return FeatureStorage(form, bits=bits, is_signed=is_signed)

    @staticmethod
    def store(file: h5py.File, blocks: Iterable[np.ndarray], shape: tuple[int, int], storage: FeatureStorage) -> None:
        # Memory holds one block and the packages.
        writer = PackageWriter(shape[1], PackageFormat(is_signed=storage.is_signed))
        scales = [np.empty(0, np.float32)]
        for rows in blocks:
            codes, scale, width = quantize_features(rows, storage.bits, writer.format)
            writer.append(codes, width)
            scales.append(scale)
        write_packages(file.create_group(PACKAGES), writer.finish(), np.concatenate(scales))

    @staticmethod
    def load(file: h5py.File, path: Path, shape: tuple[int, int]) -> np.ndarray:
        return floats_of(*load_packages(file, path, *shape), path)


def floats_of(packed: PackagedRows, scale: np.ndarray, path: Path) -> np.ndarray:
    """Rows of `load_packages` as float32; ShardError if codes are damaged."""
    try:
        return packed.values(scale)
    except KernelError as error:
        raise ShardError(f"{path}: {error}; {AGAIN}") from error


def read_packages(folder: Path, part: int, info: GraphInfo) -> tuple[PackagedRows, np.ndarray]:
    """Read the features of one part as they are stored: packages, and scale (num_inner,) float32.

    Raises ShardError if features are not packages; otherwise as `hpcgnn.shards.reader.read_partition`.
    """
    if info.feature_dtype != PACKAGE:
        raise ShardError(f"{folder} stores {info.feature_dtype} features, expected packages; "
                         "run hpcgnn preprocess --feature-format package")
    with open_part(folder, part, info) as file:
        path = find_shard(part_file(folder, part))
        return load_packages(file, path, info.statistics[part].num_inner, info.num_features)


def write_packages(group: h5py.Group, packed: PackagedRows, scale: np.ndarray) -> None:
    """Store packages and the scale of each row, (num_rows,) float32, in an empty group."""
    for name in SCALARS:
        group.attrs[name] = getattr(packed, name)
    group.attrs["lengths"] = np.array(packed.format.lengths, np.int64)
    group.attrs["is_signed"] = packed.format.is_signed
    for name in ARRAYS:
        group[name] = getattr(packed, name)
    group["scale"] = scale


def load_packages(file: h5py.File, path: Path, num_rows: int, dim: int) -> tuple[PackagedRows, np.ndarray]:
    """Return packages of a part's rows, not read yet, and scale (num_rows,) float32.

    Raises ShardError if something is missing, or shapes do not fit.
    """
    packed, scale = read_packages_of(file[PACKAGES], PACKAGES, path, AGAIN)
    if (packed.num_rows, packed.dim) != (num_rows, dim):
        raise ShardError(f"{path} has packages of {packed.num_rows} rows of {packed.dim} columns, expected {num_rows} "
                         f"rows of {dim} columns; {AGAIN}")
    return packed, scale


def read_packages_of(group: h5py.Group, name: str, path: Path, advice: str) -> tuple[PackagedRows, np.ndarray]:
    """Open what `write_packages` stored in a group called `name`; packages are not read yet.

    Raises ShardError, which ends with `advice`, if something is missing, or shapes do not fit.
    """
    for one in ATTRIBUTES:
        if one not in group.attrs:
            raise ShardError(f"{path} has no {name}/{one}; {advice}")
    scalars: dict[str, Any] = {scalar: integer_of(group, path, scalar, advice) for scalar in SCALARS}
    if not 1 <= scalars["interval"] <= MAX_INTERVAL:
        raise ShardError(f"{path} has packages with an index entry every {scalars['interval']} rows; {advice}")
    layout: Layout = {**layout_of(*(scalars[name] for name in SCALARS if name != "dim")),
                      "scale": (np.float32, (scalars["num_rows"],))}
    check_layout(group, path, layout, advice)
    lengths, is_signed = group.attrs["lengths"], group.attrs["is_signed"]
    if getattr(lengths, "shape", None) != (3,) or lengths.dtype != np.int64 or not isinstance(is_signed, np.bool_):
        raise ShardError(f"{path} has lengths {lengths} and is_signed {is_signed} of {name}, expected three integers "
                         f"and a bool; {advice}")
    try:
        packed = PackagedRows(PackageFormat(tuple(lengths.tolist()), bool(is_signed)), **scalars,
                              **{array: group[array][()] for array in ARRAYS})
    except KernelError as error:
        raise ShardError(f"{path}: {error}; {advice}") from error
    scale = group["scale"][()]
    if not (is_finite(scale) and (scale >= 0).all()):
        raise ShardError(f"{path} has scales of {name} that are negative, NaN or infinite; {advice}")
    return packed, scale


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
