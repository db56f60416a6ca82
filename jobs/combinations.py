"""Every feature with every other, and with every action: the page of what is refused, and a walk that tries the rest.

    python jobs/combinations.py --page > docs/combinations.md
    hpcgnn_mpirun 3 python jobs/combinations.py --out build/combinations.json

The walk trains each pair for some epochs on a small graph, scores and saves the run. If one of the two must change
nothing, the losses are compared with those of the other alone; else the loss must fall. Then it does with a run of each
feature what `actions` lists. It takes about 40 minutes on two cores; `tests/jobs/test_combinations.py` walks a part.
"""

from __future__ import annotations

# hpcgnn.run.launch comes first, since it shares out the cores before torch starts its threads.
# isort: off
import argparse
import itertools
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcgnn.run.launch import run_parallel

from actions import (
    ACTIONS, DRAWN, EXACT, FEWEST_EQUAL, NEAR_LOGITS, NEAR_LOSS, NEAR_SCORE, RESUME, Trial, difference, losses_of,
)

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.config import TrainConfig
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.options import SourceOptions
from hpcgnn.data.source import load_source
from hpcgnn.errors import ConfigError, HpcgnnError
from hpcgnn.shards.schema import Provenance
from hpcgnn.shards.writer import Making, write_shards
# isort: on

GRAPH = "synthetic:nodes=900,mean_degree=8,classes=4,features=12,signal=2"
BASE = {"model": "sage", "layers": 2, "hidden": 16, "epochs": 4, "eval_every": 4, "lr": 0.02, "dropout": 0.2,
        "checkpoint_every": 0}
CLUSTER_ROWS, CLUSTERS, RELATIONS = 50, 18, 3
LEAST_FALL = 0.95  # ratio of the last loss to the first
WRONG = "wrong: "
Make = Callable[[], torch.nn.Module]


@dataclass(frozen=True, eq=False)
class Feature:
    """One thing that a user may choose. Features of one group exclude each other.

    changes_nothing : bool      losses are those of the run without it, up to the order of sums
    family : str                what the page writes for all features of one family, by default the name
    """

    group: str
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    changes_nothing: bool = False
    graph: str = ""      # what the graph has besides: weights, relations, attributes, labels or targets, joined by +
    model: Callable[[int], torch.nn.Module] | None = None      # of the number of columns of an answer
    family: str = ""

    def is_equal_with(self, other: Feature) -> bool:
        """Whether losses with both are those with the `other` alone."""
        # Ranks of a node read rows unrounded, and sums are rounded in place of rows.
        return self.changes_nothing and not (self.group in ("nodes_aware", "pre_aggregation")
                                             and other.group in ("method", "predict", "code", "precision"))


def own_model(num_out: int) -> torch.nn.Module:
    """A model of PyTorch Geometric with a batch norm."""
    import torch_geometric.nn as pyg

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = pyg.SAGEConv(12, 16), pyg.SAGEConv(16, num_out)
            self.norm = torch.nn.BatchNorm1d(16)

        def forward(self, x, edge_index):
            return self.second(torch.relu(self.norm(self.first(x, edge_index))), edge_index)

    torch.manual_seed(1)
    return Own()


def own_model_of_edges(num_out: int) -> torch.nn.Module:
    """A model of PyTorch Geometric that reads attributes and relations of edges."""
    import torch_geometric.nn as pyg

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = pyg.GATConv(12, 16, edge_dim=2), pyg.RGCNConv(16, num_out, RELATIONS)

        def forward(self, x, edge_index, edge_attr, edge_type):
            return self.second(torch.relu(self.first(x, edge_index, edge_attr)), edge_index, edge_type)

    torch.manual_seed(1)
    return Own()


def _model(name: str, graph: str = "", **settings: Any) -> Feature:
    return Feature("model", name, {"model": name, **settings}, graph=graph)


