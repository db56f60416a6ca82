"""`hpcgnn preprocess`: from a source to shards, and one sentence for each fault."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from reference_partition import random_dataset

from hpcgnn.cli.progress import RateColumn, ShownProgress, rate_text, shown_progress
from hpcgnn.data.options import ProgressTask
from hpcgnn.library.preprocess import preprocess
from hpcgnn.partition.choices import BALANCES, PARTITIONERS, REORDERS
from hpcgnn.run.process import SIZE_VARIABLES
from hpcgnn.shards.reader import read_graph_info, read_partition, verify_shards

SOURCE = "synthetic:nodes=300,mean_degree=8,features=12"


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    for name in SIZE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HPCGNN_PROGRESS", "0")      # no lines of progress among the complaints


def joined(screen):
    """A screen without its line breaks."""
    return " ".join(screen.split())


def test_shards_of_a_synthetic_graph_hold_all_of_it(hpcgnn, tmp_path):
    code, _, err = hpcgnn("preprocess", SOURCE, "--out", tmp_path / "g", "--parts", 3, "--seed", 4)
    assert (code, err) == (0, "")
    info = verify_shards(tmp_path / "g")
    parts = [read_partition(tmp_path / "g", part, 3) for part in range(3)]
    assert sorted(np.concatenate([part.inner_id for part in parts])) == list(range(300))
    assert sum(part.num_edges for part in parts) == info.num_edges
    assert (info.provenance.source, info.provenance.partitioner, info.provenance.seed) == (SOURCE, "kaminpar", 4)
    assert info.provenance.settings["feature_format"] == "float32"


def test_table_has_a_row_a_part_and_the_sums(hpcgnn, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")      # one table
    _, out, _ = hpcgnn("preprocess", SOURCE, "--out", tmp_path, "--parts", 2, "--partitioner", "contiguous")
    info = read_graph_info(tmp_path)
    for heading in ("inner", "halo", "boundary", "central", "cut edges", "volume", "imbalance"):
        assert heading in out
    rows = {cells[0]: cells[1:] for line in out.splitlines()
            if len(cells := line.replace("│", " ").replace("|", " ").replace(",", "").split()) == 10}
    for row in info.statistics:
        assert rows[str(row.part)] == [str(n) for n in (
            row.num_inner, row.num_central, row.num_boundary, row.num_halo, row.num_edges, row.num_cut_edges,
            row.num_sent)] + [f"{row.imbalance:.3f}", f"{2 * row.num_edges / info.num_edges:.3f}"]
    assert rows["all"][:1] == ["300"] and rows["all"][4] == str(info.num_edges)


def test_cleaning_is_reported(hpcgnn, tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n1,0\n1,2\n1,2\n2,2\n3,0\n")
    (tmp_path / "labels.csv").write_text("0\n1\n0\n1\n")
    source = f"edges:{tmp_path / 'edges.csv'},labels={tmp_path / 'labels.csv'}"
    code, out, err = hpcgnn("preprocess", source, "--out", tmp_path / "g", "--parts", 2, "--features", "structural",
                            "--partitioner", "contiguous")
    assert (code, err) == (0, "")
    assert ("edges 6 read, 1 duplicates and 1 self-loops removed: 4 kept; edges are directed; 0 isolated nodes"
            in joined(out))
    assert str(read_graph_info(tmp_path / "g").what_was_read) in out


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_every_partitioner_is_reached_and_reproducible_and_balances_what_it_does_best(hpcgnn, tmp_path, partitioner):
    balance = "both" if partitioner in ("kaminpar", "metis", "metis-cut") else "nodes"
    for name in "ab":
        _, out, _ = hpcgnn("preprocess", SOURCE, "--out", tmp_path / name, "--parts", 2, "--partitioner", partitioner)
        assert f"2 parts by {partitioner}, seed 0, balance {balance}, reorder nested" in out
    first, second = (read_partition(tmp_path / name, 1, 2).inner_id for name in "ab")
    np.testing.assert_array_equal(first, second)
    provenance = read_graph_info(tmp_path / "a").provenance
    assert (provenance.partitioner, provenance.settings["balance"]) == (partitioner, balance)


@pytest.mark.covering(1)
@pytest.mark.parametrize("balance", BALANCES)
@pytest.mark.parametrize("reorder", REORDERS)
def test_balance_and_order_are_reached_kept_and_shown(hpcgnn, tmp_path, balance, reorder):
    code, out, _ = hpcgnn("preprocess", SOURCE, "--out", tmp_path, "--parts", 2, "--balance", balance,
                          "--reorder", reorder)
    assert code == 0 and f"2 parts by kaminpar, seed 0, balance {balance}, reorder {reorder}" in out
    settings = verify_shards(tmp_path).provenance.settings
    assert (settings["balance"], settings["reorder"]) == (balance, reorder)


def test_what_refinement_changed_is_shown_and_kept(hpcgnn, tmp_path):
    _, out, _ = hpcgnn("preprocess", SOURCE, "--out", tmp_path / "a", "--parts", 3, "--symmetrize")
    info = read_graph_info(tmp_path / "a")
    settings = info.provenance.settings
    assert sum(part.num_sent for part in info.statistics) == settings["volume_after"] < settings["volume_before"]
    assert max(part.imbalance for part in info.statistics) == settings["node_imbalance_after"]
    assert (f"refinement: volume {settings['volume_before']:,} to {settings['volume_after']:,}, cut edges "
            f"{settings['num_cut_edges_before']:,} to {settings['num_cut_edges_after']:,}, imbalance of nodes ") in out
    _, out, _ = hpcgnn("preprocess", SOURCE, "--out", tmp_path / "b", "--parts", 3, "--partitioner", "metis")
    assert "refinement: " not in out
    assert "volume_after" not in read_graph_info(tmp_path / "b").provenance.settings


def topology(path, num_nodes=200):
    """An archive without labels and features."""
    dataset = random_dataset(num_nodes, 6 * num_nodes, seed=3)
    np.savez(path, indptr=dataset.indptr, indices=dataset.indices, num_features=np.int64(0))
    return f"npz:{path}"


def test_topology_gets_labels_on_request_and_says_so_everywhere(hpcgnn, tmp_path):
    source = topology(tmp_path / "topo_web.npz")
    code, out, err = hpcgnn("preprocess", source, "--out", tmp_path / "g", "--parts", 2, "--make-labels", 5,
                            "--partitioner", "contiguous")
    assert (code, err) == (0, "")
    info = verify_shards(tmp_path / "g")
    assert info.name == "topo_web-made-labels-5" and info.provenance.settings["make_labels"] == 5
    assert (info.num_classes, info.num_train, info.num_val, info.num_test) == (5, 120, 40, 40)
    assert info.num_features == 128
    for text in map(joined, (out, hpcgnn("inspect", tmp_path / "g")[1])):
        assert "topo_web-made-labels-5: 200 nodes" in text
        assert "MADE LABELS: the source has none; 5 classes of equal size by rank of in-degree" in text
        assert "no score on them is a benchmark" in text


def test_topology_without_the_flag_is_for_answers_alone_and_says_so(hpcgnn, tmp_path):
    code, out, _ = hpcgnn("preprocess", topology(tmp_path / "t.npz"), "--out", tmp_path / "g", "--parts", 2,
                          "--partitioner", "contiguous")
    assert code == 0 and "so only a trained model can predict for it" in joined(out) and "--make-labels K" in out
    info = verify_shards(tmp_path / "g")
    assert (info.num_train, info.num_classes) == (0, 1)


def test_settings_are_kept_as_json_can_hold_them(hpcgnn, tmp_path):
    hpcgnn("preprocess", SOURCE, "--out", tmp_path / "g", "--parts", 2, "--feature-format", "float16",
           "--normalize-features", "row", "--root", tmp_path, "--partitioner", "contiguous")
    settings = read_graph_info(tmp_path / "g").provenance.settings
    assert settings["root"] == str(tmp_path) and settings["normalize_features"] == "row"
    assert json.loads(json.dumps(settings)) == settings
    assert read_partition(tmp_path / "g", 0, 2).features.dtype == np.float16


def test_taken_folder_needs_overwrite(hpcgnn, tmp_path):
    arguments = ("preprocess", SOURCE, "--out", tmp_path, "--parts", 2, "--partitioner", "contiguous")
    hpcgnn(*arguments)
    first = read_graph_info(tmp_path).run_id
    code, out, err = hpcgnn(*arguments)
    assert (code, out) == (1, "") and "already holds shards" in err and err.count("\n") == 1
    assert read_graph_info(tmp_path).run_id == first
    assert hpcgnn(*arguments, "--overwrite")[0] == 0
    assert read_graph_info(tmp_path).run_id != first


@pytest.mark.parametrize("arguments, code, complaint", [
    (("nothing:x", "--parts", 2), 1, "nothing:x"),
    (("npz:missing.npz", "--parts", 2), 1, "missing.npz"),
    ((SOURCE, "--parts", 301), 1, "has 300 nodes and 301 parts were asked for"),
    ((SOURCE, "--parts", 0), 2, "parts"),
    ((SOURCE, "--parts", 2, "--partitioner", "kahip"), 2, "kahip"),
    ((SOURCE, "--parts", 2, "--seed", -1), 2, "seed"),
    ((SOURCE, "--parts", 2, "--split", 0.9, 0.9), 1, "split fractions"),
    ((SOURCE, "--parts", 2, "--partitioner", "ldg", "--balance", "training"), 1, "partitioner ldg balances nodes only"),
    ((SOURCE, "--parts", 2, "--reorder", "random"), 2, "random"),
    ((SOURCE, "--parts", 2, "--make-labels", 1), 2, "make-labels"),
    ((SOURCE, "--parts", 2, "--make-labels", 3), 1, "has labels of its own; leave out --make-labels"),
])
def test_fault_gives_one_sentence_and_makes_no_folder(hpcgnn, tmp_path, arguments, code, complaint):
    found, out, err = hpcgnn("preprocess", *arguments, "--out", tmp_path / "g")
    assert found == code and complaint in err and err.startswith("hpcgnn: ")
    assert out == "" or (out.startswith("what was read from ") and "parts by" not in out)
    assert err.count("\n") == 1
    assert not (tmp_path / "g").exists()


def test_unwritable_folder_is_refused_before_the_source_is_read(hpcgnn, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = hpcgnn("preprocess", "npz:missing.npz", "--out", tmp_path / "file" / "g", "--parts", 2)
    assert code == 1 and "is not a folder; choose another --out" in err


@pytest.mark.parametrize("name", SIZE_VARIABLES)
def test_ranks_that_mpi_has_not_joined_are_refused(hpcgnn, tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "3")
    code, _, err = hpcgnn("preprocess", SOURCE, "--out", tmp_path, "--parts", 2)
    assert code == 1 and f"3 ranks were started ({name}), but" in err and "finds each alone" in err
    monkeypatch.setenv(name, "1")
    assert hpcgnn("preprocess", SOURCE, "--out", tmp_path, "--parts", 2, "--partitioner", "contiguous")[0] == 0


def test_neither_torch_nor_mpi_is_imported(tmp_path):
    code = """
