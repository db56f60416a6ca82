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
SCALARS = ("dim", "num_bits", "interval")
ARRAYS = ("stream", "bitmap", "index_bit", "index_values")
ATTRIBUTES = (*SCALARS, "lengths", "is_signed")


def store_packages(file: h5py.File, blocks: Iterable[np.ndarray], dim: int, bits: int, is_signed: bool) -> None:
    """Quantize and encode blocks of rows, each (n, dim) float32; memory: one block and the packages."""
    writer = PackageWriter(dim, PackageFormat(is_signed=is_signed))
    scales = [np.empty(0, np.float32)]
    for rows in blocks:
        codes, scale, width = quantize_features(rows, bits, writer.format)
        writer.append(codes, width)
        scales.append(scale)
    packed = writer.finish()
    group = file.create_group(GROUP)
    for name in SCALARS:
        group.attrs[name] = getattr(packed, name)
    group.attrs["lengths"] = np.array(packed.format.lengths, np.int64)
    group.attrs["is_signed"] = packed.format.is_signed
    for name in ARRAYS:
        array = getattr(packed, name)
        # Bitmaps of sparse rows are mostly zero bytes, and longer than all else.
        how = {"compression": "lzf"} if name == "bitmap" and array.size else {}
        group.create_dataset(name, data=array, **how)
    group["scale"] = np.concatenate(scales)


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
    group = file[GROUP]
    for name, held in ((name, held) for names, held in ((ATTRIBUTES, group.attrs), ((*ARRAYS, "scale"), group))
                       for name in names):
        if name not in held:
            raise ShardError(f"{path} has no {GROUP}/{name}; {AGAIN}")
    try:
        form = PackageFormat(tuple(group.attrs["lengths"].tolist()), bool(group.attrs["is_signed"]))
        packed = PackedRows(form, **{name: int(group.attrs[name]) for name in SCALARS},
                            **{name: group[name][()] for name in ARRAYS})
    except KernelError as error:
        raise ShardError(f"{path}: {error}; {AGAIN}") from error
    scale = group["scale"][()]
    if (packed.num_rows, packed.dim) != (num_rows, dim) or (scale.dtype, scale.shape) != (np.float32, (num_rows,)):
        raise ShardError(f"{path} has packages of {packed.num_rows} rows of {packed.dim} columns and {len(scale)} "
                         f"scales, expected {num_rows} rows of {dim} columns; {AGAIN}")
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
