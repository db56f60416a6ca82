"""Read shards: what the whole graph is, and one part. Nothing is written or repaired here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from hpcgnn.datasets.options import ProgressTask, silent
from hpcgnn.errors import ShardError
from hpcgnn.partition.partition import Partition
from hpcgnn.quantized.package import PackedRows
from hpcgnn.shards import packages, schema
from hpcgnn.shards.records import ARRAYS, ATTRIBUTES, load_info
from hpcgnn.shards.schema import FORMAT_VERSION, GraphInfo
from hpcgnn.shards.sealed import AGAIN, open_sealed


def read_graph_info(folder: Path) -> GraphInfo:
    """Read what graph.h5 says of the whole graph.

    Raises
    ------
    ShardError                graph.h5 is missing, truncated, damaged, incomplete or of another format
    """
    path = schema.graph_file(folder)
    with open_sealed(path, schema.GRAPH_KIND, FORMAT_VERSION) as file:
        _check_content(file, path, ATTRIBUTES, ARRAYS)
        return load_info(file)


def read_partition(folder: Path, part: int, num_parts: int, info: GraphInfo | None = None,
                   expands_packages: bool = True) -> Partition:
    """Read one part.

    Parameters
    ----------
    num_parts : int           parts that the caller runs with, one a rank
    info : GraphInfo          of this folder, where the caller has read it: graph.h5, which is as long as the graph has
                              nodes, is then not read again
    expands_packages : bool   False leaves features that are packages out, (num_inner, 0), for `read_packages` to read

    Raises
    ------
    ShardError                the graph was cut into another number of parts; a file is missing, truncated, damaged,
                              incomplete, of another format or from another run of preprocess than graph.h5
    """
    info = info or read_graph_info(folder)
    check_num_parts(info, num_parts)
    with _open_part(folder, part, info) as file:
        scalars = {name: int(file.attrs[name]) for name in schema.PART_SCALARS}
        arrays = {name: file[name][()] for name in schema.PART_ARRAYS}
        if info.feature_dtype == schema.PACKAGE and not expands_packages:
            features = np.empty((len(file["inner_id"]), 0), np.float32)
        else:
            features = _read_features(file, schema.part_file(folder, part), info)
    return Partition(**scalars, **arrays, features=features)


def read_packages(folder: Path, part: int, info: GraphInfo) -> tuple[PackedRows, np.ndarray]:
    """Read the features of one part as they are stored.

    Returns
    -------
    packed : PackedRows       of the part's inner rows
    scale : (num_inner,) float32

    Raises
    ------
    ShardError                features are no packages; otherwise as of read_partition
    """
    if info.feature_dtype != schema.PACKAGE:
        raise ShardError(f"{folder} stores {info.feature_dtype} features, expected packages; "
                         "run hpcgnn preprocess --feature-format package")
    with _open_part(folder, part, info) as file:
        path = schema.part_file(folder, part)
        return packages.load_packages(file, path, len(file["inner_id"]), info.num_features)


def _read_features(file: h5py.File, path: Path, info: GraphInfo) -> np.ndarray:
    if info.feature_dtype == schema.PACKAGE:
        return packages.load_feature_rows(file, path, len(file["inner_id"]), info.num_features)
    return file["features"][()]


def verify_shards(folder: Path, progress: Callable[[str, float | None], ProgressTask] = silent) -> GraphInfo:
    """Check every file of a folder from end to end; errors as of read_partition."""
    info = read_graph_info(folder)
    task = progress("verifying parts", info.num_parts)
    for part in range(info.num_parts):
        with _open_part(folder, part, info):
            task.advance(1)
    return info


@contextmanager
def _open_part(folder: Path, part: int, info: GraphInfo) -> Iterator[h5py.File]:
    path = schema.part_file(folder, part)
    features = packages.GROUP if info.feature_dtype == schema.PACKAGE else "features"
    with open_sealed(path, schema.PART_KIND, schema.part_version(info.feature_dtype)) as file:
        _check_content(file, path, ("run_id", *schema.PART_SCALARS), (*schema.PART_ARRAYS, features))
        if file.attrs["run_id"] != info.run_id:
            raise ShardError(f"{path} is from another run of hpcgnn preprocess than the {schema.GRAPH_FILE} beside it; "
                             f"{AGAIN}")
        if file.attrs["part"] != part:
            raise ShardError(f"{path} holds part {file.attrs['part']}, expected part {part}; {AGAIN}")
        num_rows = len(file["inner_id"]) + len(file["halo_id"])
        if file["importance"].shape != (num_rows,):
            raise ShardError(f"{path} has importance of shape {file['importance'].shape}, expected one entry for each "
                             f"of {num_rows} inner and halo rows; {AGAIN}")
        yield file


def _check_content(file: h5py.File, path: Path, attributes: tuple[str, ...], arrays: tuple[str, ...]) -> None:
    """A sealed file is whole, but another program may have written less into it."""
    missing = [*(name for name in attributes if name not in file.attrs), *(name for name in arrays if name not in file)]
    if missing:
        raise ShardError(f"{path} has no {missing[0]}; {AGAIN}")


def check_num_parts(info: GraphInfo, num_parts: int) -> None:
    """Raise ShardError unless the graph was cut into `num_parts` parts."""
    if info.num_parts != num_parts:
        parts = "1 part" if info.num_parts == 1 else f"{info.num_parts} parts"
        started = "1 rank was" if num_parts == 1 else f"{num_parts} ranks were"
        raise ShardError(f"{info.name} was partitioned into {parts} but {started} started; "
                         f"use mpirun -n {info.num_parts} or run hpcgnn preprocess --parts {num_parts}")
