"""What is read in pieces equals the whole, whichever rows are asked for; what can't be kept or read is one sentence."""

import numpy as np
import pytest

from hpcgnn.data.arrays import RowFile, columns, in_pieces, keep_rows
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import DatasetError

TABLE = np.arange(60, dtype=np.float64).reshape(12, 5)
ROWS = {"all": slice(None), "some": slice(3, 7), "past the end": slice(9, 40), "none": slice(8, 2),
        "every third": slice(None, None, 3), "numbers": np.array([11, 0, 4, 4, 3]), "no numbers": np.empty(0, np.int64)}


@pytest.fixture
def filed(tmp_path):
    """Put an array into a file behind some bytes."""
    def put(array):
        (tmp_path / "rows").write_bytes(b"header!" + np.ascontiguousarray(array).tobytes())
        return RowFile((tmp_path / "rows").open("rb"), 7, array.shape, array.dtype)
    return put


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("array", [TABLE, TABLE[:, 0].astype(">i4"), (TABLE[:, :1] % 2 == 0)],
                         ids=["doubles", "a vector of another byte order", "a column of bools"])
def test_rows_of_a_file_equal_those_of_the_array(filed, array, rows):
    held = filed(array)
    np.testing.assert_array_equal(held[rows], array[rows])
    assert held[rows].dtype == array.dtype and (held.shape, len(held), held.ndim) == (array.shape, 12, array.ndim)


def test_columns_and_single_rows_are_read_from_the_file_as_arrays(filed):
    held = filed(TABLE)
    for number, column in enumerate(columns(held)):
        np.testing.assert_array_equal(column[2:9], TABLE[2:9, number])
        np.testing.assert_array_equal(np.asarray(column), TABLE[:, number])
    np.testing.assert_array_equal(held.row(4)[1:4], TABLE[4, 1:4])


def test_a_file_that_is_too_short_is_refused_when_it_is_opened_and_while_it_is_read(filed, tmp_path):
    held = filed(TABLE)
    (tmp_path / "rows").write_bytes(b"header!" + bytes(100))
    with pytest.raises(OSError, match="became shorter"):
        held[np.array([11])]
    with pytest.raises(DatasetError, match="rows ends after 107 bytes, expected 487"):
        RowFile((tmp_path / "rows").open("rb"), 7, TABLE.shape, TABLE.dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mapped_array_is_read_in_pieces_and_one_in_fortran_order_stays_mapped(tmp_path, dtype):
    np.save(tmp_path / "c.npy", TABLE.astype(dtype))
    np.save(tmp_path / "f.npy", np.asfortranarray(TABLE))
    held = in_pieces(np.load(tmp_path / "c.npy", mmap_mode="c"))
    assert isinstance(held, RowFile) and held.dtype == dtype
    np.testing.assert_array_equal(held[:], TABLE)
    assert isinstance(in_pieces(np.load(tmp_path / "f.npy", mmap_mode="c")), np.memmap)


def test_kept_rows_equal_their_blocks_and_leave_no_name_behind(tmp_path):
    blocks = [TABLE[:5], TABLE[5:6], TABLE[6:]]
    kept = keep_rows(iter(blocks), tmp_path, "rows")
    assert isinstance(kept, RowFile) and list(tmp_path.iterdir()) == []
    np.testing.assert_array_equal(kept[np.array([11, 5, 0])], TABLE[[11, 5, 0]])
    np.testing.assert_array_equal(kept[:], TABLE)
    assert isinstance(keep_rows(iter(blocks), None, "rows"), np.ndarray)


def test_a_disk_without_room_is_named_with_what_it_was_to_keep(tmp_path):
    with pytest.raises(DatasetError, match=r"rows of x can't be kept in .*/gone: No such file .*choose another --out"):
        keep_rows([TABLE], tmp_path / "gone", "rows of x")
    with pytest.raises(DatasetError, match="drawn features can't be kept in"):
        load_source("synthetic:nodes=40,classes=2,mean_degree=4", SourceOptions(scratch=tmp_path / "gone"))
