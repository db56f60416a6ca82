import gzip

import numpy as np
import pytest

from hpcgnn.datasets import tables
from hpcgnn.datasets.tables import read_table
from hpcgnn.errors import DatasetError


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("file", ["t.csv", "t.csv.gz", "renamed_gzip"])
@pytest.mark.parametrize("block_bytes", [1 << 25, 7, 1])
@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_all_rows_are_read_whatever_the_block_size_and_packing(file, block_bytes, end, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", block_bytes)
    path = tmp_path / file
    text = "\n".join(f"{k},{k * k}" for k in range(30)) + end
    path.write_bytes(text.encode() if file == "t.csv" else gzip.compress(text.encode()))
    assert read_table(path, np.int64).tolist() == [[k, k * k] for k in range(30)]


@pytest.mark.parametrize("text", ["source,target\n1,2\n3,4\n", "# made by hand\n\n1\t2\n3\t4\n", "1 2\n  3   4\n",
                                  "# comment\nu\tv\n1\t2\n# in between\n3\t4"])
def test_headers_comments_and_separators_are_recognized(text, tmp_path):
    assert read_table(write(tmp_path / "t", text), np.int64).tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("text", ["", "# nothing\n", "u,v\n"])
def test_a_file_without_rows_gives_an_empty_table(text, tmp_path):
    assert read_table(write(tmp_path / "t.csv", text), np.int64).shape == (0, 0)


@pytest.mark.parametrize(("text", "match"), [
    ("1,2\n3,x\n", "expected whole numbers only"),
    ("1,2\n3,4.5\n", "expected whole numbers only"),
    ("1,2\n3\n", "can't be read as a table"),
    ("1,2\n3,99999999999999999999\n", "expected whole numbers only"),
])
def test_malformed_rows_are_refused(text, match, tmp_path):
    with pytest.raises(DatasetError, match=match):
        read_table(write(tmp_path / "t.csv", text), np.int64)


def test_blocks_of_unequal_width_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 4)
    with pytest.raises(DatasetError, match="rows of unequal length"):
        read_table(write(tmp_path / "t.csv", "1,2\n3,4\n5\n"), np.int64)


def test_a_truncated_gzip_file_is_refused(tmp_path):
    path = write(tmp_path / "t.csv.gz", "\n".join(f"{k},{k}" for k in range(5000)))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DatasetError, match=r"t\.csv\.gz can't be read .* truncated or damaged"):
        read_table(path, np.int64)


def test_progress_adds_up_to_the_size_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 100)
    path = write(tmp_path / "t.csv.gz", "\n".join(f"{k},{k}" for k in range(500)))
    advanced = []

    class Task:
        def advance(self, amount):
            advanced.append(amount)

    def progress(description, total):
        assert total == path.stat().st_size
        return Task()

    read_table(path, np.int64, progress)
    assert sum(advanced) == path.stat().st_size