import sys
from hpcgnn.command_line import run
assert run(["preprocess", sys.argv[1], "--out", sys.argv[2], "--parts", "2"]) == 0 == run(["inspect", sys.argv[2]])
assert not {"torch", "mpi4py", "cupy"} & set(sys.modules), sorted(sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code, SOURCE, tmp_path], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_bar_without_a_total_is_full_when_the_next_starts():
    with shown_progress() as progress:
        assert isinstance(progress, ShownProgress)
        progress("partitioning", None)
        progress("writing", 10).advance(10)
        assert [task.completed for task in progress._bars.tasks] == [1, 10]


def test_each_stage_has_a_line_where_no_terminal_shows_bars(hpcgnn, tmp_path, monkeypatch):
    monkeypatch.delenv("HPCGNN_PROGRESS")
    code, _, err = hpcgnn("preprocess", SOURCE, "--out", tmp_path, "--parts", 2, "--normalize-features", "standard")
    stages = ["drawing edges", "cleaning edges", "drawing features", "preparing features", "normalizing features",
              "partitioning with kaminpar", "refining parts", "cutting clusters", "finding halos",
              "computing the fingerprint", "writing parts"]
    assert code == 0 and re.sub(r"(?m)^\[ *\d+\.\d s\] ", "", err).splitlines() == stages


