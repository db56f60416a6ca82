import pytest

from hpcgnn.data.options import SourceOptions, split_path
from hpcgnn.data.source import LOADERS, load_source
from hpcgnn.errors import DatasetError


@pytest.mark.parametrize("spec", ["neo4j:graph.db", "cora", "", ":x"])
def test_unknown_kind_is_refused_with_the_list_of_kinds(spec):
    with pytest.raises(DatasetError) as error:
        load_source(spec, SourceOptions())
    assert all(kind in str(error.value) for kind in LOADERS)


def test_a_file_without_its_kind_is_told_what_was_meant():
    with pytest.raises(DatasetError, match=r"; write npz:some/graph\.npz$"):
        load_source("some/graph.npz", SourceOptions())


@pytest.mark.parametrize("kind", ["npz", "pyg", "shards"])
def test_an_unknown_setting_is_no_part_of_the_path(kind, tmp_path):
    (tmp_path / "g").write_text("")
    with pytest.raises(DatasetError, match=r"source has no setting 'edge=[^']*'; expected NAME=VALUE"):
        split_path(f"{tmp_path}/g,edge=more.csv", ("edges", "features"), f"a {kind}: source")
    (tmp_path / "a,b=1").write_text("")
    assert split_path(f"{tmp_path}/a,b=1,edges=c", ("edges",), "s") == (f"{tmp_path}/a,b=1", {"edges": "c"})


@pytest.mark.parametrize("kind", ["npz", "planetoid", "ogb", "graphsaint", "edges"])
def test_every_kind_refuses_what_is_not_there_in_one_sentence(kind, tmp_path):
    missing = tmp_path / "none"
    rest = {"ogb": "ogbn-arxiv", "edges": f"{missing}.csv,labels={missing}.npy"}.get(kind, missing)
    with pytest.raises(DatasetError, match=r"none|ogbn_arxiv") as error:
        load_source(f"{kind}:{rest}", SourceOptions(root=tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("setting", "value"), [
    ("non_finite", "ignore"), ("feature_kind", "none"), ("normalize_features", "column"), ("seed", -1),
    ("split", (0.9, 0.2)), ("split", (0.0, 0.2)),
])
def test_options_outside_their_choices_are_refused(setting, value):
    with pytest.raises(DatasetError, match=r"expected"):
        SourceOptions(**{setting: value})
