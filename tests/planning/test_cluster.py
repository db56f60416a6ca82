"""Cluster files: what was measured comes back, and nonsense gets one sentence that names the key."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from planning_setup import TABLES, small_cluster

from hpcgnn.errors import ConfigError
from hpcgnn.planning.cluster import (
    CODES,
    NETWORKS,
    NODES,
    Network,
    cluster_text,
    preset_cluster,
    read_cluster,
    with_network,
)


@pytest.fixture
def file_of(tmp_path):
    def write(tables):
        path = tmp_path / "c.toml"
        path.write_text(cluster_text(tables, ["measured here"]))
        return path

    return write


def test_a_file_that_was_written_is_read_again(file_of):
    found, expected = read_cluster(file_of(TABLES)), small_cluster()
    assert found.network == expected.network and found.pack == expected.pack and found.unpack == expected.unpack
    assert np.array_equal(found.rates["fp32"].sum_bytes, expected.rates["fp32"].sum_bytes)
    assert found.rates["fp32"].norm_back_values == expected.rates["fp32"].norm_back_values
    assert (found.process_bytes, found.step_seconds, found.memory_bytes) == (3e8, 1e-3, 64e9)
    assert found.about == {"processor": "A 1000"}


NONSENSE = [
    ("node", "color", "blue", "node.color is no key of a cluster file"),
    ("node", "ranks", 2.5, "node.ranks is 2.5; expected a whole number"),
    ("node", "processor", 7, "node.processor is 7; expected a text"),
    ("network", "nic_bytes_per_second", -1, "network.nic_bytes_per_second is -1; expected a positive number"),
    ("network", "within_latency_seconds", 0, "network.within_latency_seconds is 0; expected a positive number"),
    ("network", "between_bytes_per_second", "fast", "network.between_bytes_per_second is 'fast'; expected a positive"),
    ("network", "bandwith", 1e9, "network.bandwith is no key"),
    ("pack", "affine_3", 1e9, "pack.affine_3 is no key"),
    ("rates.fp32", "map_flops", True, "rates.fp32.map_flops is True; expected a positive number"),
    ("rates.fp32", "sum_bytes", [], "rates.fp32.sum_bytes is \\[\\]; expected a list of"),
    ("rates.fp32", "sum_bytes", [[1, 2, -3]], "rates.fp32.sum_bytes is -3; expected a positive number"),
    ("rates.int3", "map_flops", 1e9, "rates.int3 is no key of a cluster file; expected one of fp32, bf16, fp16")]


@pytest.mark.parametrize("table, key, value, says", NONSENSE)
def test_nonsense_gets_one_sentence_that_names_the_key(file_of, table, key, value, says):
    tables = copy.deepcopy(TABLES)
    tables.setdefault(table, {})[key] = value
    with pytest.raises(ConfigError, match=says):
        read_cluster(file_of(tables))


@pytest.mark.parametrize("table, key", [("node", "ranks"), ("node", "process_bytes"), ("rates.fp32", "drop_values"),
                                        ("rates.fp32", "sum_bytes")])
def test_a_missing_value_is_named(file_of, table, key):
    tables = copy.deepcopy(TABLES)
    del tables[table][key]
    with pytest.raises(ConfigError, match=f"{table}.{key} is missing; hpcgnn plan --measure"):
        read_cluster(file_of(tables))


def test_a_missing_table_is_named(file_of):
    with pytest.raises(ConfigError, match="network is missing"):
        read_cluster(file_of({name: table for name, table in TABLES.items() if name != "network"}))


@pytest.mark.parametrize("text, says", [("node = 3\nrates = 1\npack = 1\nunpack = 1\nnetwork = 1", "expected a table"),
                                        ("[node", "is not valid TOML"), ("", "holds no setting")])
def test_what_is_no_table_is_refused(tmp_path, text, says):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_cluster(tmp_path / "c.toml")


@pytest.mark.parametrize("key, ranks, fits", [("between_latency_seconds", 5, 4), ("nic_bytes_per_second", 5, 4),
                                              ("within_bytes_per_second", 2, 1)])
def test_a_network_that_a_run_needs_must_be_described(file_of, key, ranks, fits):
    tables = copy.deepcopy(TABLES)
    del tables["network"][key]
    cluster = read_cluster(file_of(tables))
    assert cluster.can_time(fits) and not cluster.can_time(ranks)
    assert f"network.{key} is missing, which the seconds of {ranks} ranks at 4 per node need" in cluster.lacks(ranks)


def test_rates_that_are_missing_are_named():
    with pytest.raises(ConfigError, match=r"has no table \[rates.fp16\]"):
        small_cluster().rates_of("fp16")
    with pytest.raises(ConfigError, match=r"has no pack\.affine_1"):
        small_cluster(pack={"affine_8": 1e9}).rate_of("affine_1", "pack")


def test_gather_rates_lie_between_those_measured():
    rates = small_cluster().rates["fp32"]
    for columns, size, rate in rates.sum_bytes:
        assert rates.gather_rate(int(columns), np.array([size])) == pytest.approx(rate)
    assert rates.gather_rate(64, np.array([1e7])) == pytest.approx((2e10 * 5e9) ** 0.5)
    assert rates.gather_rate(128, np.array([1e6])) == pytest.approx((2e10 * 3e10) ** 0.5)
    assert rates.gather_rate(1000, np.array([1e12, 1.0])) == pytest.approx([6e9, 3e10])


@pytest.mark.parametrize("node", NODES)
def test_a_preset_gives_its_ranks_what_the_node_has(node):
    """Ranks that divide a node's cores divide its rates, however many they are."""
    few, many = preset_cluster(node, "ethernet-10g", 2), preset_cluster(node, "ethernet-10g", 4)
    for precision in ("fp32", "bf16", "fp16"):
        two, four = few.rates_of(precision), many.rates_of(precision)
        for name in ("map_flops", "gradient_flops", "drop_values", "norm_values", "norm_back_values"):
            assert getattr(two, name) == pytest.approx(2 * getattr(four, name))
        assert two.map_flops < NODES[node].flops / 2 and two.sum_bytes[0, 2] < NODES[node].bytes_per_second / 2
    for code in CODES:
        assert few.rate_of(code, "pack") == pytest.approx(2 * many.rate_of(code, "pack"))
    assert few.memory_bytes == many.memory_bytes == NODES[node].memory_bytes
    assert few.lacks(64) is None and preset_cluster(node, None).lacks(1024).endswith("or give --network NAME")
    assert set(few.assumed) == {"node", "network"} and NODES[node].source in few.assumed["node"]


def test_a_preset_network_fills_what_a_file_lacks():
    measured = small_cluster(network=Network(4, 1e-6, 10e9, 5e-6, 4e9, None))
    filled = with_network(measured, "infiniband-ndr").network
    assert (filled.between_latency, filled.between_rate, filled.nic_rate) == (5e-6, 4e9, 50e9)
    with pytest.raises(ConfigError, match=r"c.toml states its network between nodes; leave --network ethernet-1g out"):
        with_network(small_cluster(), "ethernet-1g")


@pytest.mark.parametrize("name, hint", [("HDR", "infiniband-hdr"), ("10gbit", "ethernet-10g"),
                                        ("ethernet-10G", "ethernet-10g"), ("infiniband-hrd", "infiniband-hdr")])
def test_an_unknown_network_is_answered_with_the_nearest(name, hint):
    with pytest.raises(ConfigError, match=rf"expected one of {', '.join(NETWORKS)}; did you mean {hint}\?$"):
        preset_cluster("laptop", name)
    with pytest.raises(ConfigError, match=rf"--node is 'zzz'; expected one of {', '.join(NODES)}$"):
        preset_cluster("zzz", None)
