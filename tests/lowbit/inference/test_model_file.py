"""A model file holds every bit of its model, and nothing else is taken for one."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from integer_models import column_scale, integer_map, row_scale, some_model

from hpcgnn.errors import CheckpointError, KernelError
from hpcgnn.lowbit.inference.code_exchange import pack_codes, packed_bytes, unpack_codes
from hpcgnn.lowbit.inference.model_file import ADVICE, KIND, VERSION, payload_bytes, read_model, write_model
from hpcgnn.shards.schema import Fingerprint
from hpcgnn.shards.sealed import SEAL_BYTES, parse_seal, write_sealed

MADE_ON = Fingerprint("0" * 32, "1" * 32, "2" * 32)
KINDS = ("gcn", "sage", "gin", "gat")


def assert_same(found, expected):
    """Equal in every bit, type and shape."""
    assert type(found) is type(expected)
    if is_dataclass(found):
        for item in fields(found):
            assert_same(getattr(found, item.name), getattr(expected, item.name))
    elif isinstance(found, list):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(found, np.ndarray):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    else:
        assert found == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_comes_back_in_every_bit(tmp_path, kind):
    model = some_model(kind, num_layers=3, has_norm=True)
    model = replace(model, class_names=tuple("äbcdefghij"[:model.num_classes]) if kind == "sage" else ())
    write_model(tmp_path / "m.h5", model, MADE_ON)
    found, made_on, _ = read_model(tmp_path / "m.h5")
    assert_same(found, model)
    assert made_on == MADE_ON
    assert [path.name for path in tmp_path.iterdir()] == ["m.h5"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_array_is_stored_at_its_own_width(tmp_path, kind):
    model = some_model(kind, num_layers=2, has_norm=True)
    write_model(tmp_path / "m.h5", model, MADE_ON)
    stored = []
    with h5py.File(tmp_path / "m.h5") as file:
        file.visititems(lambda _, held: stored.append(held.nbytes) if isinstance(held, h5py.Dataset) else None)
    assert sum(stored) == payload_bytes(model)


@pytest.mark.parametrize("bit_width", range(2, 9))
@pytest.mark.parametrize("num_codes", [0, 1, 7, 8, 9, 1000])
def test_codes_come_back_from_their_own_width(bit_width, num_codes):
    limit = 2 ** (bit_width - 1) - 1
    codes = np.random.default_rng(bit_width).integers(-limit, limit + 1, num_codes).astype(np.int8)
    packed = pack_codes(codes, bit_width)
    assert len(packed) == -(-num_codes * bit_width // 8)
    bits = [int(code) >> k & 1 for code in codes for k in range(bit_width)]
    np.testing.assert_array_equal(packed, np.packbits(np.array(bits, np.uint8), bitorder="little"))
    found = np.empty_like(codes)
    unpack_codes(packed, bit_width, found)
    np.testing.assert_array_equal(found, codes)


def test_codes_come_back_across_blocks(monkeypatch):
    monkeypatch.setattr("hpcgnn.lowbit.inference.code_exchange.BLOCK_CODES", 64)
    codes = np.random.default_rng(0).integers(-15, 16, (29, 7)).astype(np.int8)
    found = np.empty_like(codes)
    unpack_codes(pack_codes(codes, 5), 5, found)
    np.testing.assert_array_equal(found, codes)


def test_packed_codes_of_another_length_are_refused():
    with pytest.raises(KernelError, match="9 codes of 3 bits take 4 bytes, found 3 of uint8"):
        unpack_codes(np.zeros(3, np.uint8), 3, np.zeros(9, np.int8))
    assert packed_bytes(9, 3) == 4


def resealed(content, **changes):
    """A file's bytes with a changed first block."""
    seal = parse_seal(content[:SEAL_BYTES])
    values = {"kind": seal.kind, "version": seal.version, "crc": seal.crc, "num_bytes": seal.num_bytes, **changes}
    return type(seal)(**values).render() + content[SEAL_BYTES:]


ACCIDENTS = {
    "truncated": (lambda content: content[:-1], "is truncated: it has"),
    "another version": (lambda content: resealed(content, version=9), "has format 9, this version reads 2"),
    "a checkpoint": (lambda content: resealed(content, kind="checkpoint"),
                     "is a checkpoint file, expected a integer-model file"),
}


