"""The fences of ARCHITECTURE.md, kept by walking the source: who may import whom, and which library lives where."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import hpcgnn
from hpcgnn.data.source import LOADERS
from hpcgnn.methods import METHODS
from hpcgnn.nn.names import MODEL_PATHS

ROOT = Path(hpcgnn.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))

# The core, in the order in which a row travels, and the rooms that each may import besides itself and the kernels.
FOUNDATION = {"errors", "registry", "widths", "run"}
CORE = {
    "errors": set(),
    "registry": {"errors"},
    "settings": {"errors"},
    "widths": set(),
    "run": {"errors"},
    "data": FOUNDATION | {"settings"},
    "partition": FOUNDATION | {"data"},
    "shards": FOUNDATION | {"data", "partition"},
    "ops": FOUNDATION,
    "graph": FOUNDATION | {"ops"},
    "exchange": FOUNDATION | {"partition", "ops", "graph"},
    "methods": FOUNDATION | {"settings", "ops", "graph", "exchange"},
    "nn": FOUNDATION | {"settings", "ops", "graph"},
    "pyg": FOUNDATION | {"ops", "graph", "exchange", "nn"},
    "config": {"errors", "registry", "settings", "methods", "nn"},
    "steps": FOUNDATION | {"partition", "ops", "graph", "exchange"},
    "training": FOUNDATION | {"settings", "partition", "shards", "ops", "graph", "exchange", "steps", "methods",
                              "config", "nn", "pyg"},
    "results": FOUNDATION | {"settings", "partition", "shards", "graph", "exchange", "nn", "config", "training", "pyg"},
    "report": FOUNDATION,
    "library": FOUNDATION | {"data", "partition", "shards", "ops", "graph", "exchange", "settings", "methods", "config",
                             "nn", "training", "pyg", "report", "results"},
    # For type checkers; at run time when first used.
    "__init__": {"errors", "run", "library", "nn", "pyg", "results", "training"},
    "_ext": {"errors"},
}
# What is off that way: a wing may import the core, which imports none.
WINGS = {
    "lowbit": set(CORE) - {"library"},
    "links": set(CORE) - {"library", "pyg", "report"},
    "accelerators": {"errors", "partition", "lowbit"},
    "planning": FOUNDATION | {"settings", "data", "partition", "shards", "ops", "methods", "nn", "config"},
    "bench": set(CORE) | {"lowbit", "accelerators"},
}
# A command may import what it runs.
COMMANDS = {"cli": set(CORE) | set(WINGS), "command_line": {"errors", "run", "cli"},
            "__main__": {"run", "command_line", "output"}}
MAY_IMPORT = CORE | WINGS | COMMANDS
# Rooms or modules that may import a library.
LIBRARY_HOMES = {
    "mpi4py": ("run.launch", "run.torchrun", "exchange", "steps.clusters", "methods.method", "methods.controller",
               "methods.solving", "methods.bisection", "training", "lowbit.inference", "library",
               "results", "links"),
    "cupy": ("ops.cuda.module",),
    "h5py": ("shards", "training.checkpoint", "training.rank_state", "lowbit.package_shards",
             "lowbit.inference.model_file", "lowbit.inference.predictions",
             "results.answer_file"),
    "ogb": ("data.ogb",),
    "kaminpar": ("partition",),
    "pymetis": ("partition",),
    "hpcgnn._ext": ("_ext", "accelerators", "data.cleaning", "graph.batch", "links.ranking", "ops", "partition",
                    "lowbit.package", "bench.place"),
}
# Decisions that are pure functions of what rank 0 was told: they know neither messages nor their rows.
DECISIONS = {f"methods.{name}" for name in ("bisection", "greedy", "highs", "problem", "staleness",
                                             "time_bits")}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc"}


@dataclass(frozen=True)
class Import:
    """One import: the module that has it, relative to hpcgnn, and the full name of what it imports."""

    importer: str
    imported: str

    @property
    def room(self):
        return self.importer.split(".")[0]


def module_name(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def names_in(node):
    """Full names that a node imports, also through importlib with a literal name."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return [node.args[0].value] if called in ("import_module", "__import__") else []
    return []


