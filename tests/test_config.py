"""Settings: four layers of them, each checked, and a hint for what is misspelled."""

from __future__ import annotations

import os

import pytest

from hpcgnn.config import MODELS, TrainConfig, check_keys, known_settings, resolve_train_config, settings_of
from hpcgnn.errors import ConfigError
from hpcgnn.registry import as_toml, read_registry, read_toml

REGISTRY = {
    "presets": {"paper": {"moons": {"model": "gcn", "score": "roc_auc", "hidden": 7, "lr": 0.5,
                                    "gcn": {"hidden": 8, "layers": 4}}},
                "other": {"moons": {"hidden": 9}}, "third": {"suns": {}}, "third-of-moons": {"moons": {}},
                "groups": {"moons": {"hidden": 5, "group_size": 30, "gcn": {"group_size": 40}}},
                "chosen": {"moons": {"method": "adaqp", "group_size": 20}}},
}


def resolve(dataset="moons", flags=None, file_settings=None, preset=None):
    return resolve_train_config(dataset, flags or {}, file_settings, preset, REGISTRY)


def test_each_layer_overrides_the_one_below():
    paper = resolve(preset="paper")
    assert (paper.model, paper.score, paper.hidden, paper.layers, paper.lr) == ("gcn", "roc_auc", 8, 4, 0.5)
    file = resolve(file_settings={"hidden": 16, "layers": 2}, preset="paper")
    assert (file.hidden, file.layers, file.lr) == (16, 2, 0.5)
    flags = resolve(flags={"hidden": 32}, file_settings={"hidden": 16, "layers": 2}, preset="paper")
    assert (flags.hidden, flags.layers, flags.lr) == (32, 2, 0.5)


def test_a_number_stands_for_its_text():
    assert resolve(flags={"steps": 4, "history": 8, "model": "sage"}) == resolve(
        flags={"steps": "4", "history": "8", "model": "sage"})
    assert resolve(file_settings={"steps": 4}).steps == "4"
    for wrong in (True, 4.0, 0):
        with pytest.raises(ConfigError, match=r"^steps must be"):
            resolve(flags={"steps": wrong})


@pytest.mark.parametrize("name", ["cora", "pubmed", "reddit", "yelp", "ogbn-products", "tolokers", "synthetic"])
def test_a_datasets_name_alone_chooses_no_setting(name):
    assert resolve_train_config(name, {}) == TrainConfig()


def test_a_preset_has_settings_for_all_models_and_for_one():
    assert resolve(flags={"model": "sage"}, preset="paper").hidden == 7
    assert resolve(file_settings={"model": "sage"}, preset="paper").hidden == 7
    assert resolve(preset="other").hidden == 9


@pytest.mark.parametrize("flags, size", [
    ({"method": "adaqp", "model": "gcn"}, 40), ({"method": "joint", "model": "sage"}, 30),
    ({"method": "adaqp", "group_size": 7}, 7)])
def test_a_preset_has_settings_of_methods_for_those_that_have_them(flags, size):
    assert resolve(flags=flags, preset="groups").method.group_size == size


def test_a_method_takes_no_settings_of_others_from_a_preset():
    assert resolve(flags={"method": "pipegcn"}, preset="groups") == resolve(
        flags={"method": "pipegcn", "hidden": 5}, preset="third-of-moons")
    assert resolve(preset="groups").method == TrainConfig().method
    assert resolve(preset="chosen").method.group_size == 20


@pytest.mark.parametrize("dataset, preset, complaint", [
    ("moons", "third", "preset 'third' has no settings for dataset 'moons'; it has paper, other, third-of-moons, "
                       "groups, chosen"),
    ("stars", "paper", "preset 'paper' has no settings for dataset 'stars'; no preset does"),
])
def test_a_preset_without_the_dataset_is_refused(dataset, preset, complaint):
    with pytest.raises(ConfigError) as refused:
        resolve(dataset, preset=preset)
    assert str(refused.value) == complaint


