"""The documentation is true: the site builds without a warning, its examples run, its commands and sentences exist.

A fenced block below a line `<!-- run -->`, or `<!-- run on 2 ranks -->` for Python, is an example: those of a page run
one after the other in one folder. Every command that a page shows is looked up in the program.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from fork_server import served
from parallel_run import clean_environment, is_open_mpi, launcher
from test_examples import made_list

from hpcgnn.cli.infer import SETTINGS
from hpcgnn.cli.predict import CHOICES, CORRECTIONS
from hpcgnn.command_line import COMMANDS, cli
from hpcgnn.config import known_settings
from hpcgnn.planning.recipe import COUNTED, WITHOUT_COST

sys.path.insert(0, str(Path(__file__).parents[1] / "jobs"))

from measurements.race import time_to_score

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
EXAMPLE = re.compile(r"^<!-- run(?: on (?P<ranks>\d) ranks)? -->\n```(?P<language>sh|python)\n(?P<body>.*?)^```$",
                     re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SHORT = "README.md"      # the page whose examples run without --all, on a smaller graph and with fewer epochs
LAUNCHERS = ("mpirun", "srun", "hpcgnn_mpirun", "hpcgnn_stoppable")
PLACEHOLDERS = re.compile(r"\.\.\.|…")
# Flags that pages name and that belong to other programs.
FOREIGN_FLAGS = {"--mpi", "--signal", "--batch", "--open-mode", "--stream-buffering", "--forward-signals",
                 "--kill-on-bad-exit", "--block-signal", "--export", "--array", "--bind-to", "--cpus-per-task",
                 "--no-requeue", "--dependency",
                 "--master-port", "--time", "--minutes", "--case", "--exhaustive", "--all",
                 "--table-only", "--pdb", "--short"}


def name_of(path: Path) -> str:
    return path.name


# The site

@pytest.mark.long
def test_the_site_builds_without_a_warning(tmp_path):
    for module, package in (("material", "mkdocs-material"), ("mkdocstrings_handlers", "mkdocstrings[python]")):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{package} is not installed; pip install '.[docs]'")
    built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
                           cwd=ROOT, capture_output=True, text=True,
                           env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    # With --quiet, --strict would see none of the warnings.
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stdout + built.stderr
    reference = (tmp_path / "site/api/index.html").read_text()
    assert "Collective: train one epoch on the whole graph" in reference


def test_every_link_of_a_text_leads_to_a_file():
    lost = [f"{path.name}: {target}" for path in [*TEXTS, ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"]
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text())
            if "://" not in target and not (path.parent / target).exists()]
    assert lost == []


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_every_file_of_the_repository_that_a_text_names_is_there(path):
    named = re.findall(r"`(?:bash |source )?((?:jobs|examples|tests|hpcgnn|docs|data/benchmarks)/[\w./-]+)`",
                       path.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_readme_names_every_method_and_model_and_stays_short():
    from hpcgnn.config import METHODS, MODELS

    readme = (ROOT / "README.md").read_text()
    assert [name for name in (*METHODS, *MODELS) if f"`{name}`" not in readme] == []
    assert len(readme.splitlines()) <= 120


@pytest.mark.parametrize("page, names", [("methods.md", "METHODS"), ("models.md", "MODELS")])
def test_a_page_has_a_row_for_every_method_or_model(page, names):
    from hpcgnn import config

    text = (ROOT / "docs" / page).read_text()
    assert [name for name in getattr(config, names) if f"\n| `{name}` |" not in text] == []


# Commands

@dataclass(frozen=True)
class Shown:
    """A command that a page shows: its words behind `hpcgnn`."""

    words: tuple[str, ...]


def commands_of(text: str) -> list[Shown]:
    """Every `hpcgnn ...` of the code blocks, indented ones too, and of the inline code of a text."""
    blocks = [match["body"] for match in FENCE.finditer(text) if match["language"] == "sh"]
    indented = re.findall(r"^    (.*hpcgnn .*)$", text, re.MULTILINE)
    inline = [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines() + indented + inline
    found = []
    for line in lines:
        words = re.sub("['\"]", "", line.partition(" #")[0]).split()
        if "hpcgnn" in words and words[0] in ("hpcgnn", *LAUNCHERS):
            shown = words[words.index("hpcgnn") + 1:]
            if shown[:1] == ["launch"]:      # the flags of what it starts are those of another command
                inner = next((place for place, word in enumerate(shown) if word in COMMANDS and word != "launch"), None)
                if inner is not None:
                    found.append(Shown(tuple(shown[inner:])))
                shown = shown[:inner]
            found.append(Shown(tuple(shown)))
    return found


def complaint_about(shown: Shown) -> str | None:
    """What is wrong with a command, None where the program has it and all of its flags."""
    command, words, context, known = cli, list(shown.words), click.Context(cli), {"--help", "--version"}
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if PLACEHOLDERS.fullmatch(words[0]):
            return None
        found = command.get_command(context, words[0])
        if found is None:
            return f"there is no {words[0]!r} in {shown.words}"
        command, words = found, words[1:]
        # A group's options may stand behind its commands, as those of `hpcgnn bench` do.
        known |= {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    assigned = [after.partition("=")[0] for word, after in itertools.pairwise(words) if word == "--set"]
    own = {"predict": {**CORRECTIONS, **CHOICES}, "plan": (*COUNTED, *WITHOUT_COST, "sample"),
           "infer": SETTINGS}.get(next(iter(shown.words), ""))
    settings = own or {setting.name for setting in known_settings()} | {"NAME", "few_bits"}
    unknown += [f"--set {name}" for name in assigned if name not in settings]
    return f"{' '.join(shown.words)}: unknown {unknown}" if unknown else None


def flags_of(command: click.Command) -> set[str]:
    """All flags of a command and of those below it."""
    own = {flag for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    if isinstance(command, click.Group):
        context = click.Context(command)
        own = own.union(*(flags_of(command.get_command(context, name)) for name in command.list_commands(context)))
    return own


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_every_command_that_a_text_shows_exists_with_its_flags(path):
    assert [fault for fault in map(complaint_about, commands_of(path.read_text())) if fault] == []


def test_a_wrong_command_in_a_text_is_found():
    text = ("`hpcgnn trian DIR` or `hpcgnn train DIR --bit 2` or `hpcgnn train DIR --set most_drfit=1`"
            " or `hpcgnn predict RUN DIR --set lr=1`\n"
            " or `hpcgnn launch -n 2 train DIR --bit 2`\n"
            "```sh\nmpirun -n 2 hpcgnn infer m.h5 s \\\n  --wrong\n```\n")
    assert sum(complaint_about(shown) is not None for shown in commands_of(text)) == 6


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_every_flag_that_a_text_names_belongs_to_a_command(path):
    named = set(re.findall(r"`(--[a-z][a-z-]*)", path.read_text()))
    assert named - flags_of(cli) - flags_of(time_to_score.command) - FOREIGN_FLAGS == set()


# Sentences

def sentences_of_the_program() -> str:
    """All texts of the program's source, a hole of a formatted one as a zero byte."""
    texts = []
    for source in (ROOT / "hpcgnn").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_every_sentence_of_troubleshooting_is_one_of_the_program():
    text, program = (ROOT / "docs/troubleshooting.md").read_text(), sentences_of_the_program()
    shown = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    assert len(shown) >= 15
    pieces = [(sentence, piece.strip()) for sentence in shown for piece in sentence.split("…")]
    assert [pair for pair in pieces if pair[1] and pair[1] not in program] == []