FEATURES = (
    *(_model(name) for name in ("gcn", "gin", "sage-max", "gcnii", "jknet", "appnp")), _model("gat", heads=4),
    _model("rgcn", "relations"),
    Feature("model", "rgcn num_blocks=4", {"model": "rgcn", "num_blocks": 4}, graph="relations", family="rgcn"),
    Feature("model", "own PyG model", model=own_model),
    Feature("model", "own PyG model of edges", graph="relations+attributes", model=own_model_of_edges,
            family="own PyG model"),
    *(Feature("steps", f"steps {steps}", {"steps": steps}, family="steps") for steps in ("4", "rows:4")),
    Feature("method", "uniform bits=4", {"method": "uniform", "bits": 4}),
    *(Feature("method", name, {"method": name}) for name in ("random", "pipegcn", "bns", "sancus")),
    # By modeled seconds, so that two runs choose the same widths.
    *(Feature("method", name, {"method": name, "deterministic": True}) for name in ("sylvie", "sylvie-paper", "adaqp",
                                                                                    "joint")),
    Feature("predict", "predict=previous", {"predict": "previous"}),
    Feature("predict", "send_share=0.5", {"predict": "previous", "send_share": 0.5}),
    Feature("code", "code=rotated", {"code": "rotated"}),
    Feature("overlap", "overlap=false", {"overlap": False}, changes_nothing=True),
    Feature("exchange", "exchange=alltoallv", {"exchange": "alltoallv"}, changes_nothing=True),
    Feature("rematerialize", "rematerialize", {"rematerialize": True}, changes_nothing=True),
    Feature("nodes_aware", "nodes_aware=on", {"nodes_aware": "on", "ranks_per_node": 2}, changes_nothing=True),
    Feature("pre_aggregation", "pre_aggregation=on", {"pre_aggregation": "on"}, changes_nothing=True),
    Feature("epoch_rows", "epoch_rows=all", {"epoch_rows": "all"}, changes_nothing=True),
    Feature("sum_bits", "sum_bits=8", {"sum_bits": 8}),
    *(Feature("precision", precision, {"precision": precision}) for precision in ("bf16", "fp16")),
    Feature("store", "store_activations=8", {"store_activations": 8}),
    *(Feature("quantize", f"quantize {scheme}", {"quantize": scheme}, family="quantize")
      for scheme in ("uniform", "degree-aware")),
    Feature("input_dropout", "input_dropout=0", {"input_dropout": 0.0}),
    Feature("norm", "norm=batch", {"norm": "batch"}),
    Feature("residual", "residual", {"residual": True, "layers": 3}),
    Feature("optimizer", "optimizer=adamw", {"optimizer": "adamw", "weight_decay": 0.01}),
    Feature("ema", "ema=0.9", {"ema": 0.9}, changes_nothing=True),
    Feature("edge_dropout", "edge_dropout=0.2", {"edge_dropout": 0.2}),
    Feature("label_inputs", "label_inputs=0.5", {"label_inputs": 0.5}),
    Feature("node_embedding", "node_embedding=8", {"node_embedding": 8}),
    Feature("clusters", "clusters", {"clusters": CLUSTERS}),
    Feature("task", "task=links", {"task": "links", "link_loss": "bpr"}),
    Feature("graph", "edge weights", graph="weights"),
    Feature("graph", "relations", graph="relations"),
    Feature("graph", "edge attributes", graph="attributes"),
    Feature("graph", "several labels", graph="labels"),
    Feature("graph", "regression", graph="targets"),
)
# Features with which the cut of the graph decides what is rounded, drawn or late.
CHANGED_BY_THE_CUT = ("steps 4", "steps rows:4", "uniform bits=4", "random", "pipegcn", "bns", "sylvie",
                      "sylvie-paper", "adaqp", "joint", "send_share=0.5", "sum_bits=8", "bf16")
WORKS = ("yes", "=", "~")
# Pairs in which one changes nothing alone and does change something with the other.
CHANGES = {"steps 4 + epoch_rows=all": "a rank cuts its clusters from rows in another order",
           "send_share=0.5 + epoch_rows=all": "a share of more rows is sent"}