@pytest.mark.parametrize("key, hint", [
    ("hiden", "did you mean 'hidden'?"), ("drop_out", "did you mean 'dropout'?"),
    ("learning_rate", "did you mean 'lr'?"), ("hidden_channels", "did you mean 'hidden'?"),
    ("zz", "known settings are model,"),
])
def test_an_unknown_setting_is_refused_with_a_hint(key, hint):
    with pytest.raises(ConfigError) as refused:
        check_keys({"lr": 0.1, key: 1}, "run.toml")
    assert str(refused.value).startswith(f"unknown setting {key!r} in run.toml; {hint}")


@pytest.mark.parametrize("settings, complaint", [
    ({"layers": 0}, "layers must be at least 1, found 0"),
    ({"dropout": 1.0}, "dropout must be at most 0.999, found 1.0"),
    ({"lr": float("nan")}, "lr must be a finite number, found nan"),
    ({"lr": "fast"}, "lr must be of type float, found 'fast'"),
    ({"epochs": 1.5}, "epochs must be of type int, found 1.5"),
    ({"epochs": True}, "epochs must be of type int, found True"),
    ({"model": "GraphSAGE"}, f"model must be one of {', '.join(MODELS)}, or MODULE:CLASS, found 'GraphSAGE'; "
                             "did you mean sage?"),
    ({"model": "GCNConv"}, f"model must be one of {', '.join(MODELS)}, or MODULE:CLASS, found 'GCNConv'; "
                           "did you mean gcn?"),
    ({"device": "gpu"}, "device must be one of cpu, cuda, found 'gpu'; did you mean cuda?"),
    ({"precision": "float32"}, "precision must be one of fp32, bf16, fp16, auto, found 'float32'; did you mean fp32?"),
    ({"norm": "BatchNorm"}, "norm must be one of none, layer, batch, found 'BatchNorm'; did you mean batch?"),
    ({"norm": "group"}, "norm must be one of none, layer, batch, found 'group'"),
    ({"model": "mlp"}, f"model must be one of {', '.join(MODELS)}, or MODULE:CLASS, found 'mlp'"),
    ({"model": "gat", "hidden": 30}, "hidden must be a multiple of the 4 attention heads, found 30; "
                                     "change hidden or heads"),
    ({"method": "uniform", "bits": 3}, "bits must be one of 1, 2, 4, 8, 16, 32, found 3"),
    ({"transport": "staged"}, "transport = staged has no effect on device cpu, only on cuda; leave it out or change "
                              "--device"),
    ({"sums": "half", "precision": "bf16"}, "sums = half has no effect on device cpu, only on cuda; leave it out or "
                                            "change --device"),
    ({"nodes_aware": "on", "rematerialize": True}, "nodes_aware on can't be used with rematerialize: rows that are "
     "shared do not come peer by peer; choose one"),
    ({"nodes_aware": "on", "device": "cuda"}, "nodes_aware on can't be used with device cuda: rows are shared in the "
     "memory of the host; use nodes_aware=off"),
    ({"pre_aggregation": "on", "predict": "previous"}, "pre_aggregation on can't be used with predict previous: a sum "
     "is of masked rows, and masks change with every epoch; choose one"),
    ({"send_share": 0.5, "predict": "auto"}, "send_share 0.5 can't be used with predict auto: rows that are not sent "
     "stay as their receiver has them, so it must have got differences from the first epoch on; use predict=previous, "
     "or leave send_share out"),
    ({"send_share": 0.0, "predict": "previous"}, "send_share must be at least 0.001, found 0.0"),
    ({"send_share": 0.5, "predict": "previous", "method": "adaqp"}, "method adaqp can't be used with send_share 0.5: "
     "it solves widths from the ranges of all rows; use another method, or leave send_share out"),
    ({"pre_aggregation": "on", "rematerialize": True}, "pre_aggregation on can't be used with rematerialize: sums do "
     "not come peer by peer; choose one"),
    ({"pre_aggregation": "on", "model": "gin"}, "pre_aggregation on can't be used with model gin: its layers read "
     "rows of other ranks one by one; use pre_aggregation=off"),
    ({"pre_aggregation": "on", "steps": "4"}, "steps 4 can't be used with pre_aggregation on: a step computes "
     "only some of the rows in a sum; choose one"),
    ({"nodes_aware": "on", "steps": "4"}, "steps 4 can't be used with nodes_aware on: ranks of a node share the rows "
     "of whole layers; choose one"),
    ({"nodes_aware": "on", "method": "bns"}, "method bns can't be used with nodes_aware on: ranks of a node share rows "
     "that come in every epoch; use another method"),
    ({"device": "cuda", "sums": "half"}, "sums half can't be used with precision fp32: it sums 16-bit rows; use bf16 "
                                         "or fp16"),
    ({"device": "cuda", "transport": "pinned"}, "transport must be one of auto, cuda-aware, staged, found 'pinned'"),
    ({"bits": 2}, "bits = 2 has no effect on method vanilla, only on uniform; leave it out or change --method"),
])
def test_a_value_outside_its_range_is_refused(settings, complaint):
    with pytest.raises(ConfigError) as refused:
        TrainConfig.of(**settings)
    assert str(refused.value) == complaint


