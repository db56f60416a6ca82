"""Check types and shapes of the arrays and attributes of an open HDF5 file before they are read.

What they mean is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from hpcgnn.errors import ShardError
from hpcgnn.shards.sealed import AGAIN

LARGEST_COMPRESSION = 128    # lzf names at most 264 bytes in 3
Layout = dict[str, tuple[type | str, tuple[int, ...]]]


def check_attributes(file: h5py.Group, path: Path, names: Iterable[str], advice: str = AGAIN) -> None:
    """Raise ShardError unless the file has attributes of these names."""
    for name in names:
        if name not in file.attrs:
            raise ShardError(f"{path} has no {name}; {advice}")


def integer_of(file: h5py.Group, path: Path, name: str, advice: str = AGAIN) -> int:
    """Return an attribute that must be one integer.

    Raises
    ------
    ShardError                it is something else
    """
    value = file.attrs[name]
    if not isinstance(value, np.integer):
        raise ShardError(f"{path} has {name} of type {type(value).__name__}, expected an integer; {advice}")
    return int(value)


def holds(file: h5py.Group, name: str) -> bool:
    """Tell whether a group itself holds something by this name; links, also to other files, are not followed."""
    first, _, rest = name.partition("/")
    if not isinstance(file.get(first, getlink=True), h5py.HardLink):
        return False
    return not rest or (isinstance(file[first], h5py.Group) and holds(file[first], rest))


def check_layout(file: h5py.Group, path: Path, layout: Layout, advice: str = AGAIN) -> None:
    """Check datasets against what they must be, without reading them.

    Parameters
    ----------
    layout : name -> (dtype, shape)

    Raises
    ------
    ShardError                one is missing, no array of this very file, of another type or shape, or says that it
                              holds more than the file does
    """
    for short, (dtype, shape) in layout.items():
        name = f"{file.name}/{short}".lstrip("/")
        if not holds(file, short):
            raise ShardError(f"{path} has no {name}; {advice}")
        held = file[short]
        if not isinstance(held, h5py.Dataset) or held.is_virtual or held.external:
            raise ShardError(f"{path} has {name}, which is no array in this file; {advice}")
        if held.dtype != np.dtype(dtype) or held.shape != shape:
            raise ShardError(f"{path} has {name} of {held.dtype} and shape {held.shape}, expected {np.dtype(dtype)} "
                             f"and shape {shape}; {advice}")
        most = held.id.get_storage_size() * (LARGEST_COMPRESSION if held.chunks else 1)
        if held.nbytes > most:
            raise ShardError(f"{path} has {name} of {held.nbytes} bytes, of which it holds only "
                             f"{held.id.get_storage_size()}; {advice}")