def graph_of(name: str) -> GraphDataset:
    """The small graph with what is named, such as relations+labels."""
    kinds, rng = name.split("+"), np.random.default_rng(0)
    graph = load_source(GRAPH + f",relations={RELATIONS}" * ("relations" in kinds),
                        SourceOptions(seed=3, hold_out=(0.02, 0.03)))
    one_hot = np.eye(4, dtype=np.uint8)[graph.labels]
    weight = rng.uniform(0.5, 2.0, len(graph.indices)).astype(np.float32)
    changes: dict[str, dict[str, Any]] = {
        "weights": {"edge_weight": weight}, "labels": {"labels": one_hot | np.roll(one_hot, 1, 1)},
        "targets": {"labels": graph.labels.astype(np.float32)[:, None], "num_classes": 1},
        "attributes": {"edge_attr": rng.uniform(0, 1, (len(graph.indices), 2)).astype(np.float32)}}
    for kind in kinds:
        graph = replace(graph, **changes.get(kind, {}))
    return graph.check()


def name_of_graph(*features: Feature) -> str:
    """What the graph of all `features` has, `classes` if nothing besides."""
    kinds = {kind for feature in features for kind in feature.graph.split("+") if kind}
    return "+".join(sorted(kinds)) or "classes"


def write_all(folder: Path, *num_parts: int) -> None:
    """Write shards of every graph for each number of parts, with random owners."""
    names = {name_of_graph(*features) for features in (*pairs(), *((feature,) for feature in FEATURES))}
    for name, number in itertools.product(sorted(names), num_parts):
        owner = np.random.default_rng(0).integers(0, number, 900).astype(np.int32)
        write_shards(graph_of(name), owner, folder / f"{name}-p{number}",
                     Making(number, reorder="none", overwrite=True), Provenance("combinations", "given", 0))


def pairs() -> Iterator[tuple[Feature, Feature]]:
    """All pairs of features that do not exclude each other."""
    return ((one, other) for one, other in itertools.combinations(FEATURES, 2) if one.group != other.group)


def key(*features: Feature) -> str:
    return " + ".join(feature.name for feature in features)


def settings_of_all(*features: Feature, **others: Any) -> tuple[dict[str, Any], str, Make | None]:
    """Settings of a training with all of `features`, its graph, and what makes its model if that is one's own."""
    settings = {**BASE, **others}
    for feature in features:
        settings |= feature.settings
    make = next((feature.model for feature in features if feature.model), None)
    graph = name_of_graph(*features)
    if make is None:
        return settings, graph, None
    del settings["layers"], settings["hidden"]
    return settings | {"model": "combinations:Own"}, graph, partial(make, 1 if "targets" in graph else 4)


def trial_of(comm: MPI.Comm, root: Path, *features: Feature, **others: Any) -> Trial:
    settings, graph, make = settings_of_all(*features, **others)
    return Trial(comm, root, graph, settings, make)


def trained(comm: MPI.Comm, root: Path, *features: Feature) -> list[float] | str:
    """Collective: train with all of `features`; return the losses by epoch, or the sentence that refuses them."""
    try:
        return losses_of(comm, trial_of(comm, root, *features).finished)
    except HpcgnnError as error:
        return str(error)


def outcome(one: Feature, other: Feature, found: list[float] | str, alone: dict[str, list[float] | str]) -> str:
    """What came of a pair: `=`, `~`, or why not. Raises AssertionError if it trained wrongly."""
    if isinstance(found, str):
        return found
    same = [rest for exact, rest in ((one, other), (other, one)) if exact.is_equal_with(rest)]
    gaps = [difference(found, alone[rest.name]) for rest in same]
    if gaps and min(gaps) <= EXACT:
        return "="
    if gaps and key(one, other) not in CHANGES:
        raise AssertionError(f"{key(one, other)}: losses differ by {min(gaps):.1e} from the run with one of them")
    if not found[-1] < LEAST_FALL * found[0]:
        raise AssertionError(f"{key(one, other)}: the loss went from {found[0]:.3f} to {found[-1]:.3f}")
    return "~"