class Counted:
    """callable(description, total) -> ProgressTask that keeps the totals and how far each step came."""

    def __init__(self):
        self.totals, self.done = {}, {}

    def __call__(self, description, total):
        self.totals[description], self.done[description] = total, 0
        task = ProgressTask()
        task.advance = lambda amount: self.done.update({description: self.done[description] + amount})
        return task


@pytest.mark.parametrize("normalization", ["row", "standard"])
def test_every_step_of_known_length_ends_at_its_total(normalization, tmp_path):
    (tmp_path / "edges.csv").write_text("".join(f"{v},{(v * 7 + 1) % 50}\n" for v in (*range(50), 3, 3)) + "2,2\n")
    np.save(tmp_path / "x.npy", np.arange(150.0).reshape(50, 3))
    np.save(tmp_path / "y.npy", np.arange(50) % 3)
    progress = Counted()
    preprocess(f"edges:{tmp_path}/edges.csv,labels={tmp_path}/y.npy,features={tmp_path}/x.npy", 2, tmp_path / "g",
               normalize_features=normalization, progress=progress)
    assert {"cleaning edges", "adding reverse edges", "normalizing features", "refining parts"} <= set(progress.totals)
    known = {name: total for name, total in progress.totals.items() if total is not None}
    assert {name: progress.done[name] for name in known} == known


