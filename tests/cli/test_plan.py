"""`hpcgnn plan`: what it prints and writes, what it measures, and what it refuses in one sentence."""

from __future__ import annotations

import json

import pytest
from covering import long_but
from mpi4py import MPI
from training_setup import easy_graph, write_once

from hpcgnn.bench import rates
from hpcgnn.cli.plan_text import draw_plan
from hpcgnn.planning.cluster import CODES, cluster_text, read_cluster
from hpcgnn.planning.planner import Choices, make_plan

SOURCE = "synthetic:nodes=400,mean_degree=6,classes=4,features=12"
CHEAP = ("--partitioner", "contiguous")      # KaMinPar runs in a process of its own
CLUSTER = {
    "node": {"ranks": 2, "process_bytes": 3e8, "step_seconds": 1e-3, "memory_bytes": 64e9, "processor": "A 1000"},
    "rates.fp32": {"map_flops": 1e11, "gradient_flops": 8e10, "drop_values": 2e9, "norm_values": 1e9,
                   "norm_back_values": 5e8, "sum_bytes": [[256, 1e6, 3e10]]},
    "pack": dict.fromkeys(CODES, 1e9), "unpack": dict.fromkeys(CODES, 2e9),
    "network": {"within_latency_seconds": 1e-6, "within_bytes_per_second": 1e10, "between_latency_seconds": 5e-6,
                "between_bytes_per_second": 4e9, "nic_bytes_per_second": 8e9}}


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(cluster_text(CLUSTER, []))
    return path


@pytest.fixture
def plan(hpcgnn, tmp_path, monkeypatch):
    """plan(words): the record of a plan, and what is printed, without its line breaks; no picture is drawn."""
    monkeypatch.setattr("hpcgnn.bench.result.why_no_picture", lambda name: "not drawn")

    def run(*words):
        status, printed, complaints = hpcgnn("plan", SOURCE, *CHEAP, *words, "--out", tmp_path / "plan")
        assert (status, complaints) == (0, "") and (tmp_path / "plan/table.txt").read_text() in printed
        return json.loads((tmp_path / "plan/plan.json").read_text()), " ".join(printed.split())

    return run


def test_a_plan_says_memory_bytes_seconds_and_what_to_choose(plan, cluster):
    record, printed = plan("--cluster", cluster, "--parts", "4,2", "--method", "vanilla,uniform:8", "--hidden", 16)
    for title in ("memory of the fullest rank", "bytes of an epoch", "pairs of ranks", "seconds of an epoch, by stage",
                  "recommended: ", "processor A 1000", "time and memory of preprocess are not predicted"):
        assert title in printed
    runs = [(one["ranks"], one["method"]) for one in record["predictions"]]
    assert runs == [(2, "vanilla"), (2, "uniform:8"), (4, "vanilla"), (4, "uniform:8")]
    assert {"ranks": record["recommended"]["ranks"], "method": record["recommended"]["method"]} in [
        {"ranks": ranks, "method": method} for ranks, method in runs]
    for one in record["predictions"]:
        assert one["is_exact"] and one["fits"]
        assert one["within_nodes"]["bytes"] + one["between_nodes"]["bytes"] == one["sent_bytes_messages_per_epoch"] > 0
        assert one["sent_bytes_per_epoch"] - one["sent_bytes_messages_per_epoch"] == one["sent_bytes_sums_per_epoch"]
        assert (one["between_nodes"]["bytes"] > 0) == (one["ranks"] == 4)
        assert sum(one["memory_of_fullest_rank"].values()) == pytest.approx(one["peak_bytes"])
    for first, second in (record["predictions"][:2], record["predictions"][2:]):      # of 32 bits, and by default of 8
        assert second["sent_bytes_sums_per_epoch"] < first["sent_bytes_sums_per_epoch"]


def test_a_plan_counts_what_a_recipe_adds(plan, cluster):
    def fullest(*recipe):
        words = [word for setting in recipe for word in ("--set", setting)]
        record, _ = plan("--cluster", cluster, "--parts", "2", "--method", "vanilla", "--hidden", 16, *words)
        one, = record["predictions"]
        return one["sent_bytes_per_epoch"], one["memory_of_fullest_rank"]

    sent, plain = fullest()
    sent_with_all_rows, of_batch_norms = fullest("norm=batch")
    assert sent_with_all_rows > sent and of_batch_norms["activations"] > plain["activations"]
    assert fullest("ema=0.9")[1]["weights"] > plain["weights"]
    assert fullest("input_dropout=0.2") == (sent, plain)
    assert fullest("dropout=0") == fullest("dropout=0", "input_dropout=0")