def test_every_default_is_within_its_own_range_and_described():
    assert TrainConfig() == TrainConfig.of(**settings_of(TrainConfig()))
    assert all(known.metadata["description"].endswith(".") for known in known_settings() if known.name != "method")


def test_an_integer_is_a_float_where_one_is_asked_for():
    assert TrainConfig.of(lr=1).lr == 1


def test_toml_comes_back_equal(tmp_path):
    tables = {"": {"lr": 5e-4, "name": 'a "b" \\ c\n', "deep": [1, 2.5, "x"], "flag": True, "count": -3},
              "other": {"key": "ü"}}
    (tmp_path / "a.toml").write_text(as_toml(tables))
    assert read_toml(tmp_path / "a.toml") == {**tables[""], "other": tables["other"]}


def test_toml_keeps_every_character_and_a_mark_of_the_byte_order_is_none(tmp_path):
    tag, not_utf8 = "a\U000e0041b", os.fsdecode(b"runs/\xff")
    (tmp_path / "a.toml").write_text("\ufeff" + as_toml({"": {"tag": tag, "path": not_utf8}}), encoding="utf-8")
    assert read_toml(tmp_path / "a.toml") == {"tag": tag, "path": r"runs/\udcff"}


@pytest.mark.parametrize("content, complaint", [
    (None, "can't be read: No such file or directory"), (b"lr = ", "is not valid TOML"), (b"\xff", "is not valid TOML"),
])
def test_a_file_that_is_no_toml_is_refused(tmp_path, content, complaint):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        read_toml(path)
    assert str(refused.value).startswith(f"configuration file {path} {complaint}")


def registry_cases():
    registry = read_registry()
    return [(dataset, model, preset) for preset, tables in registry["presets"].items() for dataset in tables
            for model in ("gcn", "sage")]


@pytest.mark.parametrize("dataset, model, preset", registry_cases())
def test_every_preset_of_the_registry_is_a_valid_configuration(dataset, model, preset):
    config = resolve_train_config(dataset, {"model": model}, preset=preset)
    assert config.model == model


@pytest.mark.parametrize("dataset, size", [("reddit", 100), ("yelp", 1000), ("ogbn-products", 2000),
                                           ("amazonproducts", 500)])
def test_the_registry_has_the_sizes_of_groups_of_adaqps_table_8(dataset, size):
    assert resolve_train_config(dataset, {"method": "adaqp"}, preset="adaqp").method.group_size == size


def test_planetoids_preset_is_kipf_and_wellings_gcn():
    config = resolve_train_config("cora", {}, preset="planetoid")
    assert (config.model, config.layers, config.hidden, config.weight_decay_layers) == ("gcn", 2, 16, "first")