@dataclass
class Walked:
    """All imports, and the modules that have a relative one, that name a communicator, and that say nothing."""

    imports: list[Import]
    relative: set[str]
    fetching: set[str]
    silent: set[str]


@cache
def walked() -> Walked:
    """What stands in the sources, from one walk."""
    found = Walked([], set(), set(), set())
    for path in SOURCES:
        module, tree = module_name(path), ast.parse(path.read_text())
        for node in ast.walk(tree):
            found.imports += [Import(module, name) for name in names_in(node)]
            if isinstance(node, ast.ImportFrom) and node.level:
                found.relative.add(module)
            if isinstance(node, ast.Attribute) and node.attr in ("COMM_WORLD", "COMM_SELF"):
                found.fetching.add(module)
        if tree.body and not ast.get_docstring(tree):
            found.silent.add(module)
    return found


def imports() -> list[Import]:
    return walked().imports


def is_within(name, home):
    return name == home or name.startswith(home + ".")


def test_the_walk_sees_the_whole_package():
    """A fence that finds no source or no import would pass for nothing."""
    seen = imports()
    assert Import("exchange.transfer", "mpi4py.MPI") in seen
    assert Import("graph.reductions", "hpcgnn.ops.aggregation.SparseRows") in seen
    assert {module_name(path).split(".")[0] for path in SOURCES} == set(MAY_IMPORT)


def test_a_room_imports_only_the_rooms_before_it():
    broken = []
    for found in imports():
        if not found.imported.startswith("hpcgnn."):
            continue
        target = found.imported.split(".")[1]
        if target not in {found.room, "_ext", "__version__"} | MAY_IMPORT[found.room]:
            broken.append(found)
    assert broken == []


def file_of(name, files):
    """The file that an imported name lies in, None outside of the package."""
    parts = name.removeprefix("hpcgnn.").split(".")
    return next((".".join(parts[:length]) for length in range(len(parts), 0, -1) if ".".join(parts[:length]) in files),
                None)


def circle_in(arrows):
    """Files that import each other around, the first again as the last; empty where there is no circle."""
    finished, path = set(), []

    def walk(file):
        if file in path:
            return [*path[path.index(file):], file]
        if file in finished:
            return []
        path.append(file)
        found = next((circle for target in sorted(arrows.get(file, ())) if (circle := walk(target))), [])
        path.pop()
        finished.add(file)
        return found

    return next((circle for file in sorted(arrows) if (circle := walk(file))), [])


def test_no_file_imports_itself_around():
    """Imports of types count too: two files that only know each other's types are one concept in two files."""
    files, arrows = {module_name(path) for path in SOURCES}, {}
    for found in imports():
        target = file_of(found.imported, files) if found.imported.startswith("hpcgnn.") else None
        if target not in (None, found.importer):
            arrows.setdefault(found.importer, set()).add(target)
    assert len(arrows) > 200 and circle_in(arrows) == []


def test_a_circle_is_found():
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("library, homes", LIBRARY_HOMES.items())
def test_a_library_is_imported_only_at_its_home(library, homes):
    broken = [found for found in imports() if is_within(found.imported, library)
              and not any(is_within(found.importer, home) for home in homes)]
    assert broken == []


def test_decisions_need_only_numpy_and_scipy():
    foreign = {}
    for found in imports():
        own = any(is_within(found.imported, f"hpcgnn.{home}") for home in {"errors", "widths", *DECISIONS})
        if found.importer in DECISIONS and not own:
            foreign.setdefault(found.imported.split(".")[0], found)
    assert set(foreign) - set(sys.stdlib_module_names) == {"numpy", "scipy"}


def test_imports_are_absolute():
    assert walked().relative == set()


def test_a_communicator_is_an_argument_and_only_launch_fetches_one():
    # A program that has not come to `hpcgnn.open` has loaded no launch, and must end all ranks too.
    assert walked().fetching == {"run.launch", "__init__"}


def test_no_module_is_named_after_nothing():
    names = {part for path in SOURCES for part in module_name(path).split(".")}
    assert names & FORBIDDEN_NAMES == set()


def test_every_module_says_what_lives_in_it():
    assert walked().silent == set()


