"""The list of planted faults fits the sources: each can still be planted, and its tests are there. Runs none."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from mutation import Mutation, Tests
from mutations import MUTATIONS

import hpcgnn

PACKAGE, TESTS = Path(hpcgnn.__file__).parent, Path(__file__).parent


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.file}: {mutation.fault}")
def test_a_planted_fault_changes_one_place_and_its_tests_exist(mutation):
    path, planted = mutation.plant(PACKAGE)
    assert planted != path.read_text()
    if path.suffix == ".py":
        compile(planted, path, "exec")
    named = [word.partition("::") for word in shlex.split(mutation.caught_by.arguments) if word.endswith(".py")
             or "::" in word]
    assert named and all((TESTS / file).is_file() for file, _, _ in named)
    assert all(f"def {test}(" in (TESTS / file).read_text() for file, _, test in named if test)


MADE = Mutation("a/first.py", "made", "rows = f(x, 1)", "rows = f(x, 2)", Tests("test_mutations.py"))


@pytest.mark.parametrize("files, found", [
    ({"a/first.py": "if x:\n    rows = f(x, 1)\n"}, ("a/first.py", "if x:\n    rows = f(x, 2)\n")),
    ({"a/first.py": "rows = f(\n    x,\n    1)\n"}, ("a/first.py", "rows = f(x, 2)\n")),
    ({"b/other.py": "rows=f(x, 1)  # 1\n", "a/first.py": "rows = f(x, 11)"}, ("b/other.py", "rows = f(x, 2)  # 1\n")),
    ({"a/first.py": "rows = f(x, 1)\n", "b/other.py": "rows = f(x, 1)\n"}, ("a/first.py", "rows = f(x, 2)\n")),
    ({"b/one.py": "rows = f(x, 1)\n", "b/other.py": "rows = f(x, 1)\n"}, None),
    ({"a/first.py": "rows = f(x, 1) + f(x, 1)\nrows = f(x, 1)\n"}, None), ({"a/first.py": ""}, None),
])
def test_a_fault_is_found_by_its_words_in_its_file_or_in_another(tmp_path, files, found):
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    if found is None:
        with pytest.raises(LookupError, match="times in the package, not once"):
            MADE.plant(tmp_path)
    else:
        assert MADE.plant(tmp_path) == (tmp_path / found[0], found[1])


def test_no_fault_is_listed_twice():
    assert len({(mutation.file, mutation.old, mutation.new) for mutation in MUTATIONS}) == len(MUTATIONS) >= 40
