"""A small file that was changed anywhere is refused, or still says what was written; never anything else."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hpcgnn.config import TrainConfig, settings_of
from hpcgnn.errors import ConfigError
from hpcgnn.registry import as_toml, check_toml, read_json, read_toml, seal_json, seal_toml
from hpcgnn.report.run_folder import read_run
from hpcgnn.training.checkpoint import Progress
from hpcgnn.training.run_folder import RunFolder

NUM_MUTATIONS = 600
RECORD = {"seed": 0, "loss": 0.5, "epoch_seconds": 0.25, "sent_bytes_payload": 1000, "sent_bytes_parameters": 10,
          "mean_bits": 2.0, "val_score": 0.75, "test_score": 0.5, "mode": "sync"}


def mutate(content, random):
    """One accident: a bit, some bytes, a hole of zeros, a cut, a piece twice or gone, or two pieces swapped."""
    place = int(random.integers(len(content)))
    length = int(random.integers(1, 40))
    rest = content[place + length:]
    noise = random.integers(0, 256, length).astype(np.uint8).tobytes()
    return [
        content[:place] + bytes([content[place] ^ 1 << int(random.integers(8))]) + content[place + 1:],
        content[:place] + noise + rest,
        content[:place] + bytes([int(random.choice(np.frombuffer(b"0123456789.-\"{}[], e\n#=", np.uint8)))])
        + content[place + 1:],
        content[:place] + b"\0" * length + rest,
        content[:place],
        content[:place + length] + content[place:],
        content[:place] + rest,
        content[place:place + length] + content[:place] + rest,
    ][int(random.integers(8))]


@pytest.fixture
def run(tmp_path):
    """A complete run's small files."""
    folder = RunFolder(tmp_path)
    config = TrainConfig.of(model="gcn", lr=0.05)
    folder.write_config(settings_of(config), {"shards": "here", "dataset": "x", "ranks": 2})
    for epoch in range(1, 6):
        folder.append_metrics({**RECORD, "epoch": epoch, "loss": 1 / epoch})
    folder.write_summary({"dataset": "x", "seeds": [0], "val_score": 0.75, "test_score": 0.5, "ranks": 2,
                          "median_epoch_seconds": 0.25, "sent_bytes_per_epoch": 1010.0})
    return folder


def mutations(path, seed):
    """The file with each accident in turn; those that change nothing are left out."""
    content, random = path.read_bytes(), np.random.default_rng(seed)
    for _ in range(NUM_MUTATIONS):
        changed = mutate(content, random)
        if changed != content:
            path.write_bytes(changed)
            yield
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["config.toml", "metrics.jsonl", "summary.json"])
def test_no_accident_makes_a_report_say_something_else(run, name):
    expected = read_run(run.path, "run")
    refused = 0
    for _ in mutations(run.path / name, seed=1):
        try:
            found = read_run(run.path, "run")
        except ConfigError as error:
            assert str(run.path / name) in str(error) and "\n" not in str(error)
            refused += 1
            continue
        assert (found.config, found.provenance, found.summary) == (expected.config, expected.provenance,
                                                                   expected.summary)
        # Lines may be missing at the end, or the piece that came twice was a whole line.
        assert set(map(json.dumps, found.records)) <= set(map(json.dumps, expected.records))
    assert refused > NUM_MUTATIONS / 2


def test_no_accident_makes_a_configuration_another_one(run):
    file = run.path / "config.toml"
    expected = read_toml(file)
    for _ in mutations(file, seed=2):
        found, sentence = expected, f"configuration file {file} "
        try:
            found = read_toml(file)
        except ConfigError as error:
            sentence = str(error)
        assert found == expected
        assert sentence.startswith(f"configuration file {file} ") and "\n" not in sentence


def test_no_accident_with_the_metrics_stops_a_run_or_changes_a_line(run):
    file = run.path / "metrics.jsonl"
    expected = run.read_metrics()
    for _ in mutations(file, seed=3):
        sentence = run.go_on_from(Progress(epoch=5), 0)
        found = run.read_metrics()
        assert all(record in expected for record in found)
        assert [record["epoch"] for record in found] == sorted({record["epoch"] for record in found})
        assert len(found) == 5 or f"lacks the lines of {5 - len(found)} of the 5 epochs" in sentence


def test_a_configuration_that_its_user_has_edited_says_what_to_do(run):
    file = run.path / "config.toml"
    file.write_text(file.read_text().replace("lr = 0.05", "lr = 0.06"))
    with pytest.raises(ConfigError, match=r"is not as it was written: its checksum is [0-9a-f]{8}, expected "
                                          r"[0-9a-f]{8}; restore it, or delete its first line if you have edited it$"):
        read_toml(file)
    file.write_text(file.read_text().partition("\n")[2])
    assert read_toml(file)["lr"] == 0.06


@pytest.mark.parametrize("value", [{}, {"a": 1}, {"a": "}", "crc": [1.5, None]}, {"x": 'y "crc32": "00000000"}'}])
@pytest.mark.parametrize("indent", [None, 2])
def test_objects_come_back_as_they_were_sealed(value, indent):
    text = seal_json(json.dumps(value, indent=indent))
    assert read_json(text) == (value, True) == read_json(text + "\n")
    assert read_json(json.dumps(value)) == (value, False)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "[" * 100_000, '{"a": NaN}', '{"a": Infinity}', "9" * 5000])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(ValueError):
        read_json(text)


@pytest.mark.parametrize("value", [0, 1.5, True, "a # b", [1, 2]])
def test_tables_come_back_as_they_were_sealed(tmp_path, value):
    file = tmp_path / "t.toml"
    file.write_text(seal_toml(as_toml({"": {"x": value}})))
    check_toml(file.read_bytes())
    assert read_toml(file) == {"x": value}


def test_a_checksum_line_in_pieces_is_noticed():
    """Two blocks of the file have changed places, and each holds a part of the line."""
    sealed = seal_toml('lr = 0.01\nhidden = 64\nmodel = "sage"\n').encode()
    for start in range(len(sealed) - 40):
        swapped = sealed[:start] + sealed[start + 20:start + 40] + sealed[start:start + 20] + sealed[start + 40:]
        if swapped != sealed:
            with pytest.raises(ValueError, match="checksum"):
                check_toml(swapped)
