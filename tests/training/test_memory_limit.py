"""A training within a limit of memory: the losses of one without, to the last bit, and tables on the disk."""

from __future__ import annotations

import errno
import gc
import os
import re
import tempfile
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from mpi4py import MPI
from planning_setup import small_cluster
from training_setup import assert_same_bits, disk_path, easy_graph, losses, on_rank_zero, shards_of, write_once

import hpcgnn
from hpcgnn.config import TrainConfig, parse_memory
from hpcgnn.errors import CollectiveError, ConfigError
from hpcgnn.exchange import arrival
from hpcgnn.exchange.codec import decode
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.nn import neighborhood
from hpcgnn.ops import arena, limited_arena
from hpcgnn.planning.cluster import Network
from hpcgnn.planning.planner import Choices, make_plan
from hpcgnn.planning.recipe import check_settings
from hpcgnn.training import memory_limit, trainer
from hpcgnn.training.forecast import forecast
from hpcgnn.training.job import Job, train
from hpcgnn.training.recipe import Recipe
from hpcgnn.training.session import Session

COMM = MPI.COMM_WORLD
GRAPH = "synthetic:nodes=600,mean_degree=6,classes=8,features=20,signal=2"
SMALL = {"layers": 3, "hidden": 16, "epochs": 2, "eval_every": 1, "dropout": 0.3}
BASE, ROOM = 1 << 30, 1 << 16
shards = shards_of(lambda: easy_graph(spec=GRAPH))
RECIPES = {
    "sage": {}, "sage, map first": {"hidden": 8, "input_dropout": 0.0}, "gcn": {"model": "gcn"},
    "sage, wide": {"hidden": 40}, "gcn, wide": {"model": "gcn", "hidden": 72, "input_dropout": 0.0},
    "gcnii, wide": {"model": "gcnii", "hidden": 40}, "jknet, wide": {"model": "jknet", "hidden": 40},
    "fp16, wide": {"precision": "fp16", "hidden": 40}, "8 bits, wide": {"method": "uniform", "bits": 8, "hidden": 40},
    "wide, map first": {"hidden": 18}, "gat": {"model": "gat"},
    "bf16": {"precision": "bf16", "hidden": 32}, "sylvie": {"method": "sylvie"},
    "stored": {"store_activations": 4}, "stored, wide": {"store_activations": 4, "hidden": 40},
    "steps": {"steps": "4"}, "pipegcn": {"method": "pipegcn"},
}


@pytest.fixture
def limits(monkeypatch):
    """Settings of a limit with room for so many bytes of tables on each rank, and the arenas of the test's runs.

    Small tables come from the arena too, and no slack is left.
    """
    monkeypatch.setattr(arena, "MIN_BYTES", 1 << 12)
    arenas = []
    open_arena = limited_arena.LimitedArena.__init__

    def note(self, limit, folder, slack):
        assert slack == limit // 10
        open_arena(self, limit, folder)
        arenas.append(self)

    monkeypatch.setattr(limited_arena.LimitedArena, "__init__", note)
    monkeypatch.setattr(limited_arena, "process_bytes",
                        lambda: BASE + (arenas[-1].num_in_memory + arenas[-1]._places.num_free if arenas else 0))
    return lambda tables: {"memory": str(COMM.size * (BASE + tables)), "scratch": disk_path()}, \
        arenas


def run(shards, out, settings, **more):
    finished = train(COMM, Job(shards, {**SMALL, **settings}, out=out, **more))
    return COMM.bcast((finished.summary, finished.run.folder.read_metrics()) if COMM.rank == 0 else None)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("recipe", RECIPES)
def test_losses_and_weights_are_those_of_a_run_without_a_limit(shards, shared_path, limits, recipe):
    limit, arenas = limits
    _, expected = run(shards, shared_path / "whole", RECIPES[recipe])
    summary, metrics = run(shards, shared_path / "limited", {**RECIPES[recipe], **limit(ROOM)})
    assert losses(metrics).tobytes() == losses(expected).tobytes()
    for name in ("width_histogram", "mean_bits", "sent_bytes_payload", "sent_bytes_parameters"):
        assert [record[name] for record in metrics] == [record[name] for record in expected], name
    on_rank_zero(COMM, lambda: assert_same_bits(shared_path / "limited/checkpoint.h5",
                                                shared_path / "whole/checkpoint.h5"))
    assert all(record["disk_bytes_spilled"] > 0 for record in metrics) and not any(
        name.startswith("disk") for name in expected[0])
    assert summary["disk_bytes_spilled_per_epoch"] == np.mean([record["disk_bytes_spilled"] for record in metrics])
    assert arenas[0].most_in_memory <= ROOM


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings, in_training, in_evaluation", [
    ({}, True, True), ({"hidden": 8}, False, False), ({"method": "sylvie"}, COMM.size == 1, True),
    ({"model": "gat"}, False, False), ({"rematerialize": True}, COMM.size == 1, COMM.size == 1)])
