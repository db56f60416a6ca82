"""Options of `hpcgnn.preprocess` and `hpcgnn preprocess`, and the work that both do.

This file imports neither MPI nor torch: the command runs in one process without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.edges import read_links
from hpcgnn.data.given import finish_dataset
from hpcgnn.data.objects import given_graph
from hpcgnn.data.options import SourceOptions, silent
from hpcgnn.data.source import load_source
from hpcgnn.data.tables import Choices, columns_of, in_order, is_table
from hpcgnn.errors import ConfigError, DatasetError
from hpcgnn.partition.choices import MEASURED, split_balance
from hpcgnn.report.run_folder import read_measured
from hpcgnn.shards.folder import Crew, check_folder, nearest_folder
from hpcgnn.shards.schema import GraphInfo
from hpcgnn.shards.source import KIND, load_shards
from hpcgnn.shards.writer import Making, Measured, make_shards

STRUCTURAL = "structural"
# Options that shards keep as their provenance.
KEPT = ("parts", "reorder", "cluster_rows", "seed", "symmetrize", "root", "feature_format", "feature_bits",
        "non_finite", "normalize_features", "split", "hold_out", "hold_out_relation", "task", "make_labels",
        "overwrite")


class Options(TypedDict, total=False):
    """The keyword arguments of `hpcgnn.preprocess` with their types, for editors and type checkers."""

    features: Any
    labels: Any
    splits: Any
    edge_weight: Any
    relation: Any
    edge_attr: Any
    edge_time: Any
    node_ids: Any
    nodes: Any
    source: str | int | None
    target: str | int | None
    rows: str
    ignore: Any
    name: str | None
    task: str
    symmetrize: bool
    seed: int
    partitioner: Any
    owner: Any
    balance: str | None
    reorder: str
    feature_format: str
    feature_bits: int
    cluster_rows: int | None
    non_finite: str
    normalize_features: str
    split: tuple[float, float]
    hold_out: tuple[float, float]
    hold_out_relation: str
    val_links: Any
    test_links: Any
    make_labels: int | None
    root: str | Path | None
    overwrite: bool


@dataclass(frozen=True)
class PreprocessOptions(Choices, SourceOptions, Making):
    """All options: where things lie in an object, how a source is read, and how the graph is cut and stored.

    `features` may also be "structural". Raises DatasetError or ConfigError for an impossible option.
    """

    feature_kind: str = "auto"
    normalize_features: str = "auto"

    def __post_init__(self) -> None:
        if isinstance(self.features, str) and self.features == STRUCTURAL:
            object.__setattr__(self, "features", False)
            object.__setattr__(self, "feature_kind", STRUCTURAL)
        for name in ("parts", "cluster_rows", "seed", "feature_bits", "make_labels", "symmetrize", "overwrite"):
            kind, expected = (bool, "True or False") if name in ("symmetrize", "overwrite") else (int, "a whole number")
            if isinstance(value := getattr(self, name), np.generic):
                object.__setattr__(self, name, value := value.item())
            if type(value) is not kind and not (value is None and name in ("cluster_rows", "make_labels")):
                raise ConfigError(f"{name} is {value!r}; expected {expected}")
        for part in (Making, Choices, SourceOptions):
            part.__post_init__(self)

    def with_measured_run(self) -> PreprocessOptions:
        """The same with the seconds of a run's ranks, if parts are balanced by a run.

        Raises ConfigError for a run without its ranks' seconds.
        """
        kind, folder = split_balance(self.what_is_balanced)
        return replace(self, measured=Measured(*read_measured(Path(folder)))) if kind == MEASURED else self

    def as_settings(self) -> dict[str, Any]:
        """The options that shards keep, as numbers, texts, lists and None."""
        kept = {name: getattr(self, name) for name in KEPT} | {
            "partitioner": self.cut_by, "balance": self.what_is_balanced, "features": self.feature_kind}
        return {name: str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
                for name, value in kept.items()}


def preprocess_graph(data: Any, out: str | Path | None, options: PreprocessOptions, crew: Crew,
                     show: Callable[[str, GraphDataset], None], least_memory: str) -> GraphInfo:
    """Collective: load and cut a graph on rank 0, write its parts on all ranks.

    Parameters
    ----------
    data                      see `hpcgnn.preprocess`; only rank 0 reads it
    show : function           takes the source and the graph; called on rank 0 before the cut, which takes long
    least_memory : str        the caller's name for the partitioner that takes the least memory
    """
    if crew.rank:
        options = replace(options, progress=silent)
    source = data if isinstance(data, str) else f"python:{type(data).__module__}.{type(data).__name__}"

    def load() -> GraphDataset | None:
        if crew.rank:
            return None
        if out is None or out == "":
            raise ConfigError("preprocess was given no folder to write to; pass out=FOLDER")
        check_folder(Path(out), options.overwrite)
        dataset = _load(data, replace(options, scratch=nearest_folder(Path(out))))
        show(source, dataset)
        return dataset

    try:
        dataset = crew.together(load)
        source = crew.share(source)
        settings = options.as_settings() | {"source": source, "out": str(out)}
        if not isinstance(data, str):
            settings["rows"] = options.rows
        return make_shards(dataset, Path(out), options, source, settings, options.progress, nearest_folder(Path(out)),
                           crew)
    except MemoryError as reason:
        what = data if isinstance(data, str) else f"a {type(data).__name__}"
        raise DatasetError(f"{what} needs more memory than this machine gives; use a larger machine, or "
                           f"{least_memory}, which takes less") from reason


def _read_links(links: Any, options: PreprocessOptions) -> Any:
    if isinstance(links, str | Path):
        return read_links(Path(links), options)
    if not is_table(links):
        return links
    columns = columns_of(links, "held-out links")
    return tuple(list(columns.values())[place] for place in in_order(list(columns)))


def _load(data: Any, options: PreprocessOptions) -> GraphDataset:
    val, test = (_read_links(links, options) for links in (options.val_links, options.test_links))
    options = replace(options, val_links=val, test_links=test)
    if not isinstance(data, str):
        return finish_dataset(given_graph(data, options), options)
    for name in Choices.__annotations__:
        value = getattr(options, name)
        if not (value is None or value is False or (name == "rows" and value == "sources")):
            raise ConfigError(f"the source {data!r} says itself where its {name} lie; leave out {name}=")
    kind, _, rest = data.partition(":")
    return load_shards(rest, options) if kind == KIND else load_source(data, options)
