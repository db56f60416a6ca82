"""Files of activations: what was written comes back, and what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from resealing import put, reseal

from hpcgnn.errors import ShardError
from hpcgnn.lowbit import package_shards as activations
from hpcgnn.lowbit.package import PackageFormat, encode
from hpcgnn.lowbit.package_shards import activation_path, read_activations, write_activations


def some_layers(num_rows=50):
    rng = np.random.default_rng(num_rows)
    layers = []
    for dim, is_signed in ((7, False), (33, True), (1, False)):
        width = rng.integers(2, 9, num_rows)
        codes = rng.integers(0, 1 << (width - is_signed)[:, None], (num_rows, dim))
        codes[rng.random(codes.shape) < 0.7] = 0
        form = PackageFormat(is_signed=is_signed)
        layers.append((encode(codes.astype(form.dtype), width, form), rng.random(num_rows).astype(np.float32)))
    return layers


@pytest.mark.parametrize("num_rows", [0, 1, 50])
def test_layers_come_back_to_the_bit(tmp_path, num_rows):
    layers, node_id = some_layers(num_rows), np.arange(num_rows)[::-1].copy()
    write_activations(tmp_path / "new" / "folder", 3, node_id, layers)
    found_id, found = read_activations(tmp_path / "new" / "folder", 3)
    np.testing.assert_array_equal(found_id, node_id)
    assert len(found) == len(layers)
    for (packed, scale), (expected, expected_scale) in zip(found, layers, strict=True):
        np.testing.assert_array_equal(packed.check().codes(), expected.codes())
        np.testing.assert_array_equal(packed.bit_width(), expected.bit_width())
        np.testing.assert_array_equal(scale, expected_scale)


@pytest.mark.parametrize("change, complaint", [
    *((lambda file, name=name: file.pop(name), f"has no {name}") for name in ("node_id", "layer-1", "layer-0/stream")),
    (put("node_id", np.arange(49)), "has 50 rows of layer-0 and 49 ids"),
    (put("layer-2/scale", np.ones(49, np.float32)),
     "has layer-2/scale of float32 and shape (49,), expected float32 and shape (50,)")])
def test_what_does_not_fit_is_refused(tmp_path, change, complaint):
    write_activations(tmp_path, 0, np.arange(50), some_layers())
    reseal(activation_path(tmp_path, 0), change)
    with pytest.raises(ShardError) as refused:
        read_activations(tmp_path, 0)
    assert str(refused.value) == f"{activation_path(tmp_path, 0)} {complaint}; {activations.ADVICE}"


def test_a_file_of_an_older_format_is_refused_and_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(activations, "VERSION", 1)
    write_activations(tmp_path, 0, np.arange(50), some_layers())
    monkeypatch.undo()
    with pytest.raises(ShardError, match=f"has format 1, this version reads 2; {activations.ADVICE}"):
        read_activations(tmp_path, 0)


def test_a_damaged_file_is_refused(tmp_path):
    write_activations(tmp_path, 0, np.arange(50), some_layers())
    path = activation_path(tmp_path, 0)
    content = bytearray(path.read_bytes())
    content[-100] ^= 4
    path.write_bytes(content)
    with pytest.raises(ShardError, match=f"is damaged.*{activations.ADVICE}"):
        read_activations(tmp_path, 0)


def test_a_folder_that_can_not_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ShardError, match=r"can't be made: .*; choose another folder"):
        write_activations(tmp_path / "file" / "folder", 0, np.arange(50), some_layers())