@pytest.mark.parametrize("how", ACCIDENTS)
def test_a_damaged_file_is_refused_with_advice(tmp_path, how):
    path = tmp_path / "m.h5"
    write_model(path, some_model("gcn"), MADE_ON)
    damage, complaint = ACCIDENTS[how]
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError) as refused:
        read_model(path)
    assert str(refused.value).startswith(f"{path} {complaint}") and str(refused.value).endswith(f"; {ADVICE}")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"m\.h5 is missing; run hpcgnn quantize again"):
        read_model(tmp_path / "m.h5")


def forge(path, change, model=None):
    """A file that is sealed as it should be, and holds what `change(file)` made of a model."""
    source = path.with_name("source.h5")
    write_model(source, model or some_model("gcn"), MADE_ON)

    def fill(file):
        with h5py.File(source) as honest:
            for name, value in honest.attrs.items():
                file.attrs[name] = value
            honest.copy("convolutions", file)
        change(file)

    write_sealed(path, KIND, VERSION, fill, error=CheckpointError)


def put(name, value):
    """A change that replaces an array."""
    def change(file):
        del file[name]
        file[name] = value

    return change


def remove(name):
    def change(file):
        del file[name]

    return change


def attribute(place, name, value):
    def change(file):
        file[place].attrs[name] = value

    return change