def test_only_rows_that_do_not_fit_are_cut_and_only_where_columns_may_travel_apart(
        shards, shared_path, limits, monkeypatch, settings, in_training, in_evaluation):
    cut, next_site, widths, passes = neighborhood.cut, LocalGraph.next_site, [], []

    def note_cut(rows, width):
        widths.append((passes[-1], width))
        return cut(rows, width)

    monkeypatch.setattr(neighborhood, "cut", note_cut)
    monkeypatch.setattr(LocalGraph, "next_site", lambda self, *args, **more: (
        passes.append(self.current_pass.is_training), next_site(self, *args, **more))[1])
    run(shards, shared_path / "run", {"hidden": 40, "input_dropout": 0.0, **settings, **limits[0](ROOM)})
    # There is room for 9 or 10 columns, and ranges are multiples of 8.
    assert {is_training for is_training, _ in widths} == {*[True] * in_training, *[False] * in_evaluation}
    assert {width for _, width in widths} <= {8}


@pytest.mark.parallel(2)
def test_input_rows_come_by_ranges_of_columns_into_halo_rows(shards, shared_path, limits, monkeypatch):
    started, widths = HaloExchange.start_input, []
    monkeypatch.setattr(HaloExchange, "start_input", lambda self, rows: (
        widths.append(rows.shape[1]), started(self, rows))[1])
    run(shards, shared_path / "run", limits[0](ROOM))
    assert widths == [16, 4]


@pytest.mark.parallel([1, 2])
def test_edges_that_exceed_the_limit_are_told_before_they_are_read(shards, shared_path, limits, monkeypatch):
    monkeypatch.setattr(memory_limit, "BYTES_AN_EDGE", 1 << 20)
    monkeypatch.setattr(Session, "open", None)
    for start in (lambda job: train(COMM, job), lambda job: forecast(COMM, job)):
        with pytest.raises(CollectiveError, match="GB can't leave memory: the process, edges and messages; set "
                                                  "--memory to more than "):
            start(Job(shards, {**SMALL, **limits[0](ROOM)}, out=shared_path / "run"))


@pytest.mark.parallel(2)
@pytest.mark.parametrize("recipe", ["sage", "sage, map first", "gat"])
def test_rows_are_asked_into_memory_while_gradients_are_added_to_them(shards, shared_path, monkeypatch, recipe):
    held, added = [], []

    @contextmanager
    def in_memory(rows):
        held.append(rows)
        yield
        held.pop()

    def note(messages, receive, keys, rows, is_gradient):
        added.append((is_gradient, [one is rows for one in held]))
        decode(messages, receive, keys, rows, is_gradient)

    monkeypatch.setattr(arrival, "in_memory", in_memory)
    monkeypatch.setattr(arrival, "decode", note)
    run(shards, shared_path / "run", RECIPES[recipe])
    assert (True, [True]) in added and all(known == [True] * is_gradient for is_gradient, known in added)


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("settings, tells", [({"model": "gin"}, True), ({"model": "gin", "hidden": 1}, False),
                                             ({"model": "gin", "steps": "4"}, False), ({}, False),
                                             ({"model": "appnp"}, False)])
def test_rows_that_a_layer_can_t_sum_in_memory_are_told_before_the_first_epoch(
        shards, shared_path, limits, capsys, settings, tells):
    limit, _ = limits
    for out in ({"out": shared_path / "run"}, {}):
        job = Job(shards, {**SMALL, **settings, **limit(1 << 14)}, **out)
        train(COMM, job) if out else forecast(COMM, job)
        told = capsys.readouterr().err
        least = 600 // COMM.size * 16 * 4      # bytes of inner rows; halo rows come to them
        found = re.findall(r"hpcgnn: a layer's rows take ([\d.]+) kB on rank \d, and its share of --memory leaves "
                           r"16\.4 kB for tables; ", told)
        assert len(found) == (tells and COMM.rank == 0)
        assert all(float(text) * 1e3 > least - 500 for text in found)


@pytest.mark.parallel([1, 2])
def test_a_limit_above_the_peak_writes_nothing(shards, shared_path, limits):
    limit, arenas = limits
    _, metrics = run(shards, shared_path / "limited", limit(1 << 30))
    assert all(record["disk_bytes_spilled"] == record["disk_bytes_fetched"] == 0 for record in metrics)
    assert arenas[0].most_in_memory > ROOM


