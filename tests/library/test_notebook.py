"""In a notebook: progress in the cell, errors of one line, runs and graphs as short texts and tables, reports shown."""

from __future__ import annotations

import csv
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI
from training_setup import SMALL

import hpcgnn
from hpcgnn.data.options import ProgressTask
from hpcgnn.errors import CollectiveError, ConfigError
from hpcgnn.run.output import is_notebook

COMM = MPI.COMM_WORLD
SETTINGS = {name: value for name, value in {**SMALL, "epochs": 12}.items() if name != "model"}


class Cell:
    """Stands in for IPython.display: keeps each thing that is displayed, with all its updates."""

    def __init__(self):
        self.shown = []

    def display(self, bundle, raw, display_id=False):
        assert raw
        self.shown.append([bundle])
        return SimpleNamespace(update=lambda bundle, raw: self.shown[-1].append(bundle)) if display_id else None


@pytest.fixture
def cell(monkeypatch):
    """The process is the kernel of a notebook."""
    found = Cell()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=found))
    monkeypatch.setitem(sys.modules, "IPython.display", found)
    monkeypatch.delenv("HPCGNN_PROGRESS", raising=False)
    return found


@pytest.fixture
def run(graph, shared_path):
    return hpcgnn.fit("gcn", graph, out=shared_path / "run<b>", **SETTINGS)


def test_a_training_is_one_line_that_is_rewritten(cell, graph, shared_path, capfd):
    hpcgnn.fit("gcn", graph, out=shared_path / "run", **SETTINGS)
    (line,) = cell.shown      # one place in the cell
    assert re.fullmatch(r"seed 0  epoch 12/12  loss \d\.\d{4}  val \S+  sent 0 B in .+", line[-1]["text/plain"])
    assert '<progress max="1" value="1.0000">' in line[-1]["text/html"] and "epoch 12/12" in line[-1]["text/html"]
    assert "epoch" not in capfd.readouterr().err


def test_a_cell_stays_empty_if_progress_is_off(cell, graph, shared_path, monkeypatch):
    monkeypatch.setenv("HPCGNN_PROGRESS", "0")
    hpcgnn.fit("gcn", graph, out=shared_path / "run", **SETTINGS)
    assert cell.shown == []


def test_the_terminal_program_of_ipython_is_no_notebook(cell, monkeypatch):
    assert is_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not is_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not is_notebook()


def test_preprocess_shows_its_steps_unless_it_is_given_a_progress(cell, tmp_path):
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    options = {"labels": [0, 1, 0, 1], "features": "structural"}
    hpcgnn.preprocess(edges, out=tmp_path / "a", **options)
    (line,) = cell.shown
    assert line[-2]["text/plain"] == "writing parts"
    assert line[-1]["text/plain"] == f"written to {tmp_path / 'a'}" and 'value="1.0000"' in line[-1]["text/html"]
    seen = []
    hpcgnn.preprocess(edges, out=tmp_path / "b", **options,
                      progress=lambda description, total: seen.append(description) or ProgressTask())
    assert "writing parts" in seen and len(cell.shown) == 1


def test_an_error_is_its_sentence_first_and_its_traceback_when_asked_again(tmp_path):
    with pytest.raises(CollectiveError) as raised:
        hpcgnn.open(tmp_path / "nothing")
    error = raised.value
    assert error._render_traceback_() == [f"CollectiveError: {error}"] and "\n" not in str(error)
    again = "\n".join(error._render_traceback_())
    assert again.startswith("Traceback") and "hpcgnn.open(tmp_path" in again and again.endswith(str(error))


@pytest.mark.parallel([1, 2])
def test_a_run_is_a_few_lines_with_what_matters(run):
    lines = repr(run).splitlines()
    assert len(lines) == 8 and max(map(len, lines[1:])) < 100
    assert lines[0] == f"Run({run.path})"
    assert [line.split() for line in lines[1:3]] == [["model", "gcn"], ["graph", "synthetic"]]
    assert lines[3].endswith(" vanilla, 1 rank" if COMM.size == 1 else f" vanilla, {COMM.size} ranks")
    assert f"{100 * run.val_score:.2f} %" in lines[4] and f"{100 * run.test_score:.2f} %" in lines[5]
    assert lines[6].split() == ["epochs", "12"]
    assert (" 0 B sent" in lines[7]) == (COMM.size == 1)


def test_tables_of_runs_and_graphs_escape_what_users_named(run, tmp_path):
    assert "run&lt;b&gt;" in run._repr_html_() and "<b>" not in run._repr_html_()
    hpcgnn.preprocess(np.array([[0, 1, 2], [1, 2, 0]]), out=tmp_path / "g", labels=[0, 1, 0],
                      features="structural", name="<b>mine")
    table = hpcgnn.open(tmp_path / "g")._repr_html_()
    assert "&lt;b&gt;mine" in table and "<b>" not in table
    assert re.search(r"<th[^>]*>nodes</th><td[^>]*>3</td>", table)


def test_an_opened_run_is_one_line(run, graph):
    opened = hpcgnn.open_run(run.path, graph)
    assert repr(opened) == f"OpenedRun({run.path}: gcn, opened for synthetic)"


@pytest.mark.parallel([1, 2])
def test_a_report_is_the_page_of_the_command(run, shared_path):
    path = run.report()
    COMM.Barrier()
    assert path == run.path / "report.html" and "chart-loss" in path.read_text()
    assert run.report(shared_path / "mine.html") == shared_path / "mine.html"


def test_a_notebook_shows_the_report(run, cell):
    run.report()
    ((bundle,),) = cell.shown
    assert bundle["text/html"].startswith("<iframe srcdoc=") and "&lt;!DOCTYPE html&gt;" in bundle["text/html"]
    assert bundle["text/html"].count("<") == 2      # the page itself is escaped


def test_a_table_of_epochs_holds_the_metrics(run, graph, tmp_path):
    with open(run.to_csv(tmp_path / "new" / "epochs.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == [record["loss"] for record in run.metrics]
    for table in (run.to_pandas(), hpcgnn.open_run(run.path, graph).to_pandas()):
        assert list(table.columns) == list(rows[0]) and set(table["run"]) == {"run<b>"}
        assert table["loss"].tolist() == [record["loss"] for record in run.metrics]


def test_a_figure_draws_losses_and_scores_by_epoch(run):
    left, right = run.plot().axes
    (training,) = (line for line in left.lines if line.get_label() == "training")
    assert training.get_xydata().tolist() == [[record["epoch"], record["loss"]] for record in run.metrics]
    (test,) = (line for line in right.lines if line.get_label() == "test")
    assert test.get_ydata() == pytest.approx([100 * record["test_score"] for record in run.metrics
                                              if "test_score" in record])
    assert right.get_ylabel() == "accuracy (%)"
    colors = {line.get_label(): line.get_color() for line in right.lines}
    assert len(set(colors.values())) == len(colors) == 3
    assert all(colors[line.get_label()] == line.get_color() for line in left.lines)


@pytest.mark.parametrize("method, module, words", [
    ("plot", "matplotlib", r"pip install 'hpcgnn\[report\]'"), ("to_pandas", "pandas", "pip install pandas")])
def test_a_missing_library_is_named(run, monkeypatch, method, module, words):
    monkeypatch.setitem(sys.modules, module, None)      # as if it were not installed
    with pytest.raises(ConfigError, match=words):
        getattr(run, method)()


def test_a_figure_is_not_kept(run):
    """pyplot would keep each one for ever, and a notebook would show it twice."""
    from matplotlib import pyplot

    run.plot()
    assert pyplot.get_fignums() == []
