"""`planetoid:DIR/NAME`: the raw files ind.NAME.{x,tx,allx,y,ty,ally,graph,test.index} of Cora, CiteSeer and PubMed.

The files are Python 2 pickles. A restricted reader builds only arrays, CSR matrices and plain containers: it imports
nothing that a pickle names, and checks every array. The public split is used: the first rows train, the next 500
validate, test.index tests.
"""

from __future__ import annotations

import collections
import copyreg
import os
import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from hpcgnn.data.assemble import assemble_dataset, masks_from_ids
from hpcgnn.data.cleaning import build_csr
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.labels import UNKNOWN, Labels, indicator_rows
from hpcgnn.data.options import SourceOptions, check_file
from hpcgnn.data.text_table import TextTable, read_matrix
from hpcgnn.errors import DatasetError

NUMBER_TYPE = re.compile("b1|[iu][1248]|f[48]")
NUMPY_CORES = ("numpy.core.multiarray", "numpy._core.multiarray")
BUILTINS = ("__builtin__", "builtins")
COPY_REGISTRIES = ("copy_reg", "copyreg")
CSR_MODULES = ("scipy.sparse.csr", "scipy.sparse._csr")


class PickledType:
    """A pickled NumPy dtype of numbers. NumPy's own `__setstate__` trusts its input, so it is never called."""

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
    # Python 2's byte strings are read as text with code points below 256.
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
    """Resolves only the names in ALLOWED."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"the name {module}.{name}")
        return ALLOWED[module, name]


def load_pickle(path: Path) -> Any:
    """Read one pickled array, CSR matrix or container; a CSR matrix is checked and comes back as scipy's."""
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


NUM_VALIDATION = 500


@dataclass(frozen=True)
class RawFiles:
    """Contents of the raw files.

    allx, tx : scipy CSR               features of the nodes 0..len(allx) - 1, and of the test nodes in test_id's order
    ally, ty : (rows, num_classes)     one-hot labels of the same nodes
    num_train : int                    rows of y
    neighbors : dict                   node -> list of nodes
    test_id : (num_test,) int64
    """

    allx: scipy.sparse.csr_matrix
    tx: scipy.sparse.csr_matrix
    ally: np.ndarray
    ty: np.ndarray
    num_train: int
    neighbors: dict
    test_id: np.ndarray


def load_planetoid(rest: str, options: SourceOptions) -> GraphDataset:
    """Load DIR/NAME or DIR/ind.NAME, or DIR if it holds the files of one dataset only.

    Every edge carries messages both ways, as in all uses of these files. Test ids that test.index leaves out
    (15 of CiteSeer's) get zero features and no label.
    """
    folder, name = _find(Path(rest))
    raw = _read(folder, name)
    # CiteSeer's test ids have gaps, so the nodes outnumber the rows of allx and tx.
    num_nodes = max(raw.allx.shape[0], int(raw.test_id.max()) + 1)
    graph = build_csr(*_arcs(raw.neighbors, folder, name), num_nodes, True, name, options.progress)
    labels = _labels(raw, num_nodes, name)
    last = min(raw.num_train + NUM_VALIDATION, raw.allx.shape[0])
    masks = masks_from_ids((np.arange(raw.num_train), np.arange(raw.num_train, last), raw.test_id), num_nodes, name)
    num_gaps = num_nodes - raw.allx.shape[0] - len(raw.test_id)
    remarks = (f"{num_gaps} nodes have neither features nor a label at the source",) if num_gaps > 0 else ()
    return assemble_dataset(name, graph.with_remarks(remarks), _features(raw, num_nodes),
                            Labels(labels, raw.ally.shape[1]), masks, options)


def _find(path: Path) -> tuple[Path, str]:
    if not os.path.isdir(path):
        return path.parent, path.name.removeprefix("ind.")
    names = sorted(file.name.split(".")[1] for file in path.glob("ind.*.graph"))
    if len(names) != 1:
        found = f"files of {', '.join(names)}" if names else "none"
        raise DatasetError(f"{path} should hold the files ind.NAME.graph and so on of one dataset, found {found}; "
                           "give planetoid:DIR/NAME")
    return path, names[0]