FIRST = "convolutions/0"
FORGERIES = {
    "no convolution": (attribute("/", "num_convolutions", 0), "convolutions where 0 are named"),
    "a convolution less": (remove("convolutions/1"), "1 convolutions where 2 are named"),
    "no weights": (remove(f"{FIRST}/neighbor"), "is not as hpcgnn quantize writes models"),
    "no width": (lambda file: file[f"{FIRST}/mapped"].attrs.pop("bit_width"), "is not as hpcgnn quantize writes"),
    "a group for an array": (lambda file: (remove(f"{FIRST}/bias")(file), file.create_group(f"{FIRST}/bias")),
                             "is no array of float32"),
    "an array for a group": (put(f"{FIRST}/rows", np.zeros(3)), "is not as hpcgnn quantize writes models"),
    "an unknown kind": (attribute(FIRST, "kind", "chebyshev"), "is one of gcn, sage, gin, gat, found 'chebyshev'"),
    "another kind": (attribute(FIRST, "kind", "sage"), "it has no part own, expected one"),
    "a width of 9": (attribute(f"{FIRST}/mapped", "bit_width", 9), "signed codes have 2 to 8 bits, found 9"),
    "a width of 1": (attribute(f"{FIRST}/neighbor", "bit_width", 1), "signed codes have 2 to 8 bits, found 1"),
    "a width that is none": (attribute(f"{FIRST}/mapped", "bit_width", 6.0), "bit_width is 6.0, expected int"),
    "another width of weights": (attribute(f"{FIRST}/neighbor", "bit_width", 5), "5 bits are packed in 60 bytes"),
    "a value beyond its width": (put(f"{FIRST}/neighbor/codes", np.full(60, 0x88, np.uint8)),
                                 "weights of 4 bits lie within 7, found 8"),
    "another shape": (attribute(f"{FIRST}/neighbor", "shape", (12, 10)), "needs int8 codes, one row per output"),
    "a negative shape": (attribute(f"{FIRST}/neighbor", "shape", (-10, -12)), "weights of shape (-10, -12)"),
    "widths of rows above 8": (put(f"{FIRST}/rows/bit_width", np.full(12, 200, np.uint8)), "widths of signed rows"),
    "widths of rows of 0": (put(f"{FIRST}/rows/bit_width", np.zeros(12, np.uint8)), "widths of signed rows"),
    "fewer widths than steps": (put(f"{FIRST}/rows/bit_width", np.full(3, 4, np.uint8)), "one step and one width"),
    "no steps": (lambda file: (put(f"{FIRST}/rows/step", np.zeros(0, np.float32))(file),
                               put(f"{FIRST}/rows/bit_width", np.zeros(0, np.uint8))(file)), "one step and one width"),
    "a step of 0": (put(f"{FIRST}/rows/step", np.zeros(12, np.float32)), "steps of codes are finite float32 above 0"),
    "a step that is NaN": (put(f"{FIRST}/mapped/step", np.full(10, np.nan, np.float32)), "steps of codes are finite"),
    "steps of float64": (put(f"{FIRST}/mapped/step", np.ones(10)), "is no array of float32"),
    "steps of weights in a column": (put(f"{FIRST}/neighbor/step", np.ones((10, 1), np.float32)), "one step"),
    "a step of weights that is alone": (put(f"{FIRST}/neighbor/step", np.float32(1)), "one step per column"),
    "too few mapped steps": (put(f"{FIRST}/mapped/step", np.ones(9, np.float32)), "steps of mapped rows have shape"),
    "a bias that is infinite": (put(f"{FIRST}/bias", np.full(10, np.inf, np.float32)), "finite float32"),
    "another bias": (put(f"{FIRST}/bias", np.zeros(11, np.float32)), "bias have shape (11,), expected (10,)"),
    "a fingerprint of letters": (attribute("/", "fingerprint", '{"graph": "z", "split": "z", "features": "z"}'),
                                 "expected hexadecimal digits"),
    "a fingerprint less": (attribute("/", "fingerprint", "{}"), "is not as hpcgnn quantize writes models"),
    "a fingerprint that is no JSON": (attribute("/", "fingerprint", "{"), "is not as hpcgnn quantize writes models"),
    "other features": (attribute("/", "num_features", 13), "expected (10, 13)"),
    "other classes": (attribute("/", "num_classes", 5), "has 4 outputs, expected one per class, 5"),
    "heads of a gcn": (attribute(FIRST, "heads", 2), "it has 2 heads to join"),
    "an array longer than the file": (
        lambda file: (remove(f"{FIRST}/bias")(file),
                      file.create_dataset(f"{FIRST}/bias", shape=(1 << 40,), dtype="f4", chunks=(1 << 20,))),
        "that this file can hold"),
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_file_is_refused(tmp_path, how):
    change, complaint = FORGERIES[how]
    path = tmp_path / "m.h5"
    forge(path, change)
    with pytest.raises(CheckpointError) as refused:
        read_model(path)
    assert complaint in str(refused.value)
    assert str(refused.value).startswith(str(path)) and str(refused.value).endswith(ADVICE)


def changed(kind, number=0, num_features=12, bits=None, **parts):
    """A model whose convolution of that number has other parts."""
    model = some_model(kind, num_features, has_norm=True, bits=bits)
    model.convolutions[number] = replace(model.convolutions[number], **parts)
    return model


RNG = np.random.default_rng(1)
WRONG_MODELS = {
    "no convolution": (replace(some_model("gcn"), convolutions=[]), "at least one convolution"),
    "a normalization behind the logits": (changed("gcn", 1, norm=some_model("gcn", has_norm=True).convolutions[0].norm),
                                          "is the last and has a normalization"),
    "own weights of another width": (changed("sage", own=integer_map(RNG, 10, 11)), "own weights have shape (10, 11)"),
    "a second map of other rows": (changed("gin", second=integer_map(RNG, 10, 9)), "second weights have shape"),
    "signed rows behind a ReLU": (changed("gin", second_rows=row_scale(RNG, is_signed=True)), "come from a ReLU"),
    "an epsilon that is NaN": (changed("gin", epsilon=float("nan")), "its epsilon is nan"),
    "heads that don't divide": (changed("gat", heads=3), "3 heads can't share 10 columns evenly"),
    "attention vectors of another width": (changed("gat", attention=np.zeros((2, 9), np.float32)),
                                           "attention vectors have shape (2, 9), expected (2, 10)"),
    "attention vectors that are NaN": (changed("gat", attention=np.full((2, 10), np.nan, np.float32)), "NaN"),
    "a mapped row of another width": (changed("gcn", mapped=column_scale(RNG, 9, 6, 0.1)), "steps of mapped rows"),
    "sums past 32 bits": (changed("gcn", num_features=140_000, bits=8, neighbor=integer_map(RNG, 10, 140_000, 8)),
                          "can reach 2258060000, past the 2147483647 of 32 bits"),
}


@pytest.mark.parametrize("how", WRONG_MODELS)
def test_what_is_no_model_is_not_written(tmp_path, how):
    model, complaint = WRONG_MODELS[how]
    with pytest.raises(KernelError) as refused:
        write_model(tmp_path / "m.h5", model, MADE_ON)
    assert complaint in str(refused.value)
    assert list(Path(tmp_path).iterdir()) == []