# Examples

def examples_of(path: Path) -> list[re.Match]:
    return list(EXAMPLE.finditer(path.read_text()))


def test_every_mark_has_an_example_below_it():
    for path in (ROOT / "README.md", *PAGES):
        assert path.read_text().count("<!-- run") == len(examples_of(path)), path


@pytest.fixture
def environment(tmp_path):
    """Variables with which `hpcgnn`, `mpirun` and `python` are those of this test."""
    folder = tmp_path / "bin"
    folder.mkdir()
    binding = "--bind-to none" if is_open_mpi() else ""
    forked = shlex.join(served(["-m", "hpcgnn"]))
    # hpcgnn launch decides about binding itself, and names the installed program.
    decided = (f'for word; do shift; case $word in */bin/hpcgnn) set -- "$@" {forked};; *) set -- "$@" "$word";; esac\n'
               f'done\ncase "$*" in *-bind-to*|--version) exec {shlex.quote(launcher())} "$@";; esac\n')
    for name, command in (("hpcgnn", forked), ("python", shlex.join(served([]))),
                          ("mpirun", f"{shlex.quote(launcher())} {binding}")):
        first = decided if name == "mpirun" else ""
        (folder / name).write_text(f'#!/bin/sh\n{first}exec {command} "$@"\n')
        (folder / name).chmod(0o755)
    variables = clean_environment()
    path = os.pathsep.join(filter(None, [str(ROOT), variables.get("PYTHONPATH")]))
    return {**variables, "PATH": f"{folder}{os.pathsep}{variables['PATH']}", "PYTHONPATH": path}


@pytest.mark.parametrize("path, is_short", [
    pytest.param(ROOT / SHORT, True, id="short"),
    *(pytest.param(path, False, id=path.name, marks=pytest.mark.long) for path in TEXTS if examples_of(path))])
def test_the_examples_of_a_page_run(path, is_short, tmp_path, environment):
    """As they stand, or with three epochs on few nodes."""
    for number, example in enumerate(examples_of(path)):
        suffix, ranks = {"sh": "sh", "python": "py"}[example["language"]], example["ranks"]
        file = tmp_path / f"example_{number}.{suffix}"
        short = re.sub(r"--epochs \d+", "--epochs 3", example["body"]).replace("synthetic: ", "synthetic:nodes=800 ")
        file.write_text(short if is_short else example["body"])
        command = ["bash", "-euo", "pipefail", file] if suffix == "sh" else ["python", file]
        if ranks:
            command = ["mpirun", "-n", ranks, *command]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, timeout=300)
        assert ended.returncode == 0, f"{example['body']}\n{ended.stdout}{ended.stderr}"


@pytest.mark.long
def test_the_page_of_the_real_graph_runs_on_a_small_list_of_packages(tmp_path, environment):
    """All of its commands but apt-get, with a list that is named and fewer epochs."""
    text = (ROOT / "docs/real-graph.md").read_text()
    page = "".join(match["body"] for match in FENCE.finditer(text) if match["language"] == "sh")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "Packages").write_text(made_list(400))
    script = re.sub("^sudo apt-get update$", "", page, flags=re.MULTILINE)
    script = re.sub(r"--epochs \d+", "--epochs 2", script.replace("debian_packages.py", "debian_packages.py Packages"))
    ended = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=environment,
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "400 packages of 4 sections" in ended.stdout
    answers = (tmp_path / "sections.csv").read_text().splitlines()
    assert answers[0].startswith("node,") and len(answers) == 401 and answers[1].startswith("p0,")