def test_clusters_are_stored_and_shown(hpcgnn, tmp_path):
    for parts in (1, 3):
        code, out, err = hpcgnn("preprocess", SOURCE, "--out", tmp_path / str(parts), "--parts", parts,
                                "--cluster-rows", 20)
        assert (code, err) == (0, "") and "clusters: 15, of 20 nodes on average" in out
    assert "clusters: 15, of 20 nodes on average" in hpcgnn("inspect", tmp_path / "3")[1]
    one, three = (verify_shards(tmp_path / name) for name in "13")
    assert one.cluster_digest == three.cluster_digest and one.provenance.settings["cluster_rows"] == 20
    out = hpcgnn("preprocess", SOURCE, "--out", tmp_path / "default", "--parts", 2)[1]
    assert "clusters: 3, of 100 nodes on average" in out
    for name, options in (("zero", ("--cluster-rows", 0)), ("ldg", ("--partitioner", "ldg"))):
        out = hpcgnn("preprocess", SOURCE, "--out", tmp_path / name, "--parts", 2, *options)[1]
        assert "clusters: none are stored; in a training in steps, each rank cuts its own" in out
        assert "cluster_rows" not in read_graph_info(tmp_path / name).provenance.settings


def test_tables_of_text_ids_classes_and_weights_are_shown_as_what_they_are(hpcgnn, tmp_path):
    (tmp_path / "cites.csv").write_text("source,target,weight\nP1,P2,3\nP2,P3,1\nP3,P1,2\n")
    (tmp_path / "papers.csv").write_text("id,pages,label,split\nP1,12,physics,train\nP2,9,art,test\nP3,30,art,val\n")
    source = f"csv:{tmp_path}/cites.csv,nodes={tmp_path}/papers.csv"
    code, out, err = hpcgnn("preprocess", source, "--out", tmp_path / "g", "--parts", 2, "--partitioner", "contiguous")
    assert (code, err) == (0, "")
    for text in (out, hpcgnn("inspect", tmp_path / "g", "--verify")[1]):
        assert "classes by name: art, physics" in text
        assert "ids of nodes: texts; predictions come back under them" in text
        assert "edges have weights\n" in text
        assert "note the first line of papers.csv is its header: id,pages,label,split" in joined(text)


def test_a_task_makes_targets_of_whole_numbers(hpcgnn, tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n2,0\n")
    (tmp_path / "labels.csv").write_text("1\n2\n3\n")
    source = f"edges:{tmp_path}/edges.csv,labels={tmp_path}/labels.csv"
    code, out, _ = hpcgnn("preprocess", source, "--out", tmp_path / "g", "--parts", 1, "--task", "regression")
    assert code == 0 and "1 targets of a regression" in out
    assert read_graph_info(tmp_path / "g").provenance.settings["task"] == "regression"
    np.testing.assert_array_equal(sorted(read_partition(tmp_path / "g", 0, 1).labels[:, 0]), [1, 2, 3])


@pytest.mark.parametrize("rate, text", [(0.25, "0.25 /s"), (12, "12 /s"), (1234567, "1.23 M/s"), (999.7, "1 k/s"),
                                        (4.2e12, "4,200 G/s")])
def test_a_rate_has_a_prefix_that_fits(rate, text):
    assert rate_text(rate) == text


def test_bars_say_how_fast_a_step_goes_on():
    with shown_progress() as progress:
        task = progress("writing", 4e6)
        task.advance(1e6)
        task.advance(2e6)
        shown = progress._bars.tasks[0]
        assert RateColumn().render(shown).plain.endswith("/s")
        progress("partitioning", None)
        assert RateColumn().render(progress._bars.tasks[1]).plain == ""
