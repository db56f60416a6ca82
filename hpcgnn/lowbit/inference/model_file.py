"""Integer models as sealed HDF5 files, and checks of all that is read, as if somebody had forged it.

Format 2. Attributes: `dataset`, `scheme` (str), `fingerprint` (JSON, as in graph.h5), `num_nodes`, `num_features`,
`num_classes`, `num_convolutions` (int), `is_multi_label` (bool), and `trained_cut` (JSON) if the model was trained in
clusters. Group `class_names` (`bytes`, `offset`, see `store_texts`) if classes have names. Group `convolutions/NUMBER`
of each convolution, first to last:

    attributes kind, epsilon, heads, averages_heads
    rows, second_rows         groups: `step` float32, `bit_width` uint8 by in-degree; attribute is_signed
    neighbor, own, second     groups: `codes` uint8, the weights row by row, packed at their width, lowest bit first, in
                              two's complement; `step` float32 by output; attributes bit_width, shape
    mapped                    group: `step` float32 by column; attribute bit_width
    bias, second_bias, attention     arrays of float32
    norm                      group: `weight`, `bias` float32; attribute eps

Parts that a convolution lacks are left out. Files of format 1 name no fingerprint; quantize the run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from hpcgnn.errors import CheckpointError, ConfigError, KernelError, ShardError
from hpcgnn.lowbit.inference.code_exchange import pack_codes, packed_bytes, unpack_codes
from hpcgnn.lowbit.integer_model import (
    ColumnScale,
    IntegerConvolution,
    IntegerMap,
    IntegerModel,
    Normalization,
    RowScale,
)
from hpcgnn.ops.bit_gemm import LARGEST_SUM
from hpcgnn.shards.schema import Fingerprint, load_texts, store_texts
from hpcgnn.shards.sealed import open_sealed, write_sealed
from hpcgnn.training.batch_graph import ClusterCut

# Parts of each kind, besides the parts that all kinds have.
PARTS = {"gcn": (), "sage": ("own",), "gin": ("second_rows", "second", "second_bias"), "gat": ("attention",)}
MAX_HEADS = 4096

KIND, VERSION = "integer-model", 2
ADVICE = "run hpcgnn quantize again"
SCALARS = {"dataset": str, "scheme": str, "num_nodes": int, "num_features": int, "num_classes": int,
           "is_multi_label": bool}
CLASS_NAMES = "class_names"
OPTIONS = {"kind": str, "epsilon": float, "heads": int, "averages_heads": bool}
REALS = ("bias", "second_bias", "attention")
# h5py's errors on content that hpcgnn did not write.
MALFORMED = (KeyError, OSError, RuntimeError, TypeError, ValueError)


def write_model(path: Path, model: IntegerModel, fingerprint: Fingerprint, cut: ClusterCut | None = None) -> None:
    """Replace the model at `path`; the old file stays if anything fails.

    `fingerprint` names the shards that it was made on, `cut` the clusters it was trained in (None: the whole graph).
    Raises KernelError for a model that `check_model` refuses, CheckpointError if the file can't be written.
    """
    check_model(model)

    def fill(file: h5py.File) -> None:
        for name in SCALARS:
            file.attrs[name] = getattr(model, name)
        file.attrs["fingerprint"] = json.dumps(asdict(fingerprint))
        if cut is not None:
            file.attrs["trained_cut"] = json.dumps(asdict(cut))
        if model.class_names:
            store_texts(file, CLASS_NAMES, model.class_names)
        file.attrs["num_convolutions"] = len(model.convolutions)
        for number, convolution in enumerate(model.convolutions):
            parent = file.create_group(f"convolutions/{number}")
            for name, arrays, attributes in _groups_of(convolution):
                group = parent.require_group(name)
                for key, array in arrays.items():
                    group[key] = array
                group.attrs.update(attributes)

    write_sealed(path, KIND, VERSION, fill, error=CheckpointError)


def read_model(path: Path) -> tuple[IntegerModel, Fingerprint, ClusterCut | None]:
    """Read a model, the fingerprint of its shards, and the clusters that it was trained in, None for the whole graph.

    Raises CheckpointError if the file is missing, damaged or not valid.
    """
    with open_sealed(path, KIND, VERSION, error=CheckpointError, advice=ADVICE) as file:
        try:
            cut = ClusterCut(**json.loads(_scalar(file, "trained_cut", str))) if "trained_cut" in file.attrs else None
            return check_model(_load_model(file, Path(path))), _load_fingerprint(file), cut
        except ConfigError as error:
            raise CheckpointError(f"{path} names no cut of a graph: {error}; {ADVICE}") from error
        except ShardError as error:      # of the file's texts
            raise CheckpointError(str(error)) from error
        except KernelError as error:
            raise CheckpointError(f"{path} holds no integer model: {error}; {ADVICE}") from error
        except MALFORMED as error:
            raise CheckpointError(f"{path} is not as hpcgnn quantize writes models: {error}; {ADVICE}") from error


def payload_bytes(model: IntegerModel) -> int:
    return sum(array.nbytes for convolution in model.convolutions for group in _groups_of(convolution)
               for array in group.arrays.values())


class _Group(NamedTuple):
    name: str
    arrays: dict[str, np.ndarray]
    attributes: dict[str, Any]


def _groups_of(convolution: IntegerConvolution) -> Iterator[_Group]:
    yield _Group(".", {}, {name: getattr(convolution, name) for name in OPTIONS})
    for name in ("rows", "second_rows"):
        scale = getattr(convolution, name)
        if scale is not None:
            yield _Group(name, {"step": scale.step, "bit_width": scale.bit_width}, {"is_signed": scale.is_signed})
    for name in ("neighbor", "own", "second"):
        weights = getattr(convolution, name)
        if weights is not None:
            codes, scale = np.ascontiguousarray(weights.codes), weights.scale
            yield _Group(name, {"codes": pack_codes(codes, scale.bit_width), "step": scale.step},
                         {"bit_width": scale.bit_width, "shape": codes.shape})
    yield _Group("mapped", {"step": convolution.mapped.step}, {"bit_width": convolution.mapped.bit_width})
    reals = {name: getattr(convolution, name) for name in REALS}
    yield _Group(".", {name: array for name, array in reals.items() if array is not None}, {})
    norm = convolution.norm
    if norm is not None:
        yield _Group("norm", {"weight": norm.weight, "bias": norm.bias}, {"eps": norm.eps})


def _load_model(file: h5py.File, path: Path) -> IntegerModel:
    number, load = _scalar(file, "num_convolutions", int), _Loader(path.stat().st_size)
    groups = file["convolutions"]
    if len(groups) != number:
        raise KernelError(f"{len(groups)} convolutions where {number} are named")
    scalars = {name: _scalar(file, name, kind) for name, kind in SCALARS.items()}
    names = load_texts(file, path, CLASS_NAMES, scalars["num_classes"]) if CLASS_NAMES in file else ()
    return IntegerModel([load.convolution(groups[str(i)]) for i in range(number)], **scalars, class_names=tuple(names))


def _load_fingerprint(file: h5py.File) -> Fingerprint:
    fingerprint = Fingerprint(**json.loads(_scalar(file, "fingerprint", str)))
    if not fingerprint.is_valid:
        raise KernelError(f"its fingerprint is {fingerprint}, expected hexadecimal digits")
    return fingerprint


class _Loader:
    def __init__(self, file_bytes: int):
        self._file_bytes = file_bytes

    def convolution(self, group: h5py.Group) -> IntegerConvolution:
        norm = group.get("norm")
        reals: dict[str, Any] = {name: self.array(group, name, np.float32) if name in group else None
                                 for name in REALS}
        return IntegerConvolution(
            **{name: _scalar(group, name, kind) for name, kind in OPTIONS.items()},
            rows=self.row_scale(group["rows"]), second_rows=self.optional(self.row_scale, group, "second_rows"),
            neighbor=self.map(group["neighbor"]), own=self.optional(self.map, group, "own"),
            second=self.optional(self.map, group, "second"),
            mapped=self.column_scale(group["mapped"]),
            **reals,
            norm=None if norm is None else Normalization(
                self.array(norm, "weight", np.float32), self.array(norm, "bias", np.float32),
                _scalar(norm, "eps", float)))

    def optional(self, read, group: h5py.Group, name: str):
        return read(group[name]) if name in group else None

    def row_scale(self, group: h5py.Group) -> RowScale:
        return RowScale(self.array(group, "step", np.float32), self.array(group, "bit_width", np.uint8),
                        _scalar(group, "is_signed", bool))

    def column_scale(self, group: h5py.Group) -> ColumnScale:
        return ColumnScale(self.array(group, "step", np.float32), _scalar(group, "bit_width", int))

    def map(self, group: h5py.Group) -> IntegerMap:
        shape = tuple(group.attrs["shape"].tolist())
        scale = self.column_scale(group)
        packed = self.array(group, "codes", np.uint8)
        if len(shape) != 2 or min(shape) < 0 or packed.shape != (packed_bytes(shape[0] * shape[1], scale.bit_width),):
            raise KernelError(f"weights of shape {shape} and {scale.bit_width} bits are packed in {packed.size} bytes")
        codes = np.empty(shape, np.int8)
        unpack_codes(packed, scale.bit_width, codes)
        if not np.array_equal(pack_codes(codes, scale.bit_width), packed):
            raise KernelError("bits after the last weight are not zero")
        return IntegerMap(codes, scale)

    def array(self, group: h5py.Group, name: str, dtype: type) -> np.ndarray:
        held = group[name]
        if not isinstance(held, h5py.Dataset) or held.dtype != dtype or held.nbytes > self._file_bytes:
            raise KernelError(f"{group.name}/{name} is no array of {np.dtype(dtype)} that this file can hold")
        return np.asarray(held[()])


def _scalar(group: h5py.Group, name: str, kind: type):
    value = group.attrs[name]
    value = value.item() if isinstance(value, np.generic) else value
    if type(value) is not kind:
        raise KernelError(f"{name} is {value!r}, expected {kind.__name__}")
    return value


def check_model(model: IntegerModel) -> IntegerModel:
    """Check shapes, parts and numbers of a model, and return it; KernelError for one that does not fit."""
    if not model.convolutions:
        raise KernelError("an integer model needs at least one convolution, found none")
    in_dim, last = model.num_features, len(model.convolutions) - 1
    try:
        for number, convolution in enumerate(model.convolutions):
            in_dim = _check_convolution(convolution, in_dim, number == last)
    except KernelError as error:
        raise KernelError(f"convolution {number}, of {convolution.kind}: {error}") from error
    if in_dim != model.num_classes:
        raise KernelError(f"the last convolution has {in_dim} outputs, expected one per class, {model.num_classes}")
    if model.class_names and len(set(model.class_names)) != model.num_classes:
        raise KernelError(f"its class names are {len(set(model.class_names))} different ones, expected one per class, "
                          f"{model.num_classes}")
    return model


def _check_convolution(convolution: IntegerConvolution, in_dim: int, is_last: bool) -> int:
    for part in sorted({part for parts in PARTS.values() for part in parts}):
        has, needs = getattr(convolution, part) is not None, part in PARTS[convolution.kind]
        if has != needs:
            raise KernelError(f"it has {'a' if has else 'no'} part {part}, expected {'one' if needs else 'none'}")
    mapped_dim = len(convolution.neighbor.codes)
    _check_shape("steps of mapped rows", convolution.mapped.step, (mapped_dim,))
    _check_map("weights of neighbors", convolution.neighbor, (mapped_dim, in_dim), convolution.rows)
    out_dim = _out_dim(convolution, mapped_dim)
    _check_reals("bias", convolution.bias, (out_dim,))
    if convolution.own is not None:
        _check_map("own weights", convolution.own, (out_dim, in_dim), convolution.rows)
    if convolution.second is not None:
        out_dim = len(convolution.second.codes)
        _check_map("second weights", convolution.second, (out_dim, mapped_dim), convolution.second_rows)
        _check_reals("second bias", convolution.second_bias, (out_dim,))
        if convolution.second_rows.is_signed:
            raise KernelError("its second rows have a sign, although they come from a ReLU")
    if convolution.attention is not None:
        _check_reals("attention vectors", convolution.attention, (2, mapped_dim))
    _check_norm(convolution, out_dim, is_last)
    if not np.isfinite(convolution.epsilon):
        raise KernelError(f"its epsilon is {convolution.epsilon}, expected a number")
    return out_dim


def _out_dim(convolution: IntegerConvolution, mapped_dim: int) -> int:
    heads = convolution.heads
    if not 1 <= heads <= MAX_HEADS or mapped_dim % heads:
        raise KernelError(f"{heads} heads can't share {mapped_dim} columns evenly")
    if convolution.kind != "gat" and (heads > 1 or convolution.averages_heads):
        raise KernelError(f"it has {heads} heads to join, and only attention joins heads; expected 1 head")
    return mapped_dim // heads if convolution.averages_heads else mapped_dim


def _check_norm(convolution: IntegerConvolution, out_dim: int, is_last: bool) -> None:
    norm = convolution.norm
    if norm is None:
        return
    if is_last:
        raise KernelError("it is the last and has a normalization, expected none after the logits")
    _check_reals("weight of its normalization", norm.weight, (out_dim,))
    _check_reals("bias of its normalization", norm.bias, (out_dim,))
    if not (np.isfinite(norm.eps) and norm.eps > 0):
        raise KernelError(f"epsilon of its normalization is {norm.eps}, expected a number above 0")


def _check_map(name: str, weights: IntegerMap, shape: tuple[int, int], rows: RowScale) -> None:
    _check_shape(name, weights.codes, shape)
    if 0 in shape:
        raise KernelError(f"{name} have shape {shape}, expected at least one row and one column")
    largest = shape[1] * int(rows.max_code.max()) * weights.scale.max_code
    if largest > LARGEST_SUM:
        raise KernelError(f"a sum of {name} can reach {largest}, past the {LARGEST_SUM} of 32 bits; "
                          "use fewer bits or fewer columns")


def _check_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise KernelError(f"{name} have shape {array.shape}, expected {shape}")


def _check_reals(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    _check_shape(name, array, shape)
    if array.dtype != np.float32 or not np.isfinite(array).all():
        raise KernelError(f"{name} is {array.dtype}, or holds NaN or infinity; expected finite float32")