def test_a_plan_without_a_cluster_file_says_what_is_missing(plan):
    """Memory and bytes need no rates."""
    record, printed = plan("--parts", "2", "--hidden", 16, "--set", "steps=rows:4")
    assert "4 steps in an epoch" in printed
    assert "seconds of an epoch, by stage" not in printed and "--cluster FILE plans them with" in printed
    assert "--node NAME --network NAME plan them" in printed
    runs = record["predictions"]
    assert [one["method"] for one in runs] == ["vanilla", "uniform:8", "uniform:1"]
    assert all(one["sent_bytes_per_epoch"] > 0 and one["memory_of_fullest_rank"]["method_state"] > 0 for one in runs)
    assert "epoch_seconds" not in runs[0]


def test_steps_sum_gradients_more_often_and_send_no_row_more_often(plan, cluster):
    few, many = (plan("--cluster", cluster, "--parts", "4", "--method", "vanilla", "--layers", "2", "--hidden", 16,
                      "--set", f"steps={steps}")[0]["predictions"][0] for steps in (2, 8))
    assert few["sent_bytes_messages_per_epoch"] == many["sent_bytes_messages_per_epoch"]
    assert 4 * few["sent_bytes_sums_per_epoch"] == many["sent_bytes_sums_per_epoch"]
    assert few["memory_of_fullest_rank"]["activations"] > many["memory_of_fullest_rank"]["activations"]
    for stage in ("allreduce", "step"):
        assert 4 * few["seconds_of_slowest_rank"][stage] == pytest.approx(many["seconds_of_slowest_rank"][stage])


def test_a_preset_plans_seconds_and_is_named_with_its_source(plan):
    record, said = plan("--node", "laptop", "--network", "ethernet-1g", "--parts", "2,4", "--method", "vanilla",
                        "--set", "ranks_per_node=2")
    assert "node assumed: laptop, 512 GFLOP/s and 90 GB/s of memory, of which a rank has 4 cores of 8" in said
    assert "network assumed: ethernet-1g, 0.117 GB/s each way" in said
    assert "seconds rest on data sheets, and not on measurements" in said
    assert set(record["cluster"]["assumed"]) == {"node", "network"}
    one_node, two_nodes = record["predictions"]
    assert one_node["epoch_seconds"] > 0 and one_node["seconds_of_slowest_rank"]["between"] == 0
    # Half of the messages travel at 0.1175 GB/s at most.
    between = two_nodes["between_nodes"]["bytes"] / 2 / 0.1175e9
    assert two_nodes["exchange_seconds_simulated"] > between > 0


@pytest.fixture
def one_node(tmp_path):
    """A file that was measured on one node, and says nothing about runs on several."""
    network = {name: value for name, value in CLUSTER["network"].items() if name.startswith("within")}
    (tmp_path / "c.toml").write_text(cluster_text({**CLUSTER, "network": network}, []))
    return tmp_path / "c.toml"


def test_seconds_are_planned_where_the_network_is_known_and_a_preset_completes_it(plan, one_node):
    record, said = plan("--cluster", one_node, "--parts", "2,4", "--method", "vanilla")
    assert "network.between_latency_seconds is missing, which the seconds of 4 ranks" in said
    assert ["epoch_seconds" in one for one in record["predictions"]] == [True, False]
    assert record["recommended"]["ranks"] == 2
    _, said = plan("--cluster", one_node, "--network", "infiniband-hdr", "--parts", "4", "--method", "vanilla")
    assert "recommended: 4 ranks with vanilla" in said and "is missing" not in said
    assert "the rates of the cluster file, and between nodes on a data sheet" in said


