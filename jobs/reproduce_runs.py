"""What the tables of jobs/reproduce.sh are made of: graphs at hand, settings of models and of methods, one run.

Only definitions, and the command that each becomes. Nothing here runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from hpcgnn.config import preset_settings
from hpcgnn.errors import ConfigError
from hpcgnn.registry import read_registry

Settings = dict[str, Any]

registry = cache(read_registry)     # hundreds of runs look into it


@dataclass(frozen=True)
class Graph:
    """One of the .npz files of HPCGNN_DATASETS, and how it is trained on.

    `normalization` is what `hpcgnn preprocess --normalize-features` does, chosen on the validation scores of vanilla
    with the fidelity table's gcn and sage on one rank; `evidence` has those scores.
    """

    name: str
    epochs: int
    normalization: str
    evidence: str
    eval_every: int = 2
    weight_decay: float = 5e-4
    score: str = "auto"


GRAPHS = {graph.name: graph for graph in (
    Graph("pubmed", 100, "row",
          "validation of gcn, sage, 2 seeds of 100 epochs: none 78.1, 78.2; row 78.2, 79.3; standard 76.2, 75.5"),
    Graph("amazon_computers", 200, "standard",
          "validation of gcn, sage, 2 seeds of 200 epochs: none 90.1, 90.7; row 89.5, 90.6; standard 91.7, 92.3"),
    Graph("flickr_attr", 200, "standard",
          "validation of gcn, 2 seeds of 60 epochs: row 20.0; standard 51.7; of sage standard 90.2; none is not tried"),
    Graph("tolokers", 200, "standard",
          "validation of gcn, sage, 2 seeds of 60 epochs: none 71.2, 76.4; row 70.4, 76.4; standard 72.8, 79.3",
          score="roc_auc"),
    Graph("ogbn_arxiv_nofeat", 100, "none", "preprocess makes its features from the graph, and standardizes them", 5,
          weight_decay=0.0),
)}

# Which graph at hand stands for one of the papers', and what the two share.
STAND_INS = {
    "reddit": ("amazon_computers", "dense, one label a node"),
    "yelp": ("flickr_attr", "users of a social network with attributes, low homophily; one label instead of several"),
    "ogbn-products": ("ogbn_arxiv_nofeat", "the largest at hand, power law; features made from the graph"),
    "amazonproducts": ("tolokers", "the densest at hand, 88 edges a node; two classes instead of 107 labels, ROC AUC"),
    "ogbn-papers100m": ("ogbn_arxiv_nofeat", "no graph of that size is at hand, so only the ranks differ"),
}

# Each method by its name in the tables. "fixed-B" and the modes are SYLVIE's Tables X and XI.
METHODS: dict[str, Settings] = {
    "vanilla": {"method": "vanilla"},
    "sar": {"method": "vanilla", "rematerialize": True},
    "pipegcn": {"method": "pipegcn"},
    "bns": {"method": "bns", "share": 0.1},
    "sancus": {"method": "sancus"},
    "random": {"method": "random"},
    **{f"uniform-{bits}": {"method": "uniform", "bits": bits, "code": "affine"} for bits in (1, 2, 4, 8)},
    **{f"rotated-{bits}": {"method": "uniform", "bits": bits, "code": "rotated"} for bits in (1, 2, 4)},
    "sylvie-paper": {"method": "sylvie-paper"},
    "sylvie": {"method": "sylvie"},
    "adaqp": {"method": "adaqp"},
    "joint": {"method": "joint"},
    **{f"bns-{share}": {"method": "bns", "share": share} for share in (0.05, 0.2, 0.5)},
    "sylvie-sync": {"method": "sylvie", "asynchrony": "never"},
    **{f"sync-{bits}": {"method": "sylvie", "asynchrony": "never", "widths": str(bits)} for bits in (1, 2, 4, 8, 32)},
    **{f"async-{bits}": {"method": "sylvie", "asynchrony": "always", "widths": str(bits)} for bits in (1, 32)},
    **{f"descent-{bits}": {"method": "sylvie", "asynchrony": "descent", "widths": str(bits)} for bits in (1, 32)},
    **{f"measured-{bits}": {"method": "sylvie", "asynchrony": "measured", "widths": str(bits)} for bits in (1, 32)},
    **{f"delta-{window}": {"method": "sylvie-paper", "descent_window": window} for window in (1, 5, 10, 20, 50)},
    **{f"group-{size}": {"method": "adaqp", "group_size": size} for size in (50, 100, 500, 1000, 2000, 5000)},
    **{f"lambda-{lam}": {"method": "adaqp", "lam": lam} for lam in (0.0, 0.25, 0.5, 0.75, 1.0)},
    **{f"period-{period}": {"method": "adaqp", "period": period} for period in (10, 25, 50, 100)},
}

# Layers, widths and rates of the fidelity table follow the models' papers (data/registry.toml, presets "deep").
FIDELITY: dict[str, Settings] = {
    "gcn": {"layers": 3, "hidden": 64, "lr": 0.01},
    "sage": {"layers": 3, "hidden": 64, "lr": 0.01},
    "gat": {"layers": 2, "hidden": 64, "heads": 4, "norm": "none", "lr": 0.005},
    "gcnii": {"layers": 8, "hidden": 64, "theta": 0.5, "norm": "none", "lr": 0.01},
    "dagnn": {"layers": 8, "hidden": 64, "norm": "none", "lr": 0.01},
    # Without dropout SGC's rows are constant, and no method sends anything.
    "sgc": {"layers": 8, "dropout": 0.1, "lr": 0.2, "weight_decay": 1e-5},
    "jknet": {"layers": 8, "hidden": 32, "norm": "none", "lr": 0.005},
}
# SYLVIE gives no learning rates; these are the ones above.
RATES = {model: settings["lr"] for model, settings in FIDELITY.items()}
LEAST_DROPOUT_OF_SGC = 0.1
BASE: Settings = {"norm": "layer", "weight_decay": 0.0, "weight_decay_layers": "all"}


@dataclass(frozen=True)
class Run:
    """One `hpcgnn train`: `source` is the paper's dataset, `method` a key of METHODS, `setting` names model and paper.

    Runs that are equal but for their table share a folder, and are trained once.
    """

    source: str
    graph: Graph
    ranks: int
    model: str
    setting: str
    method: str
    settings: tuple[tuple[str, Any], ...]
    seeds: int

    @property
    def folder(self) -> str:
        """Return where the run lies below the folder of all."""
        return f"{self.graph.name}-p{self.ranks}/{self.setting}/{self.method}"

    @property
    def shards(self) -> str:
        """Return the name of its shards."""
        return f"{self.graph.name}-{self.graph.normalization}-p{self.ranks}"

    @property
    def reference(self) -> Run:
        """Return the run of vanilla that it is compared with."""
        return replace(self, method="vanilla")

    @property
    def epochs(self) -> int:
        """Return how many epochs it has."""
        return dict(self.settings)["epochs"]

    def of_method(self) -> Settings:
        """Return all settings, those of the method among them."""
        return {**self._of_paper(), **METHODS[self.method]}

    def _of_paper(self) -> Settings:
        """Return the settings without those of methods that this method does not have."""
        own = dict(self.settings)
        return own if METHODS[self.method]["method"] in ("adaqp", "joint") else {
            name: value for name, value in own.items() if name != "group_size"}


def fidelity_run(graph: Graph, ranks: int, model: str, method: str, seeds: int) -> Run:
    """Return a run of the fidelity table."""
    settings = {"model": model, **BASE, "score": graph.score, "dropout": 0.5, "weight_decay": graph.weight_decay,
                "epochs": graph.epochs, "eval_every": graph.eval_every, **FIDELITY[model]}
    if graph.name == "ogbn_arxiv_nofeat":
        settings |= {"weight_decay": 0.0, **({"hidden": 256} if model == "sage" else {})}
    if graph.name == "amazon_computers" and model in ("gcn", "sgc"):
        seeds = 2 * seeds
    return Run(graph.name, graph, ranks, model, f"fidelity-{model}", method, tuple(settings.items()), seeds)


def paper_run(paper: str, source: str, ranks: int, model: str, method: str, seeds: int, **changed: Any) -> Run | None:
    """Return a run with the layers, widths and dropout of a paper's preset; None where the paper has no such model.

    Epochs are those of the stand-in, which has fewer nodes to learn from than the paper's graph.
    """
    graph = GRAPHS[STAND_INS[source][0]]
    # The paper trains papers100M as it does ogbn-products.
    of_source = {"ogbn-papers100m": "ogbn-products"}.get(source, source)
    table = registry()["presets"][paper][of_source]
    if paper == "sylvie" and model not in table:
        return None
    try:
        preset = preset_settings(of_source, model, paper, registry(), "adaqp")
    except ConfigError as error:
        raise ConfigError(f"data/registry.toml has no settings of {paper} for {source}: {error}") from error
    settings = {"model": model, **BASE, "score": graph.score, "lr": RATES[model], **preset, "epochs": graph.epochs,
                "eval_every": graph.eval_every, **changed}
    if model == "sgc":
        settings["dropout"] = max(settings["dropout"], LEAST_DROPOUT_OF_SGC)
    shape = "-".join(f"{name}{value}" for name, value in changed.items())
    return Run(source, graph, ranks, model, f"{paper}-{shape + '-' if shape else ''}{model}", method,
               tuple(settings.items()), seeds)
