"""The programs of examples/ run and do what they say, and README.md shows them as they are."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fork_server import served
from parallel_run import clean_environment, hpcgnn, launcher, run_parallel_command

from hpcgnn.command_line import run
from hpcgnn.registry import read_json

ROOT = Path(__file__).resolve().parents[1]
GRAPH = "synthetic:nodes=3000,mean_degree=10,classes=4,features=32,homophily=0.9"


@pytest.mark.long      # tests/pyg trains such models on ranks
def test_a_pyg_model_of_ones_own_learns_on_two_ranks(tmp_path):
    pytest.importorskip("torch_geometric", reason="the example uses PyTorch Geometric")
    command = hpcgnn("preprocess", GRAPH, "--out", "shards", "--parts", 2)
    assert run_parallel_command(1, command, tmp_path).status == 0
    shutil.copy(ROOT / "examples" / "own_model.py", tmp_path)      # a module of the current folder is found
    sent = {}
    for bits in (8, 32):
        ended = run_parallel_command(2, hpcgnn("train", "shards", "--model", "own_model:GAT", "--method", "uniform",
                                               "--bits", bits, "--hidden", 64, "--epochs", 20, "--out", f"run{bits}"),
                                     tmp_path)
        assert ended.status == 0, ended.stderr
        summary, _ = read_json((tmp_path / f"run{bits}" / "summary.json").read_text())
        assert summary["test_score"] > 0.5      # four classes of equal size: chance is 0.25
        lines = (tmp_path / f"run{bits}" / "metrics.jsonl").read_text().splitlines()
        sent[bits] = [json.loads(line)["sent_bytes_payload"] for line in lines]
    assert len(sent[8]) == 20 and [4 * one for one in sent[8]] == sent[32]


@pytest.mark.long      # tests/library, tests/pyg and tests/nn train such models on ranks
@pytest.mark.parametrize("name", ["own_loop", "contrastive", "typed_model"])
def test_a_program_learns_on_two_ranks(name, tmp_path):
    pytest.importorskip("torch_geometric", reason="two of the examples use PyTorch Geometric")
    command = hpcgnn("preprocess", GRAPH, "--out", "shards/small", "--parts", 2)
    assert run_parallel_command(1, command, tmp_path).status == 0
    ended = run_parallel_command(2, [sys.executable, ROOT / "examples" / f"{name}.py", "shards/small"], tmp_path)
    assert ended.status == 0, ended.stderr
    assert float(ended.stdout.split()[-1]) > 0.4      # of three or four classes of equal size


@pytest.fixture(scope="module")
def cora():
    """The archive of Cora, where the machine has real graphs."""
    folder = os.environ.get("HPCGNN_DATASETS")
    if folder is None:
        pytest.skip("HPCGNN_DATASETS names no folder with cora.npz")
    return Path(folder) / "cora.npz"


@pytest.mark.long      # tests/pyg compares losses with those of one process
def test_readmes_lines_train_pygs_model_distributed_with_the_same_loss_and_score(tmp_path, cora, request):
    """The lines as README prints them, beside a file called cora.npz, and once more on three ranks."""
    pytest.importorskip("torch_geometric", reason="the examples use PyTorch Geometric")
    shutil.copy(cora, tmp_path / "cora.npz")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = re.search(r"in `cora.npz` .*\n```sh\n([^`]*)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    alone, *distributed = lines.splitlines()
    words = alone.split()
    assert words[0] == "python" and len(distributed) == 2
    alone = subprocess.run(served(words[1:]), capture_output=True, text=True, cwd=tmp_path,
                           env=clean_environment(), timeout=300)
    assert alone.returncode == 0, alone.stderr
    for parts in (2, 3) if request.config.getoption("--all") else (2,):
        preprocess, train = (line.replace("-p2", f"-p{parts}").replace("--parts 2", f"--parts {parts}")
                             for line in distributed)
        assert run_parallel_command(1, hpcgnn(*preprocess.split()[1:]), tmp_path).status == 0
        ended = run_parallel_command(parts, [sys.executable, *train.partition(" python ")[2].split()], tmp_path)
        assert ended.status == 0, ended.stderr
        assert ended.stdout == alone.stdout


def test_readme_shows_the_lines_that_the_example_runs():
    readme, example = (ROOT / "README.md").read_text(), (ROOT / "examples" / "cora_distributed.py").read_text()
    shown = re.search(r"```diff\n(.*?)```", readme, re.DOTALL)[1].splitlines()
    assert len([line for line in shown if line.startswith("+")]) <= 5
    for line in (line[1:] for line in shown if line[0] in "+ "):
        assert line in example.splitlines()


def cells_of_the_notebook() -> list[dict]:
    notebook = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_holds_cells_that_are_python_and_no_outputs():
    cells = cells_of_the_notebook()
    assert len(cells) > 5 and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    for cell in cells:
        compile("".join(cell["source"]), "cell", "exec")


@pytest.mark.long      # tests/library/test_notebook.py tests what its cells show
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    pytest.importorskip("torch_geometric", reason="the notebook trains a model of PyTorch Geometric")
    pytest.importorskip("matplotlib", reason="the notebook draws a figure")
    program = "\n\n".join("".join(cell["source"]) for cell in cells_of_the_notebook())
    (tmp_path / "cells.py").write_text(program + "\nassert run.test_score > 0.6, run.test_score\n")      # chance: 0.25
    ended = subprocess.run(served(["cells.py"]), capture_output=True, text=True, cwd=tmp_path,
                           env=clean_environment(), timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert "chart-loss" in (tmp_path / "runs" / "notebook" / "report.html").read_text()


# What each script prints last; numbers are of fixed seeds, or checked by the script itself.
SCRIPTS = {
    "bit_tensor": r"153600 bytes of features became 14592, and their product 19456 instead of 153600",
    "bit_tiles": r"[1-9]\d* of \d+ tiles were zero and jumped",
    "adaptive_package": r"ideal (\d+) kB, adaptive-package \d+ kB, dense 256 kB, bitmap \d+ kB, csr \d+ kB, coo \d+ kB",
    "combination": r"2708 rows of 1433 codes became 64 exact sums each",
    "condense_edge": r"\d+ copies; (?P<first>\d+) bytes as they come, (?P<second>\d+) by METIS, "
                     r"(?P<last>\d+) condensed",
}


@pytest.mark.parametrize("name, line", [
    pytest.param(name, line, marks=() if name == "bit_tensor" else pytest.mark.long) for name, line in SCRIPTS.items()])
def test_a_script_of_a_part_runs_and_checks_itself(name, line, tmp_path):
    source = os.environ.get("PYTHONPATH")
    environment = {**clean_environment(), "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), source]))}
    ended = subprocess.run(served([ROOT / "examples" / f"{name}.py"]), capture_output=True, text=True,
                           cwd=tmp_path, env=environment, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = re.fullmatch(line, ended.stdout.splitlines()[-1])
    assert found
    if name == "condense_edge":
        assert int(found["first"]) > int(found["second"]) > int(found["last"])


def test_every_script_says_how_it_is_run_and_is_ten_lines_or_so():
    for path in (ROOT / "examples").glob("*.py"):
        source = path.read_text()
        assert f"python examples/{path.name}" in source or f"hpcgnn train shards/cora-p2 --model {path.stem}:" in source
        if path.stem in SCRIPTS:
            body = [line for line in source.splitlines()[1:] if line.strip() and "import" not in line]
            assert len(body) <= 12, path


@pytest.mark.long
def test_a_degree_aware_run_becomes_integers_that_answer_on_two_ranks(tmp_path):
    """The two shell examples, one after the other."""
    environment = {**clean_environment(), "HPCGNN": shlex.join(served(["-m", "hpcgnn"])), "EPOCHS": "4",
                   "HPCGNN_MPIRUN": f"{launcher()} -n 2"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    printed = ""
    for name in ("degree_aware.sh", "integer_inference.sh"):
        ended = subprocess.run(["bash", ROOT / "examples" / name, tmp_path / "out"], capture_output=True, text=True,
                               env=environment, timeout=900)
        assert ended.returncode == 0, ended.stderr
        printed += ended.stdout
    assert "chart-degrees" in (tmp_path / "out/run/report.html").read_text()
    assert (tmp_path / "out/predictions.h5").exists()
    assert "degree-aware" in printed and "peak memory" in printed


# The graph of Debian's packages

LIST = """\
Package: web-app
Version: 1.0-1
Section: contrib/web
Tag: role::program, web::blog,
 works-with::text