@pytest.mark.parallel(1)
def test_all_room_on_the_disk_comes_back(shards, shared_path, limits):
    limit, arenas = limits
    run(shards, shared_path / "limited", limit(ROOM))
    gc.collect()
    arenas[0]._take_returned()
    assert arenas[0].file.most_bytes > ROOM and (arenas[0].file.num_bytes, arenas[0]._size) == (0, {})


@pytest.mark.parallel([1, 2])
def test_limit_and_folder_may_change_when_a_run_is_resumed(shards, shared_path, limits):
    limit, _ = limits
    run(shards, shared_path / "whole", {"steps": "2"})
    run(shards, shared_path / "some", {"steps": "2", "epochs": 1, **limit(ROOM)})
    folder = on_rank_zero(COMM, lambda: tempfile.mkdtemp(dir=disk_path()))
    other = {**limit(2 * ROOM), "scratch": folder}
    _, metrics = run(shards, shared_path / "some", {"steps": "2", **other}, resume=True)
    on_rank_zero(COMM, lambda: assert_same_bits(shared_path / "some/checkpoint.h5",
                                                shared_path / "whole/checkpoint.h5"))
    on_rank_zero(COMM, lambda: os.rmdir(folder))      # fails if a file is left in it
    assert len(metrics) == 2
    run(shards, shared_path / "some", {"steps": "2", "memory": "0", "scratch": "", "epochs": 3}, resume=True)


def planned(shards, settings, monkeypatch):
    """The plan of a run whose process holds BASE bytes beside its tables, as that of `limits` does."""
    for name, value in {"FIXED": ("process",), "BYTES_A_NODE": 0, "SLACK": 1 << 62,
                        "torchs_own": lambda *_: np.zeros(COMM.size)}.items():
        monkeypatch.setattr(f"hpcgnn.planning.predictions.{name}", value)
    monkeypatch.setattr("hpcgnn.planning.memory.MIN_BYTES", arena.MIN_BYTES)
    cluster = small_cluster(process_bytes=float(BASE), network=Network(COMM.size), rates={}, disk_write_rate=1e6,
                            disk_read_rate=2e6)
    settings = {"dropout": SMALL["dropout"], "eval_every": SMALL["eval_every"], **settings}
    own = {name: settings.pop(name) for name in ("model", "precision", "hidden", "dropout") if name in settings}
    choices = Choices([COMM.size], ("vanilla",), **{"hidden": SMALL["hidden"], **own}, settings=settings)
    return make_plan(str(shards), cluster, choices).predictions[0]


@pytest.mark.parallel([1, 2])
@pytest.mark.parametrize("recipe", ["sage", "sage, map first", "gcn", "bf16", "sage, wide", "gcn, wide",
                                    "wide, map first"])
def test_a_plan_has_the_bytes_of_the_run(shared_path, limits, monkeypatch, recipe):
    """Within a fifth: a plan takes a rank to sum central rows early by their edges, and a training by their number.

    On one rank all bytes are the same.
    """
    for module in ("ops.spans", "planning.memory"):      # small beside a table, as on a graph that needs a limit
        monkeypatch.setattr(f"hpcgnn.{module}.ROWS_AT_ONCE", 32)
    shards = write_once(COMM, easy_graph(spec=GRAPH.replace("mean_degree=6", "mean_degree=3")), shared_path / "shards")
    settings = {**RECIPES[recipe], **limits[0](ROOM)}
    _, metrics = run(shards, shared_path / "run", settings)
    found = planned(shards, settings, monkeypatch)
    cycle = metrics[SMALL["eval_every"]:]      # the first epoch also writes the features
    written, read = (np.mean([record[f"disk_bytes_{name}"] for record in cycle]) for name in ("spilled", "fetched"))
    within = 0.0 if COMM.size == 1 else 0.2
    assert found.limited.written.sum() == pytest.approx(written, rel=within) and written > 0
    assert found.limited.read.sum() == pytest.approx(read, rel=within) and read > 0
    assert found.limited.in_memory.max() <= ROOM and found.fits and found.limited.reason is None
    assert found.limited.seconds == pytest.approx(
        found.limited.written.sum() / 1e6 + found.limited.read.sum() / 2e6)
    assert planned(shards, {**settings, **limits[0](1 << 30)}, monkeypatch).limited.written.sum() == 0


@pytest.mark.parallel([1, 2])
def test_a_plan_refuses_in_the_words_of_the_run(shards, shared_path, limits, monkeypatch):
    settings = {"memory": "1G", "scratch": disk_path()}
    with pytest.raises(CollectiveError) as refused:
        run(shards, shared_path / "run", settings)
    found = planned(shards, settings, monkeypatch)
    assert found.limited.reason in str(refused.value) and not found.fits


