"""Kernels compiled by NVRTC: what it is asked for, what is kept, and that subnormal numbers stay; a stand-in for NVRTC
where there is none.
"""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest

from hpcgnn.errors import KernelError
from hpcgnn.ops.cuda import module as compiler
from hpcgnn.ops.cuda.module import KERNELS, machine_code

HAS_NVRTC = importlib.util.find_spec("cupy") is not None


class StandIn(types.ModuleType):
    """cupy's bindings of NVRTC; keeps the options of what it compiled."""

    class NVRTCError(Exception):
        pass

    def __init__(self):
        super().__init__("cupy.cuda.nvrtc")
        self.compiled, self.num_open, self.is_refusing = [], 0, False

    def getSupportedArchs(self):
        return [75, 80, 90]

    def getVersion(self):
        return 13, 0

    def createProgram(self, text, name, headers, include_names):
        self.num_open += 1
        return text, name

    def compileProgram(self, program, options):
        if self.is_refusing:
            raise self.NVRTCError("NVRTC_ERROR_COMPILATION (6)")
        self.compiled.append(options)

    def getProgramLog(self, program):
        return f"{program[1]}(3): error: expected a \";\""

    def getCUBIN(self, program):
        return b"cubin of " + program[0].encode()

    def getPTX(self, program):
        return b"PTX of " + program[0].encode()

    def destroyProgram(self, program):
        self.num_open -= 1


@pytest.fixture
def nvrtc(monkeypatch, tmp_path):
    """A stand-in, in place of NVRTC, kernels that include one file, and a folder for what is compiled."""
    stand_in = StandIn()
    cupy, cuda = types.ModuleType("cupy"), types.ModuleType("cupy.cuda")
    cupy.cuda, cuda.nvrtc = cuda, stand_in
    for module in (cupy, cuda, stand_in):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(compiler, "_headers", lambda: "/cuda/include")
    monkeypatch.setattr(compiler, "KERNELS", tmp_path)
    monkeypatch.setenv("HPCGNN_KERNEL_CACHE", str(tmp_path / "kept"))
    (tmp_path / "sum.cu").write_text("sum")
    (tmp_path / "shared.cuh").write_text("constexpr int A = 1;")
    compiler._digest_of_includes.cache_clear()
    yield stand_in
    compiler._digest_of_includes.cache_clear()


def test_a_source_is_compiled_once_for_a_chip(nvrtc, tmp_path):
    kept = machine_code(tmp_path / "sum.cu", False, 90)
    assert (kept.parent, kept.suffix, kept.read_bytes()) == (tmp_path / "kept", ".cubin", b"cubin of sum")
    assert machine_code(tmp_path / "sum.cu", False, 90) == kept
    assert nvrtc.compiled == [("-std=c++17", "--gpu-architecture=sm_90", f"-I{tmp_path}", "-I/cuda/include")]
    assert nvrtc.num_open == 0 and list(kept.parent.iterdir()) == [kept]


def test_products_are_not_fused_where_this_is_asked_for(nvrtc, tmp_path):
    files = {machine_code(tmp_path / "sum.cu", is_exact, 90) for is_exact in (False, True)}
    assert len(files) == 2 and ["--fmad=false" in options for options in nvrtc.compiled] == [False, True]


def test_a_changed_source_and_a_changed_include_are_compiled_again(nvrtc, tmp_path):
    files = [machine_code(tmp_path / "sum.cu", False, 90)]
    for changed, text in (("shared.cuh", "constexpr int A = 2;"), ("sum.cu", "other sum"),
                          ("shared.cuh", "constexpr int A = 1;")):
        (tmp_path / changed).write_text(text)
        compiler._digest_of_includes.cache_clear()
        files.append(machine_code(tmp_path / "sum.cu", False, 90))
    assert len(set(files)) == 4 and files[3].read_bytes() == b"cubin of other sum"


def test_a_chip_that_nvrtc_does_not_know_gets_ptx_of_the_one_before(nvrtc, tmp_path):
    kept = machine_code(tmp_path / "sum.cu", False, 87)
    assert kept.suffix == ".ptx" and kept.read_bytes() == b"PTX of sum"
    assert "--gpu-architecture=compute_80" in nvrtc.compiled[0]


def test_what_nvrtc_refuses_is_told_with_its_words(nvrtc, tmp_path):
    nvrtc.is_refusing = True
    with pytest.raises(KernelError, match=r"NVRTC does not compile sum.cu .*\n.*expected a"):
        machine_code(tmp_path / "sum.cu", False, 90)
    assert nvrtc.num_open == 0 and not (tmp_path / "kept").exists()


def test_a_folder_that_cannot_be_written_is_told_with_its_variable(nvrtc, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HPCGNN_KERNEL_CACHE", str(tmp_path / "file" / "folder"))
    with pytest.raises(KernelError, match=r"can't keep compiled kernels in .*; set HPCGNN_KERNEL_CACHE to a folder"):
        machine_code(tmp_path / "sum.cu", False, 90)


def test_nothing_is_left_of_code_that_cannot_be_written(nvrtc, tmp_path, monkeypatch):
    def full(unfinished, kept):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiler.os, "replace", full)
    with pytest.raises(KernelError, match=r"can't keep compiled kernels in .* \(No space left on device\)"):
        machine_code(tmp_path / "sum.cu", False, 90)
    assert list((tmp_path / "kept").iterdir()) == []


def test_the_users_cache_is_taken_where_no_folder_is_named(monkeypatch, tmp_path):
    monkeypatch.delenv("HPCGNN_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiler.cache_folder() == tmp_path / "hpcgnn" / "kernels"


@pytest.mark.skipif(not HAS_NVRTC, reason="cupy is not installed, which brings NVRTC")
def test_nvrtc_keeps_subnormal_numbers(monkeypatch, tmp_path):
    monkeypatch.setenv("HPCGNN_KERNEL_CACHE", str(tmp_path))
    assert machine_code(KERNELS / "quantization.cu", True, 90).read_bytes()[:4] == b"\x7fELF"
    text = machine_code(KERNELS / "quantization.cu", True, 89 + 10_000).read_text()     # a chip to come: PTX
    assert ".rn.f32" in text and ".ftz" not in text
