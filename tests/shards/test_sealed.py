"""Sealed files: whole or absent, and never believed when a byte differs."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from hpcgnn.errors import CheckpointError, ShardError
from hpcgnn.shards.sealed import SEAL_BYTES, Seal, check_seal, open_sealed, parse_seal, write_sealed

KIND, VERSION = "part", 3


def fill(file):
    file["rows"] = np.arange(5000)
    file.attrs["name"] = "cora"


@pytest.fixture
def sealed(tmp_path):
    path = tmp_path / "a.h5"
    write_sealed(path, KIND, VERSION, fill)
    return path


def refusal(path, kind=KIND, version=VERSION, **how):
    with pytest.raises(how.get("error", ShardError)) as caught, open_sealed(path, kind, version, **how):
        pass
    return str(caught.value)


def test_content_comes_back_as_it_was_written(sealed):
    with open_sealed(sealed, KIND, VERSION) as file:
        np.testing.assert_array_equal(file["rows"][()], np.arange(5000))
        assert file.attrs["name"] == "cora"


def test_same_content_gives_the_same_bytes(sealed, tmp_path):
    write_sealed(tmp_path / "b.h5", KIND, VERSION, fill)
    assert (tmp_path / "b.h5").read_bytes() == sealed.read_bytes()


def test_seal_is_plain_text_that_names_kind_format_and_size(sealed):
    lines = sealed.read_bytes()[:SEAL_BYTES].decode("ascii").split("\n")
    assert lines[:2] == ["hpcgnn part", "format 3"]
    assert lines[3] == f"bytes {sealed.stat().st_size}"


def test_nothing_but_the_file_is_left_in_the_folder(sealed):
    assert list(sealed.parent.iterdir()) == [sealed]


def test_what_is_another_file_or_none_is_one_sentence_with_the_callers_error_and_advice(sealed):
    gone = sealed.with_name("b.h5")
    assert refusal(gone) == f"{gone} is missing; run hpcgnn preprocess again"
    for version in (2, 4):
        expected = f"{sealed} has format 3, this version reads {version}; start without --resume"
        assert refusal(sealed, version=version, error=CheckpointError, advice="start without --resume") == expected
    assert "is a part file, expected a checkpoint file" in refusal(sealed, kind="checkpoint")


@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n", b"x" * 4096, bytes(4096)])
def test_foreign_file_is_refused(tmp_path, content):
    (tmp_path / "b.h5").write_bytes(content)
    assert "is no file of hpcgnn" in refusal(tmp_path / "b.h5")


def test_folder_in_place_of_a_file_is_refused(tmp_path):
    (tmp_path / "b.h5").mkdir()
    assert "can't be read: Is a directory" in refusal(tmp_path / "b.h5")


@pytest.mark.parametrize("kept", [10, 511, 512, 4000, -1])
def test_truncated_file_is_refused_at_every_length(sealed, kept):
    content = sealed.read_bytes()
    sealed.write_bytes(content[:kept])
    assert "is truncated: it has" in refusal(sealed)


def test_appended_bytes_are_noticed(sealed):
    with open(sealed, "ab") as file:
        file.write(b"x")
    assert "is damaged: it has" in refusal(sealed)


def test_every_flipped_bit_of_the_seal_is_noticed(sealed):
    content = sealed.read_bytes()
    for bit in range(8 * SEAL_BYTES):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        sealed.write_bytes(damaged)
        with pytest.raises(ShardError):
            check_seal(sealed, KIND, VERSION)


def test_flipped_bits_of_the_body_are_noticed(sealed):
    content = sealed.read_bytes()
    rng = np.random.default_rng(0)
    for byte, bit in zip(rng.integers(SEAL_BYTES, len(content), 200), rng.integers(0, 8, 200), strict=True):
        damaged = bytearray(content)
        damaged[byte] ^= 1 << bit
        sealed.write_bytes(damaged)
        assert "is damaged: its checksum is" in refusal(sealed)


def test_parsed_seal_equals_the_rendered_one():
    seal = Seal("graph", 12, 0x00ABCDEF, 1 << 40)
    assert parse_seal(seal.render()) == seal and len(seal.render()) == SEAL_BYTES


@pytest.mark.parametrize("mistake", [ValueError("bad"), KeyboardInterrupt()])
def test_failing_fill_leaves_the_old_file_and_no_temporary(sealed, mistake):
    before = sealed.read_bytes()

    def broken(file):
        file["rows"] = np.zeros(10000)
        raise mistake

    with pytest.raises(type(mistake)):
        write_sealed(sealed, KIND, VERSION, broken)
    assert sealed.read_bytes() == before and list(sealed.parent.iterdir()) == [sealed]


@pytest.mark.parametrize("place, reason", [("missing/a.h5", "No such file or directory"),
                                           ("file/a.h5", "Not a directory")])
def test_unwritable_place_is_named_with_the_systems_reason(tmp_path, place, reason):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=f"can't be written: {reason}"):
        write_sealed(tmp_path / place, KIND, VERSION, fill, error=CheckpointError)


def run_python(code, folder, **how):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(folder)], capture_output=True, text=True,
                          timeout=30, **how)


@pytest.mark.parametrize("layout", ["{}", "{'chunks': (4096,), 'compression': 'lzf'}"])
def test_disk_that_fills_gives_one_sentence_and_a_clean_exit(sealed, layout):
    before = sealed.read_bytes()
    # A limit on file size fails a write as a full disk does; past versions of HDF5 crash at exit after one.
    result = run_python(f"""
        import sys, numpy as np
        from hpcgnn.errors import ShardError
        from hpcgnn.shards.sealed import write_sealed
        def fill(file):
            rows = file.create_dataset("rows", shape=(1 << 20,), dtype="f8", **{layout})
            for start in range(0, 1 << 20, 1 << 16):
                rows[start:start + (1 << 16)] = np.random.rand(1 << 16)
        try:
            write_sealed(sys.argv[1] + "/a.h5", "part", 3, fill)
        except ShardError as error:
            print(error)
        """, sealed.parent, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    assert (result.returncode, result.stderr) == (0, "")
    assert "a.h5 can't be written: File too large; check the folder and the space on its disk" in result.stdout
    assert sealed.read_bytes() == before and list(sealed.parent.iterdir()) == [sealed]


def test_kill_in_the_middle_leaves_the_old_file(sealed):
    before = sealed.read_bytes()
    result = run_python("""
        import os, signal, sys, numpy as np
        from hpcgnn.shards.sealed import write_sealed
        def fill(file):
            file["rows"] = np.zeros(100000)
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        write_sealed(sys.argv[1] + "/a.h5", "part", 3, fill)
        """, sealed.parent)
    assert result.returncode == -signal.SIGKILL
    assert sealed.read_bytes() == before
    assert [path.name.split("-")[0] for path in sealed.parent.iterdir() if path != sealed] == ["a.h5.tmp"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to a read-only folder")
def test_folder_without_permission_is_named(sealed):
    sealed.parent.chmod(0o500)
    with pytest.raises(ShardError, match="can't be written: Permission denied"):
        write_sealed(sealed, KIND, VERSION, fill)
    sealed.parent.chmod(0o700)