@dataclass
class Walk:
    """Trains pairs, and each feature alone once; collective."""

    comm: MPI.Comm
    shards: Path
    alone: dict[str, list[float] | str] = field(default_factory=dict)

    def outcome(self, one: Feature, other: Feature) -> str:
        """Train a pair; return its `outcome`, or what went wrong after WRONG."""
        for feature in (one, other):
            if feature.name not in self.alone:
                self.alone[feature.name] = trained(self.comm, self.shards, feature)
        try:
            return outcome(one, other, trained(self.comm, self.shards, one, other), self.alone)
        except AssertionError as error:
            return f"{WRONG}{error}"

    def actions(self, feature: Feature) -> dict[str, str]:
        """Try each action with a feature; the reason, "yes", "=" or "~", or what went wrong after WRONG."""
        found: dict[str, str] = {}
        try:
            found.update(tried(self.comm, self.shards, feature))
            expected = "~" if feature.name in CHANGED_BY_THE_CUT else "="
            assert found[RESUME] in ("", expected), f"{feature.name}: {RESUME} is {found[RESUME]}, expected {expected}"
        except AssertionError as error:
            return {**found, "": f"{WRONG}{feature.name}: {error}"}
        return found


PAGE = """# What goes with what

Of {total} pairs of settings for built-in models, {refused} are refused, each by a sentence with the reason; the \
others train. A graph may refuse more: `sage-max` and `rgcn` take no edge weights, `rgcn` needs relations, integers \
take none. `jobs/combinations.py` made this page and tries what it says. [Models of your own](own-model.md) have their \
own page.

| setting | not with | reason |
|---|---|---|
{pairs}
These go with every setting: {free}.

## What can be done with a run

| on three ranks | what was tried |
|---|---|
| `--dry-run`, `plan` | the bytes of an epoch are those of the training; a range for methods that choose widths; the \
plan of `bns` within {drawn} |
| `--resume` | half of the epochs on two ranks: losses are those of an unstopped run up to {exact}, or near it, the \
last within {near_loss} |
| `predict` | scores of the training's best evaluation; within {near_score} for 16 bits |
| `export` | logits of `predict` in plain PyTorch, or PyTorch Geometric (`--format pyg`), up to {near_logits} |
| `infer` | at 8 bits {equal} or more of the predictions of floats |

With `--device cuda` only the settings were tried. All of this works with a run of each setting above, of your own \
model, and on graphs with edge weights, relations, attributes, several labels and targets of a regression, but for:

| action | not with | reason |
|---|---|---|
{actions}"""
NEAR = "near: the cut rounds, draws or delays other rows"
Refusals = dict[str, dict[str, str]]     # by feature, then by action


def page(of_actions: Refusals) -> str:
    """The page, in Markdown: pairs of the features of settings, and what is refused of actions."""
    settled = [pair for pair in pairs() if not any(one.model or one.group == "graph" for one in pair)]
    refused = {pair: reason for pair in settled if (reason := refusal(*pair)) is not None}
    free = [one for one in dict.fromkeys(itertools.chain(*settled)) if not any(one in pair for pair in refused)]
    return PAGE.format(total=len(settled), refused=len(refused), pairs="".join(_rows_of_pairs(refused)),
                       free=names_of(free), actions="".join(_rows_of_actions(of_actions)), exact=EXACT,
                       near_loss=in_percent(NEAR_LOSS), near_score=NEAR_SCORE, near_logits=NEAR_LOGITS,
                       equal=in_percent(FEWEST_EQUAL), drawn=in_percent(DRAWN))


def _rows_of_pairs(refused: dict[tuple[Feature, Feature], str]) -> Iterator[str]:
    """A row for each reason: the features of one side, and those of the other, all pairs of which have it."""
    for reason in dict.fromkeys(refused.values()):
        found = [pair for pair, own in refused.items() if own == reason]
        sides = [list(dict.fromkeys(side)) for side in zip(*found, strict=True)]
        assert len(found) == len(sides[0]) * len(sides[1]), f"not all of {sides} are refused: {reason}"
        few, many = sorted((names_of(side) for side in sides), key=lambda names: names.count(","))
        yield _row([few, many, reason])


