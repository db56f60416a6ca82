"""What `import hpcgnn` offers is listed once: types, docs and docstrings agree with the list."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import hpcgnn

ROOT = Path(hpcgnn.__file__).parent


def names_for_type_checkers() -> dict[str, str]:
    """Names that the package imports where only type checkers look, with their modules."""
    tree = ast.parse((ROOT / "__init__.py").read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(branch.test) == "TYPE_CHECKING"
    return {name.asname: node.module for node in branch.body for name in node.names}


def test_lists_agree():
    assert sorted(hpcgnn._HOMES) == sorted(hpcgnn.__all__)
    assert names_for_type_checkers() == hpcgnn._HOMES
    assert set(hpcgnn.__all__) <= set(dir(hpcgnn))
    assert (ROOT / "py.typed").exists()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'hpcgnn' has no attribute 'opne'"):
        hpcgnn.opne  # noqa: B018


@pytest.mark.parametrize("name", hpcgnn.__all__)
def test_a_public_name_is_documented_and_typed(name):
    found = getattr(hpcgnn, name)
    assert found.__module__ == hpcgnn._HOMES[name]
    page = (ROOT.parent / "docs" / "api.md").read_text()
    assert f"::: {hpcgnn._HOMES[name]}.{name}\n" in page
    if not inspect.isclass(found):
        assert {"Parameters\n", "Raises\n", "Examples\n"} <= set(inspect.getdoc(found).splitlines(keepends=True))
    functions = [found] if not inspect.isclass(found) else [
        member for key, member in vars(found).items() if inspect.isfunction(member) and not key.startswith("_")]
    for function in functions:
        assert inspect.getdoc(function), function
        signature = inspect.signature(function)
        untyped = [own.name for own in signature.parameters.values()
                   if own.annotation is own.empty and own.name != "self"]
        assert not untyped and signature.return_annotation is not signature.empty, function
