"""The list of planted faults fits the sources: each can still be planted, and its tests are there. Runs none."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from mutations import MUTATIONS

import hpcgnn

PACKAGE, TESTS = Path(hpcgnn.__file__).parent, Path(__file__).parent


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.file}: {mutation.fault}")
def test_a_planted_fault_changes_one_place_and_its_tests_exist(mutation):
    source = (PACKAGE / mutation.file).read_text()
    assert source.count(mutation.old) == 1 and mutation.new != mutation.old
    if mutation.file.endswith(".py"):
        compile(source.replace(mutation.old, mutation.new), mutation.file, "exec")
    named = [word.partition("::") for word in shlex.split(mutation.caught_by.arguments) if word.endswith(".py")
             or "::" in word]
    assert named and all((TESTS / file).is_file() for file, _, _ in named)
    assert all(f"def {test}(" in (TESTS / file).read_text() for file, _, test in named if test)


def test_no_fault_is_listed_twice():
    assert len({(mutation.file, mutation.old, mutation.new) for mutation in MUTATIONS}) == len(MUTATIONS) >= 40
