"""Feature rows of a part as group "packages" of its file: codes as Adaptive-Package and a scale a row.

How rows become codes and packages is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from hpcgnn.errors import KernelError, ShardError
from hpcgnn.quantized.package import PackageFormat, PackedRows
from hpcgnn.quantized.package_features import quantize_features
from hpcgnn.quantized.package_writer import PackageWriter
from hpcgnn.shards.sealed import AGAIN

GROUP = "packages"
SCALARS = ("num_rows", "dim", "num_bits", "num_position_bits", "interval")
ARRAYS = ("stream", "positions", "index_bit", "index_values", "index_position")
ATTRIBUTES = (*SCALARS, "lengths", "is_signed")


def store_packages(file: h5py.File, blocks: Iterable[np.ndarray], dim: int, bits: int, is_signed: bool) -> None:
    """Quantize and encode blocks of rows, each (n, dim) float32; memory: one block and the packages."""
    writer = PackageWriter(dim, PackageFormat(is_signed=is_signed))
    scales = [np.empty(0, np.float32)]
    for rows in blocks:
        codes, scale, width = quantize_features(rows, bits, writer.format)
        writer.append(codes, width)
        scales.append(scale)
    write_packages(file.create_group(GROUP), writer.finish(), np.concatenate(scales))


def write_packages(group: h5py.Group, packed: PackedRows, scale: np.ndarray) -> None:
    """Store packages and the scale of each row, (num_rows,) float32, in an empty group."""
    for name in SCALARS:
        group.attrs[name] = getattr(packed, name)
    group.attrs["lengths"] = np.array(packed.format.lengths, np.int64)
    group.attrs["is_signed"] = packed.format.is_signed
    for name in ARRAYS:
        group[name] = getattr(packed, name)
    group["scale"] = scale


def load_packages(file: h5py.File, path: Path, num_rows: int, dim: int) -> tuple[PackedRows, np.ndarray]:
    """Read the packages of a part.

    Returns
    -------
    packed : PackedRows       of num_rows rows of dim columns; its packages are not read yet
    scale : (num_rows,) float32

    Raises
    ------
    ShardError                something is missing, or shapes do not fit
    """
    packed, scale = read_packages_of(file[GROUP], GROUP, path, AGAIN)
    if (packed.num_rows, packed.dim) != (num_rows, dim):
        raise ShardError(f"{path} has packages of {packed.num_rows} rows of {packed.dim} columns, expected {num_rows} "
                         f"rows of {dim} columns; {AGAIN}")
    return packed, scale


def read_packages_of(group: h5py.Group, name: str, path: Path, advice: str) -> tuple[PackedRows, np.ndarray]:
    """What `write_packages` stored in a group called `name`; packages are not read yet.

    Raises
    ------
    ShardError                something is missing, or shapes do not fit; ends with `advice`
    """
    for wanted, held in ((wanted, held) for names, held in ((ATTRIBUTES, group.attrs), ((*ARRAYS, "scale"), group))
                         for wanted in names):
        if wanted not in held:
            raise ShardError(f"{path} has no {name}/{wanted}; {advice}")
    try:
        form = PackageFormat(tuple(group.attrs["lengths"].tolist()), bool(group.attrs["is_signed"]))
        packed = PackedRows(form, **{scalar: int(group.attrs[scalar]) for scalar in SCALARS},
                            **{array: group[array][()] for array in ARRAYS})
    except KernelError as error:
        raise ShardError(f"{path}: {error}; {advice}") from error
    scale = group["scale"][()]
    if (scale.dtype, scale.shape) != (np.float32, (packed.num_rows,)):
        raise ShardError(f"{path} has {len(scale)} scales for {packed.num_rows} rows of {name}; {advice}")
    return packed, scale


def load_feature_rows(file: h5py.File, path: Path, num_rows: int, dim: int) -> np.ndarray:
    """The features that the packages stand for, (num_rows, dim) float32.

    Raises
    ------
    ShardError                as of load_packages, or a package is malformed
    """
    packed, scale = load_packages(file, path, num_rows, dim)
    try:
        return packed.values(scale)
    except KernelError as error:
        raise ShardError(f"{path}: {error}; {AGAIN}") from error