def test_kernels_in_c_know_neither_mpi_nor_hdf5_nor_torch():
    folder = ROOT.parent / "ext"
    if not folder.is_dir():
        pytest.skip("hpcgnn is installed without its sources: there is no ext/ beside it")
    sources = [path for path in folder.rglob("*") if path.suffix in {".pyx", ".pxd", ".c", ".h"}]
    including = [(path.name, line) for path in sources for line in path.read_text().splitlines()
                 if line.lstrip().startswith(("#include", "import", "from", "cimport", "cdef extern"))
                 and any(word in line.lower() for word in ("mpi", "hdf5", "h5py", "torch"))]
    assert sources and including == []


def test_help_needs_no_mpi_no_torch_and_no_gpu():
    """What the command line imports before a command is called."""
    modules = {"__main__", "__init__", "errors", "run.signals", "command_line"}
    before = {found.imported.split(".")[0] for found in imports() if found.importer in modules}
    assert before.isdisjoint({"mpi4py", "torch", "cupy", "h5py"})


# Where a new name must stand, as what, and in which section of the file, by its heading ("": anywhere). CONTRIBUTING.md
# lists these files in order.
DEEP = {name: path.partition(":")[2] for name, path in MODEL_PATHS.items() if ".deep:" in path}
TABLES = [
    (MODEL_PATHS, "README.md", "Methods and models", "`{}`"),
    (MODEL_PATHS, "docs/models.md", "Models", "| `{}` |"),
    (MODEL_PATHS, "docs/models.md", "Edge weights", "`{}`"),
    (MODEL_PATHS, "docs/results.md", "Weights for other programs", "`{}`"),
    (DEEP.values(), "docs/api.md", "Models", "hpcgnn.nn.deep.{}"),
    (DEEP, "tests/reference_models.py", "", '"{}": '),
    (DEEP, "tests/nn/test_deep_models.py", "", '"{}"'),
    (MODEL_PATHS, "tests/nn/test_rematerialize.py", "", '"{}"'),
    (METHODS, "README.md", "Methods and models", "| `{}` |"),
    (METHODS, "docs/methods.md", "Methods", "| `{}` |"),
    (METHODS, "tests/training/test_methods.py", "", '"{}": '),
    (LOADERS, "docs/own-data.md", "Your own data", "`{}:"),
    (LOADERS, "hpcgnn/cli/preprocess.py", "", "{}:"),
]


@pytest.mark.parametrize("names, file, heading, form", TABLES)
def test_every_model_method_and_source_stands_in_the_tables(names, file, heading, form):
    text = (ROOT.parent / file).read_text()
    section = text if not heading else re.split(r"^#+ ", text.split(f"# {heading}\n")[1], flags=re.MULTILINE)[0]
    missing = [name for name in names if form.format(name) not in section]
    assert not missing, f"{file}, {heading or 'anywhere'}: add {', '.join(missing)}, as {form!r}"


def paper_table():
    """(paper, place in it, code) of every row of ARCHITECTURE.md's table of papers."""
    text = (ROOT.parent / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| ([\w-]+) \| (.+?) \| `([\w/]+\.py:[\w.]+)` \|$", text, re.MULTILINE)
    assert len(rows) > 25 and {"SYLVIE", "AdaQP", "HalfGNN", "MEGA", "QGTC"} <= {paper for paper, _, _ in rows}
    return rows


def found_in(nodes, names):
    """The definition that a list of names leads to, through classes; None where one is missing."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == names[0]:
            return node if len(names) == 1 else found_in(node.body, names[1:])
    return None


@pytest.mark.parametrize("paper, place, code", paper_table(), ids=lambda value: value)
def test_the_table_of_papers_leads_to_code_that_cites_the_paper(paper, place, code):
    file, _, name = code.partition(":")
    module = ast.parse((ROOT / file).read_text())
    definition = found_in(module.body, name.split("."))
    assert definition is not None, code
    cited = f"{ast.get_docstring(module)} {ast.get_docstring(definition)}"
    assert paper in cited
    numbers = re.findall(r"\d+(?:\.\d+)*|\b[IV]+-[A-E]\b|\b[IV]+\b", place.split(";")[0])
    assert all(number in cited for number in numbers), (place, cited)
