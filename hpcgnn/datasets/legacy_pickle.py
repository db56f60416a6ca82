"""A pickle reader that builds arrays, CSR matrices and plain containers and refuses everything else.

It exists for Planetoid's Python 2 pickles; nothing that a pickle names is ever imported.
"""

from __future__ import annotations

import collections
import copyreg
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.errors import DatasetError

NUMPY_CORES = ("numpy.core.multiarray", "numpy._core.multiarray")
BUILTINS = ("__builtin__", "builtins")
COPY_REGISTRIES = ("copy_reg", "copyreg")
CSR_MODULES = ("scipy.sparse.csr", "scipy.sparse._csr")


class PickledCsr:
    """Attributes of a pickled scipy CSR matrix, before they are checked."""


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"the encoding {encoding}")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
    ("collections", "defaultdict"): collections.defaultdict,
    **{(module, "_reconstruct"): np.ndarray(0).__reduce__()[0] for module in NUMPY_CORES},
    **{(module, "scalar"): np.float64(0).__reduce__()[0] for module in NUMPY_CORES},
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
    try:
        with path.open("rb") as file:
            content = RestrictedUnpickler(file, encoding="latin1").load()
        return _checked_csr(content) if isinstance(content, PickledCsr) else content
    except FileNotFoundError:
        raise DatasetError(f"{path} does not exist; expected one of Planetoid's raw files") from None
    except pickle.UnpicklingError as error:
        raise DatasetError(f"{path} is no pickle of arrays and plain containers (it holds {error}); "
                           "it is damaged or not Planetoid's") from None
    except Exception as error:  # A damaged pickle can raise anything.
        raise DatasetError(f"{path} can't be unpickled ({type(error).__name__}: {error}); it is damaged") from None


def _checked_csr(content: PickledCsr) -> scipy.sparse.csr_matrix:
    parts = vars(content)
    shape = parts["_shape"]
    matrix = scipy.sparse.csr_matrix((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
    matrix.check_format(full_check=True)
    return matrix