def _read(folder: Path, name: str) -> RawFiles:
    parts = {part: load_pickle(folder / f"ind.{name}.{part}") for part in ("allx", "tx", "ally", "ty", "y", "graph")}
    for part in ("allx", "tx"):
        if not scipy.sparse.issparse(parts[part]):
            raise DatasetError(f"{folder}/ind.{name}.{part} holds no CSR matrix; it is damaged or not Planetoid's")
    for part in ("ally", "ty", "y"):
        if not isinstance(parts[part], np.ndarray) or parts[part].ndim != 2 or parts[part].dtype.kind not in "iufb":
            raise DatasetError(f"{folder}/ind.{name}.{part} holds no number matrix; it is damaged or not Planetoid's")
    if not isinstance(parts["graph"], dict):
        raise DatasetError(f"{folder}/ind.{name}.graph holds no dictionary; it is damaged or not Planetoid's")
    test_id = read_matrix(TextTable(folder / f"ind.{name}.test.index"), np.int64).reshape(-1)
    raw = RawFiles(parts["allx"], parts["tx"], parts["ally"], parts["ty"], len(parts["y"]), parts["graph"], test_id)
    _check_rows(raw, folder, name)
    return raw


def _check_rows(raw: RawFiles, folder: Path, name: str) -> None:
    is_consistent = (raw.allx.shape[0] == len(raw.ally) >= raw.num_train
                     and raw.tx.shape[0] == len(raw.ty) == len(raw.test_id) > 0
                     and raw.allx.shape[1] == raw.tx.shape[1] and raw.ally.shape[1] == raw.ty.shape[1]
                     and raw.test_id.min() >= raw.allx.shape[0])
    if not is_consistent:
        raise DatasetError(f"{folder}/ind.{name}.* disagree: allx {raw.allx.shape}, ally {raw.ally.shape}, "
                           f"tx {raw.tx.shape}, ty {raw.ty.shape}, test.index {raw.test_id.shape}, "
                           f"{raw.num_train} rows in y; copy the files again")


def _arcs(neighbors: dict, folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    # NumPy would read 0.5 and true as nodes.
    if not all(type(node) is int for row in (neighbors, *neighbors.values()) if isinstance(row, (list, dict))
               for node in row):
        raise DatasetError(f"{folder}/ind.{name}.graph names nodes that are no whole numbers; it is damaged")
    try:
        lengths = [len(row) for row in neighbors.values()]
        source = np.repeat(np.fromiter(neighbors, np.int64, len(neighbors)), lengths)
        target = np.fromiter((node for row in neighbors.values() for node in row), np.int64, sum(lengths))
    except (TypeError, ValueError, OverflowError) as error:
        raise DatasetError(f"{folder}/ind.{name}.graph is no map from nodes to lists of nodes ({error})") from None
    return source, target


def _features(raw: RawFiles, num_nodes: int) -> scipy.sparse.csr_matrix:
    # Rows of allx, then of tx at their test ids, and zero rows where test.index has gaps.
    rows = np.concatenate([np.arange(raw.allx.shape[0]), raw.test_id])
    place = scipy.sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, np.arange(len(rows)))),
                                    shape=(num_nodes, len(rows)))
    features = (place @ scipy.sparse.vstack([raw.allx, raw.tx], format="csr", dtype=np.float32)).tocsr()
    features.sort_indices()
    return features


def _labels(raw: RawFiles, num_nodes: int, name: str) -> np.ndarray:
    labels = np.full(num_nodes, UNKNOWN, dtype=np.int64)
    one_hot = indicator_rows(np.concatenate([raw.ally, raw.ty]), name)
    rows = np.concatenate([np.arange(len(raw.ally)), raw.test_id])
    # CiteSeer has rows without a label.
    is_labeled = one_hot.any(axis=1)
    labels[rows[is_labeled]] = one_hot[is_labeled].argmax(axis=1)
    return labels