def test_a_plan_writes_the_traces_of_every_run(hpcgnn, cluster, tmp_path):
    arguments = ("plan", SOURCE, *CHEAP, "--parts", "2,4", "--method", "vanilla,uniform:8", "--hidden", 16, "--trace",
                 tmp_path / "traces")
    status, printed, complaints = hpcgnn(*arguments, "--cluster", cluster, "--out", tmp_path)
    assert (status, complaints) == (0, "") and f"traces: {tmp_path / 'traces'}, 4 runs" in printed
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == [
        "2-uniform-8", "2-vanilla", "4-uniform-8", "4-vanilla"]
    record = json.loads((tmp_path / "plan.json").read_text())
    assert record["cluster"]["network"]["nic_rate"] == 8e9
    for one in record["predictions"]:
        own = tmp_path / "traces" / f"{one['ranks']}-{one['method'].replace(':', '-')}"
        sends = [line.split() for name in (own / "ranks.txt").read_text().split()
                 for line in (own / name).read_text().splitlines() if " isend " in line]
        assert sum(int(words[4]) for words in sends) == one["sent_bytes_messages_per_epoch"]
    status, _, complaints = hpcgnn(*arguments)
    assert status == 2 and "--trace needs the rates of a node; add --node NAME or --cluster FILE" in complaints