@pytest.mark.parallel(1)
def test_a_model_of_ones_own_has_its_losses(shards, shared_path, limits):
    from torch_geometric.nn import GCNConv, SAGEConv

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = SAGEConv(20, 16), GCNConv(16, 8)

        def forward(self, x, edge_index):
            return self.last(self.first(x, edge_index).relu(), edge_index)

    limit, arenas = limits
    found = []
    for number, settings in enumerate(({}, limit(1))):
        torch.manual_seed(0)
        found.append(run(shards, shared_path / str(number), {"eval_every": 2, **settings},
                         recipe=Recipe(model=Own()))[1])
    assert losses(found[0]).tobytes() == losses(found[1]).tobytes()
    assert arenas[0].most_in_memory == 0 and found[1][-1]["disk_bytes_spilled"] > 0


@pytest.mark.parallel([1, 2])
def test_what_can_t_be_done_ends_all_ranks_with_one_sentence(shards, shared_path, limits):
    for settings, text in [
            ({"memory": "1G", "scratch": str(shared_path / "none")}, r"scratch .*/none can't be written: No such file"),
            ({"memory": "1G", "scratch": "/dev/shm"}, r"scratch /dev/shm lies in memory \(tmpfs\)"),
            ({"memory": "1G"}, r"memory 1.07 GB (is too|leaves each of 2 ranks) .*, and 1.07 GB can't leave memory: "
                               r"the process, edges and messages; set --memory to more than [12].*GB")]:
        with pytest.raises(CollectiveError, match=text):
            run(shards, shared_path / "run", settings)
        assert not (shared_path / "run/metrics.jsonl").exists()


@pytest.mark.parallel(1)
@pytest.mark.parametrize("moment", [0, 12])
def test_a_full_disk_ends_the_run_with_one_sentence(shards, shared_path, limits, monkeypatch, moment):
    limit, _ = limits
    reserve, calls = os.posix_fallocate, []

    def refuse(*place):
        calls.append(place)
        if len(calls) > 2 + moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(*place)

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(hpcgnn.HpcgnnError, match=r"can't take .* more beside .*: No space left on device; free space"):
        run(shards, shared_path / "run", limit(ROOM))


@pytest.mark.parallel(1)
@pytest.mark.parametrize("call, done", [("pwrite", "written"), ("preadv", "read")])
def test_a_broken_disk_ends_the_run_and_another_folder_resumes_it_exactly(shards, shared_path, limits, monkeypatch,
                                                                          call, done):
    """It breaks in the second epoch."""
    limit, arenas = limits
    run(shards, shared_path / "whole", {})
    transfer = getattr(os, call)

    def break_later(number, *rest):
        if arenas[-1].file.number == number and epochs.count(True) > 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return transfer(number, *rest)

    epochs, train_epoch = [], trainer.train_epoch
    monkeypatch.setattr(trainer, "train_epoch", lambda *args, **more: (epochs.append(True),
                                                                       train_epoch(*args, **more))[1])
    with monkeypatch.context() as broken:
        broken.setattr(os, call, break_later)
        with pytest.raises(hpcgnn.HpcgnnError, match=f"^scratch .* can't be {done}: the disk reports an error; see the "
                                                     "system's log, and name another folder by --set scratch=FOLDER$"):
            run(shards, shared_path / "run", {**limit(ROOM), "checkpoint_every": 1})
    _, metrics = run(shards, shared_path / "run", limit(ROOM), resume=True)
    assert len(metrics) == 2
    on_rank_zero(COMM, lambda: assert_same_bits(shared_path / "run/checkpoint.h5", shared_path / "whole/checkpoint.h5"))


def test_settings_that_contradict_the_limit_are_refused():
    for settings, text in [({"memory": "12X"}, "such as 12G or 800M, found '12X'"), ({"memory": "-1"}, "found '-1'"),
                           ({"memory": ""}, "found ''"), ({"scratch": "/tmp"}, "has no effect without a limit"),
                           ({"memory": "1G", "device": "cuda"}, "memory 1G can't be used with device cuda")]:
        with pytest.raises(ConfigError, match=text):
            TrainConfig.of(**settings)
    for settings in ({"model": "gat"}, {"steps": "4"}, {"store_activations": 4}, {"rematerialize": True}):
        with pytest.raises(ConfigError, match="does not know which tables memory = 1G keeps on a disk with"):
            check_settings({"memory": "1G", **settings})
    check_settings({"memory": "0", "model": "gat"})


@pytest.mark.parametrize("text, number", [("0", 0), ("123", 123), ("12G", 12 << 30), ("1.5k", 1536), ("2T", 2 << 40)])
def test_memory_is_in_powers_of_1024(text, number):
    assert parse_memory(text) == number