def _rows_of_actions(refused: Refusals) -> Iterator[str]:
    """A row for each action and reason, and one for runs that resume near an unstopped one."""
    for action in ACTIONS:
        reasons = {feature: refused[feature.name][action] for feature in FEATURES if action in refused[feature.name]}
        for reason in dict.fromkeys(reasons.values()):
            yield _row([f"`{action}`", names_of([one for one, own in reasons.items() if own == reason]), reason])
    yield _row([f"`{RESUME}`", names_of([one for one in FEATURES if one.name in CHANGED_BY_THE_CUT]), NEAR])


def names_of(features: Sequence[Feature]) -> str:
    """Names, with that of a family where all of it is there."""
    whole = {one.family for one in features if one.family} - {
        one.family for one in FEATURES if one not in features and one.family}
    return ", ".join(dict.fromkeys(one.family if one.family in whole else one.name for one in features))


def features_in(names: str) -> list[Feature]:
    """The features of a cell of `names_of`."""
    return [one for one in FEATURES if {one.name, one.family} & set(names.split(", "))]


def in_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def refused_actions(features: Sequence[Feature]) -> Refusals:
    """Reasons with which the program refuses to do something with a run of each feature, on this rank alone."""
    with tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder), 1)
        return {feature.name: {name: reason for name, reason in tried(MPI.COMM_SELF, Path(folder), feature, epochs=0)
                               if reason not in WORKS} for feature in features}


def tried(comm: MPI.Comm, root: Path, feature: Feature, **settings: Any) -> Iterator[tuple[str, str]]:
    """Collective: each action with the reason for which it is refused, else one of WORKS."""
    trial = trial_of(comm, root, feature, **settings)
    for name, act in ACTIONS.items():
        yield name, _done(act, trial)


def _done(act: Callable[[Trial], str | None], trial: Trial) -> str:
    try:
        return act(trial) or "yes"
    except HpcgnnError as error:
        return reason_in(str(error).removeprefix("rank 0: ").replace(str(trial.folder), "the run"))


def refusal(one: Feature, other: Feature) -> str | None:
    """The reason for which the settings refuse a pair, or None."""
    try:
        TrainConfig.of(**{**BASE, **one.settings, **other.settings})
    except ConfigError as error:
        return reason_in(str(error))
    return None


# What a sentence says of one run, which a reason for all runs leaves out.
OF_ONE_RUN = re.compile(r"^the run (?:holds an? [\w:-]+, and|was trained [^,]+, and|holds combinations:Own,) "
                        r"|^synthetic is a regression, and |, (?:and this|not combinations:Own).*"
                        r"|(?<=--quantize) [\w-]+")


def reason_in(sentence: str) -> str:
    """The reason in a sentence of the form `A can't be used with B: REASON; what to do`."""
    _, mark, rest = sentence.partition(": ")
    reason = OF_ONE_RUN.sub("", (rest if mark else sentence).partition("; ")[0])
    return re.sub(r" = \w+ has no effect on .*, only on", " has an effect only on", reason)


def main(comm: MPI.Comm) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="try all that this file lacks, and write their outcomes to it")
    parser.add_argument("--page", action="store_true", help="print the page of what the settings refuse")
    arguments = parser.parse_args()
    if arguments.page:
        print(page(refused_actions(FEATURES)), end="")
        return
    folder = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))
    if comm.rank == 0:
        write_all(folder, *sorted({max(1, comm.size - 1), comm.size}))
    comm.Barrier()
    walk = Walk(comm, folder)
    known = comm.bcast(json.loads(arguments.out.read_text()) if comm.rank == 0 and arguments.out.exists() else {})
    todo: list[tuple[Feature, ...]] = [*((feature,) for feature in FEATURES), *pairs()]
    for features in (features for features in todo if key(*features) not in known):
        known[key(*features)] = walk.outcome(*features) if len(features) > 1 else walk.actions(*features)
        if comm.rank == 0:
            arguments.out.write_text(json.dumps(known, indent=1))
    wrong = [text for found in known.values() for text in (found.values() if isinstance(found, dict) else [found])
             if text.startswith(WRONG)]
    if comm.rank == 0:
        print(*wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    run_parallel(main)
