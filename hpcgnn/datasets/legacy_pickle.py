"""A pickle reader that builds arrays, CSR matrices and plain containers and refuses everything else.

It exists for Planetoid's Python 2 pickles; nothing that a pickle names is imported, and no array is built unchecked.
"""

from __future__ import annotations

import collections
import copyreg
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.datasets.limits import check_file
from hpcgnn.errors import DatasetError

NUMBER_TYPE = re.compile("b1|[iu][1248]|f[48]")
NUMPY_CORES = ("numpy.core.multiarray", "numpy._core.multiarray")
BUILTINS = ("__builtin__", "builtins")
COPY_REGISTRIES = ("copy_reg", "copyreg")
CSR_MODULES = ("scipy.sparse.csr", "scipy.sparse._csr")


class PickledType:
    """A pickled NumPy dtype of numbers. NumPy's own `__setstate__` trusts its input, so it never sees it."""

    def __init__(self, code: str, *flags: object) -> None:
        if not NUMBER_TYPE.fullmatch(code):
            raise pickle.UnpicklingError(f"the array type {code}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class PickledArray:
    """A pickled NumPy array, before it is checked."""

    array: np.ndarray | None = None

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, is_fortran, data = state
        self.array = _decode(kind, data).reshape(shape, order="F" if is_fortran else "C")


class PickledCsr:
    """Attributes of a pickled scipy CSR matrix, before they are checked."""


def _decode(kind: PickledType, data: str | bytes) -> np.ndarray:
    # Python 2's byte strings come as text of code points below 256.
    return np.frombuffer(data.encode("latin1") if isinstance(data, str) else data, kind.dtype).copy()


def _new_array(*arguments: object) -> PickledArray:
    return PickledArray()


def _scalar(kind: PickledType, data: str | bytes) -> int | float:
    return _decode(kind, data)[0].item()


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding}")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledType,
    ("_codecs", "encode"): _latin1,
    ("collections", "defaultdict"): collections.defaultdict,
    **{(module, "_reconstruct"): _new_array for module in NUMPY_CORES},
    **{(module, "scalar"): _scalar for module in NUMPY_CORES},
    **{(module, "csr_matrix"): PickledCsr for module in CSR_MODULES},
    **{(module, "_reconstructor"): copyreg._reconstructor for module in COPY_REGISTRIES},
    **{(module, kind.__name__): kind for module in BUILTINS for kind in (list, dict, object)},
}


class RestrictedUnpickler(pickle.Unpickler):
    """Resolves the names in ALLOWED and no others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"the name {module}.{name}")
        return ALLOWED[module, name]


def load_pickle(path: Path) -> Any:
    """Read one pickled array, CSR matrix or container; a CSR matrix is checked and comes back as scipy's.

    Raises
    ------
    DatasetError      a file that is missing or damaged, or names anything but arrays and plain containers
    """
    check_file(path)
    try:
        with path.open("rb") as file:
            content = RestrictedUnpickler(file, encoding="latin1").load()
        return _checked(content)
    except FileNotFoundError:
        raise DatasetError(f"{path} does not exist; expected one of Planetoid's raw files") from None
    except pickle.UnpicklingError as error:
        raise DatasetError(f"{path} is no pickle of arrays and plain containers (it holds {error}); "
                           "it is damaged or not Planetoid's") from None
    except Exception as error:  # A damaged pickle can raise anything.
        raise DatasetError(f"{path} can't be unpickled ({type(error).__name__}: {error}); it is damaged") from None


def _checked(content: Any) -> Any:
    if isinstance(content, PickledArray):
        if content.array is None:
            raise ValueError("an array without content")
        return content.array
    if not isinstance(content, PickledCsr):
        return content
    parts = vars(content)
    data, indices, indptr = (_checked(parts[key]) for key in ("data", "indices", "indptr"))
    matrix = scipy.sparse.csr_matrix((data, indices, indptr), shape=parts["_shape"])
    matrix.check_format(full_check=True)
    return matrix