@pytest.mark.parametrize("width", long_but((0,), [60, 80, 120]))
def test_a_plan_is_no_wider_than_the_terminal(hpcgnn, cluster, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    status, printed, _ = hpcgnn("plan", SOURCE, *CHEAP, "--cluster", cluster, "--parts", "2,4", "--method",
                                "vanilla,sylvie")
    assert status == 0 and max(map(len, printed.splitlines())) <= width
    # No column is lost.
    words = printed.split()
    assert all(name in words for name in ("process", "activations", "gradients", "Allreduce", "overhead", "pairs"))
    # No digit is cut.
    assert "…" not in printed


def test_a_picture_s_legends_cover_no_axes(cluster):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    measured = read_cluster(cluster)
    for known, parts in ((measured, [2]), (None, [2]), (measured, [2, 3, 4, 5, 6, 7, 8])):
        figure = draw_plan(make_plan(SOURCE, known, Choices(parts, ("vanilla", "pipegcn"), partitioner="contiguous")))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        shown = [axes for axes in figure.axes if axes.axison]
        legends = [axes.get_legend().get_window_extent() for axes in figure.axes if not axes.axison]
        assert len(shown) == len(legends) == (1 if known is None else 2)
        for legend in legends:
            assert not any(legend.overlaps(axes.get_tightbbox(canvas.get_renderer())) for axes in shown)
            assert figure.bbox.x0 <= legend.x0 and legend.x1 <= figure.bbox.x1 and legend.y0 >= figure.bbox.y0


def test_a_plan_has_a_picture(hpcgnn, cluster, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    status, printed, _ = hpcgnn("plan", SOURCE, "--cluster", cluster, "--parts", "2", "--out", tmp_path)
    assert status == 0 and printed.endswith(f"results: {tmp_path}\n")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_shards_are_planned_at_their_own_parts(hpcgnn, cluster, shared_path):
    from training_setup import random_owner, write

    shards = write(easy_graph(), random_owner(easy_graph(), 3), 3, shared_path / "shards")
    status, printed, _ = hpcgnn("plan", shards, "--cluster", cluster, "--method", "vanilla")
    assert status == 0 and "rows and bytes come from the shards, exact to the byte" in " ".join(printed.split())
    assert "recommended: 3 ranks with vanilla" in printed


@pytest.mark.parametrize("flags, says", [
    (["--method", "adaqp", "--set", "widths=3"], "widths is '3'; expected some of"),
    (["--method", "uniform"], "method uniform needs its bits"),
    (["--model", "my:Own"], "hpcgnn plan knows what built-in models compute and send, not my:Own"),
    (["--precision", "bf16"], "has no table [rates.bf16]"),
    (["--set", "steps=auto"], "does not know how many steps auto takes"),
    (["--set", "steps=2", "--method", "pipegcn"], "pipegcn keeps gradients that come late"),
    (["--set", "device=cuda"], "does not know what device = cuda costs"),
    (["--set", "task=links", "--set", "decoder=mlp"], "does not know what decoder = mlp costs"),
    (["--set", "pre_aggregation=on", "--model", "gat"], "its layers read rows of other ranks one by one"),
    (["--set", "pre_aggregation=on", "--parts", "4"], "does not know which sums the ranks of a node share"),
    (["--set", "clusters=4", "--set", "sample=0.5", "--parts", "64"], "a sample of the graph doesn't say what"),
    (["--set", "steps=2", "--set", "rematerialize=true"], "steps 2 can't be used with rematerialize"),
    (["--set", "ranks_per_node=4"], "ranks_per_node = 4 contradicts"),
    (["--node", "laptop"], "--cluster and --node both say what a node can do"),
    (["--network", "infiniband-hdr"], "states its network between nodes; leave --network infiniband-hdr out"),
    (["--model", "graphsage"], "did you mean sage?"),
    (["--method", "unifrom:8"], "did you mean uniform?"),
    (["--ranks", "4"], "did you mean --parts?"),
    (["--set", "sdeps=2"], "unknown setting 'sdeps'"),
    (["--precision", "fp32,bf16"], "a plan has one precision"),
    (["--parts", "0"], "--parts is '0'; expected positive numbers"),
    (["--parts", "4000"], "synthetic has 400 nodes and 4000 parts were asked for"),
    (["--as", "nodes=5"], "--as lacks edges=N"),
    (["--trace", "/dev/null/plan"], "--trace /dev/null/plan can't hold the traces"),
    (["--out", "/dev/null/plan"], "--out /dev/null/plan can't be used as a folder")])
def test_what_can_t_be_planned_is_refused_in_one_sentence(hpcgnn, cluster, flags, says):
    parts = [] if "--parts" in flags else ["--parts", "2"]
    status, _, complaints = hpcgnn("plan", SOURCE, *CHEAP, "--cluster", cluster, *parts, *flags)
    assert status != 0 and says in complaints and complaints.count("\n") == 1


@pytest.mark.parametrize("key, value, says", [("nic_bytes_per_second", -8e9, "is -8000000000.0; expected a positive"),
                                              ("speed", 1.0, "network.speed is no key of a cluster file")])
def test_a_cluster_file_with_nonsense_gets_a_sentence(hpcgnn, tmp_path, key, value, says):
    network = {**CLUSTER["network"], key: value}
    tables = {**CLUSTER, "network": {name: number for name, number in network.items() if number is not None}}
    path = tmp_path / "c.toml"
    path.write_text(cluster_text(tables, []))
    status, _, complaints = hpcgnn("plan", SOURCE, "--cluster", path, "--parts", "4")
    assert status == 1 and f"network.{key}" in complaints and says in complaints and complaints.count("\n") == 1


@pytest.mark.parametrize("arguments, says", [
    ([], "a plan needs SOURCE; give a source graph"),
    ([SOURCE, "--network", "ethernet-1g"], "--network needs the rates of a node, too; add --node NAME"),
    ([SOURCE, "--node", "laptp"], "expected one of laptop, epyc-2x64, epyc-2x96, xeon-2x56; did you mean laptop?"),
    ([SOURCE, "--node", "laptop", "--network", "10gbit"], "did you mean ethernet-10g?"),
    ([SOURCE, "--node", "laptop", "--set", "ranks_per_node=9"], "more than the 8 cores of --node laptop"),
    ([SOURCE, "--measure", "c.toml"], "plans nothing; leave SOURCE, --cluster, --node and --network out"),
    (["nowhere", "--cluster", "missing.toml"], "missing.toml can't be read"),
    (["nowhere", "--node", "laptop"], "nowhere is no folder of shards and no source graph")])
def test_what_lacks_its_half_is_refused(hpcgnn, arguments, says):
    status, _, complaints = hpcgnn("plan", *arguments)
    assert status != 0 and says in complaints


@pytest.mark.parallel([1, 2])
def test_a_measured_file_can_be_planned_with(hpcgnn, shared_path, monkeypatch):
    for name, value in {"NUM_ROWS": 64, "TABLE_MB": (1,), "COLUMNS": (256,), "MESSAGE_BYTES": (64, 4096)}.items():
        monkeypatch.setattr(rates, name, value)
    path = shared_path / "c.toml"
    status, printed, complaints = hpcgnn("plan", "--measure", path, "--precision", "fp32,bf16")
    assert status == 0, complaints
    assert f"cluster file: {path}" in printed
    found = read_cluster(path)
    assert set(found.rates) == {"fp32", "bf16"} and set(found.pack) == set(found.unpack) == set(CODES)
    assert found.network.ranks_per_node == MPI.COMM_WORLD.size
    assert (found.network.within_rate is None) == (MPI.COMM_WORLD.size == 1)
    assert found.process_bytes > 1e7 and found.memory_bytes > found.process_bytes


@pytest.mark.parallel([2])
def test_a_plan_refuses_ranks(hpcgnn, shared_path):
    shards = write_once(MPI.COMM_WORLD, easy_graph(), shared_path / "shards")
    status, _, complaints = hpcgnn("plan", shards, "--cluster", shared_path / "none.toml")
    assert status == 1 and "runs in one process, and 2 ranks were started" in complaints
