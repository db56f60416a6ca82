"""Other compilers than the one that built the kernels: all files without a warning, all levels, and the same bits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from kernel_program import FLAGS, NUM_HASHES, OTHERS, RUN, compile_alone, hashes, program

from hpcgnn.ops.simd import LEVELS, best_level

NAMES = [*(f"gcc-{version}" for version in range(11, 20)), "clang", *(f"clang-{version}" for version in range(14, 25))]
OTHER_COMPILERS = [name for name in NAMES if shutil.which(name)
                   and Path(shutil.which(name)).resolve() != Path(shutil.which("gcc") or "gcc").resolve()]

SOURCES = [RUN[0], *(pytest.param(name, marks=pytest.mark.long) for name in (*RUN[1:], "program", *OTHERS))]
pytestmark = [pytest.mark.skipif(not OTHER_COMPILERS, reason="there is no clang and no other gcc"),
              pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Hashes of this machine's gcc, by level."""
    made = program("gcc", tmp_path_factory.mktemp("gcc"))
    return {level: hashes([made], HPCGNN_SIMD=level) for level in LEVELS[:LEVELS.index(best_level()) + 1]}


@pytest.mark.parametrize("compiler", ["gcc", *OTHER_COMPILERS])
@pytest.mark.parametrize("name", SOURCES)
def test_a_kernel_file_compiles_without_a_warning(compiler, name):
    (made,) = compile_alone(compiler, name)
    assert made.stat().st_size > 0


@pytest.mark.long
@pytest.mark.parametrize("compiler", OTHER_COMPILERS)
def test_the_kernels_have_all_levels_and_the_same_bits(compiler, expected, tmp_path):
    num_levels = 1 if best_level() == "portable" else len(LEVELS)
    levels = f'#include "simd.h"\n_Static_assert(HPCGNN_LEVELS == {num_levels}, "levels");'
    subprocess.run([compiler, *FLAGS, "-fsyntax-only", "-x", "c", "-"], input=levels, text=True, check=True)
    made = program(compiler, tmp_path)
    for level, wanted in expected.items():
        found = hashes([made], HPCGNN_SIMD=level)
        assert len(found) == NUM_HASHES
        assert found == wanted, level