Pre-Depends: dpkg (>= 1.15.6~)
Depends: libc6:any (>= 2.36), libc6 (<< 3), apache2 | httpd, nowhere (= 1) | nothing
Recommends: web-doc
Conflicts: web-app
Provides: web-doc, blog-engine (= 1.0)
Description: blog server in perl

Package: web-doc
Version: 1.0-1
Section: doc
Enhances: blog-engine
Description: manual of the blog server

Package: libc6
Version: 2.36-9
Section: libs
Description: old library

Package: apache2
Version: 2.4
Section: httpd
Depends: libc6
Provides: httpd
Description: server in perl

Package: nginx
Version: 1.22
Section: httpd
Provides: httpd, httpd-wsgi
Description: server of the web
"""
SECOND_LIST = """\
Package: libc6
Version: 2.36-10
Section: libs
Breaks: apache2 (<< 2)
Replaces: dpkg
Description: new library

Package: dpkg
Version: 1.21
Section: admin
Description: manual of nothing

Package: web-doc
Version: 1.0~rc1-1
Section: oldlibs
Suggests: nginx
Description: early manual
"""


PAGE = ROOT / "examples" / "debian_packages.py"


@pytest.fixture
def tables_of(tmp_path, monkeypatch, capsys):
    """Callable: for the texts of lists, what the example prints, nodes as {name: (section, text)}, and edges."""
    def make(*lists):
        for number, text in enumerate(lists):
            (tmp_path / f"list-{number}").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(PAGE), *(f"list-{number}" for number in range(len(lists)))])
        run_path(PAGE, run_name="__main__")
        nodes, edges = (pq.read_table(f"{name}.parquet").to_pylist() for name in ("packages", "dependencies"))
        return capsys.readouterr().out, {row["name"]: (row["section"], row["text"]) for row in nodes}, [
            (row["source"], row["target"], row["kind"]) for row in edges]

    return make


def test_lists_of_packages_become_nodes_labels_and_edges_by_kind(tables_of):
    printed, nodes, edges = tables_of(LIST, SECOND_LIST)
    assert {name: section for name, (section, _) in nodes.items()} == {
        "web-app": "web", "web-doc": "doc", "libc6": "libs", "apache2": "httpd", "nginx": "httpd", "dpkg": "admin"}
    assert sorted(edges) == sorted([
        ("web-app", "dpkg", "Pre-Depends"), ("web-app", "libc6", "Depends"),
        ("web-app", "apache2", "Depends"), ("web-app", "nginx", "Depends"),     # nginx provides the alternative httpd
        ("web-app", "web-doc", "Recommends"), ("web-app", "web-doc", "Provides"),
        ("web-doc", "web-app", "Enhances"),     # blog-engine is virtual
        ("apache2", "libc6", "Depends"), ("libc6", "apache2", "Breaks"), ("libc6", "dpkg", "Replaces")])
    assert "6 packages of 5 sections, 10 dependencies: 4 Depends" in printed
    assert "2 names in these fields are of no package" in printed


def test_features_come_from_descriptions_alone(tables_of):
    _, nodes, _ = tables_of(LIST)
    renamed = LIST.replace("Section: doc", "Section: net").replace("role::program", "role::data").replace("nginx", "ng")
    _, others, _ = tables_of(renamed)
    assert list(others) == ["web-app", "web-doc", "libc6", "apache2", "ng"] and others["web-doc"][0] == "net"
    assert [text for _, text in nodes.values()] == [text for _, text in others.values()]
    _, others, _ = tables_of(LIST.replace("server of the web", "server of the blog"))
    assert [text for _, text in nodes.values()] != [text for _, text in others.values()]


def test_versions_are_ordered_as_dpkg_orders_them():
    order = run_path(PAGE)["version_order"]
    ascending = ["0~~", "0~", "0", "1.0~rc1-1", "1.0-1~bpo1", "1.0-1", "1.0-1+b1", "1.0-10", "1.0a-1", "1.0+b-1", "1.2",
                 "1.10", "1:0.1", "2:0~1"]
    assert sorted(reversed(ascending), key=order) == ascending
    assert order("1.0") == order("1.0-0") == order("0:1.00")


@pytest.mark.parametrize("name, sentence", [
    ("nosuch", "nosuch can't be read: .*No such file"), ("nosuch.xz", "nosuch.xz can't be read: .*No such file"),
    ("empty", "there are no lists of packages; run apt-get update as root, or name a Packages file of an archive")])
def test_a_list_that_cannot_be_read_ends_in_a_sentence(name, sentence, tmp_path, monkeypatch):
    (tmp_path / "empty").write_text("\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(PAGE), name])
    with pytest.raises(SystemExit) as ended:
        run_path(PAGE, run_name="__main__")
    assert re.match(sentence, ended.value.code)


def test_a_compressed_list_is_read_as_the_plain_one(tmp_path):
    if not Path("/usr/lib/apt/apt-helper").exists():
        pytest.skip("apt-helper, which decompresses lists, is part of Debian and Ubuntu")
    read = run_path(PAGE)["records_of"]
    (tmp_path / "Packages").write_text(LIST)
    (tmp_path / "Packages.gz").write_bytes(gzip.compress(LIST.encode()))
    (tmp_path / "Packages.xz").write_bytes(lzma.compress(LIST.encode()))
    plain, *compressed = (read([tmp_path / f"Packages{end}"]) for end in ("", ".gz", ".xz"))
    assert len(plain) == 5 and compressed == [plain, plain]


def made_list(num_packages):
    """A list whose packages depend mostly on others of their section, and whose descriptions say little of it."""
    rng, sections = np.random.default_rng(0), ["games", "libs", "net", "science"]
    records = []
    for number in range(num_packages):
        same = rng.integers(0, num_packages // 4, 3) * 4 + number % 4
        near = [f"p{one}" for one in np.where(rng.random(3) < 0.9, same, rng.integers(0, num_packages, 3))]
        words = [f"word{letter}" for letter in rng.choice(list("abcdefgh"), 3)]
        words += [sections[number % 4]] * bool(rng.random() < 0.3)
        records.append(f"Package: p{number}\nVersion: 1\nSection: {sections[number % 4]}\nDepends: {near[0]}, {near[1]}"
                       f"\nSuggests: {near[2]} | {near[0]}\nDescription: {' '.join(words)}\n")
    return "\n".join(records)


def test_training_on_a_list_of_packages_is_better_than_chance(tables_of, tmp_path):
    tables_of(made_list(400))
    source = "parquet:dependencies.parquet,nodes=packages.parquet,label=section"
    for words in (["preprocess", source, "--symmetrize", "--out", "shards", "--parts", "1"],
                  ["train", "shards", "--layers", "2", "--hidden", "32", "--epochs", "20", "--out", "run"]):
        assert run(words) == 0
    summary, _ = read_json((tmp_path / "run" / "summary.json").read_text())
    assert summary["test_score"] > 0.5      # four sections of equal size: chance is 0.25
