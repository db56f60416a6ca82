"""The papers' tables and figures as lists of runs: `TABLES[PAPER][NAME]`. Only definitions; what a run is says
reproduce_runs.py, what a column says reproduce_columns.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from reproduce_runs import GRAPHS, Run, fidelity_run, paper_run

PLACE = ("graph", "P", "model", "method", "seeds")
SCORES = ("score", "± std", "less vanilla", "± its error")
SPEED = ("s an epoch", "times vanilla")
BYTES = ("payload MB", "parameters MB", "times fewer", "mean bits", "asynchronous")
PARTS = ("computing s", "quantizing s", "exchanging s", "blocked s")
WALL = ("offline s", "rest s", "assigning s", "training s")

SOURCES = ("reddit", "yelp", "ogbn-products", "amazonproducts")
SHALLOW, DEEP = ("sage", "gcn"), ("gcnii", "dagnn", "sgc")
MODELS = ("gcn", "sage", "gat", "gcnii", "dagnn", "sgc", "jknet")
OTHERS = ("vanilla", "sar", "pipegcn", "bns")
OURS = ("sylvie-paper", "sylvie", "joint")


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper.

    `figure` names the picture that reproduce_figures.py draws of it, empty for none; `remark` says what is not as in
    the paper.
    """

    title: str
    columns: tuple[str, ...]
    runs: tuple[Run, ...]
    remark: str = ""
    figure: str = ""


def grid(paper: str, sources: Iterable[str], ranks: Iterable[int], models: Iterable[str], methods: Iterable[str],
         seeds: int = 3, **changed: Any) -> tuple[Run, ...]:
    """Return the runs of all combinations that the paper has, without methods that a model can't be joined with."""
    runs = (paper_run(paper, *place, seeds, **changed) for place in product(sources, ranks, models, methods))
    return tuple(run for run in runs if run is not None and (run.method != "sar" or run.model in (*SHALLOW, "gat")))


def _fidelity() -> Table:
    graphs = (GRAPHS[name] for name in ("pubmed", "amazon_computers", "flickr_attr", "ogbn_arxiv_nofeat"))
    methods = ("vanilla", "pipegcn", "bns", "sancus", "random", "uniform-1", "uniform-2", "sylvie-paper", "sylvie",
               "adaqp", "joint")
    runs = tuple(fidelity_run(graph, 4, model, method, 5) for graph, model, method in product(graphs, MODELS, methods))
    columns = (*PLACE, *SCORES, *SPEED, *BYTES, *WALL, "epoch of 95 %", "s to 95 %", "state MB")
    return Table("Fidelity of every method", columns, runs,
                 "All methods of a row have the same settings, and nothing is tuned for one.")


def _codes() -> Table:
    methods = ("vanilla", *(f"{code}-{bits}" for bits in (1, 2, 4) for code in ("uniform", "rotated")))
    runs = tuple(fidelity_run(GRAPHS["amazon_computers"], 4, model, method, 5)
                 for model, method in product(("gcn", "gat", "gcnii"), methods))
    return Table("Rotated codes against affine ones, at one width", (*PLACE, *SCORES, *SPEED, *BYTES, "quantizing s"),
                 runs, "uniform-B has affine codes.")


def _sylvie() -> dict[str, Table]:
    def runs(*arguments: Any, **options: Any) -> tuple[Run, ...]:
        return grid("sylvie", *arguments, **options)

    widths = ("vanilla", "uniform-8", "uniform-4", "uniform-2", "uniform-1")
    of_vii = tuple(run for models, methods in ((SHALLOW, OTHERS), (DEEP, OTHERS), (("gat",), OTHERS))
                   for run in runs(SOURCES, (4,), models, (*methods, *OURS)))
    of_mode = ("sync", "async", "descent", "measured")
    return {
        "I": Table("Sampling against the full graph", (*PLACE, *SCORES),
                   runs(("ogbn-products",), (4,), ("sage",), ("vanilla", "bns-0.05", "bns", "bns-0.2", "bns-0.5")),
                   "hpcgnn samples boundary nodes (BNS-GCN), by share, in place of neighbors, by number."),
        "II": Table("Messages and gradients of weights", ("graph", "P", "setting", "payload MB", "gradients MB"), (
            *runs(("ogbn-products",), (4,), ("sage",), ("vanilla",), 1, layers=4, hidden=128),
            *runs(("ogbn-products",), (4,), ("gcn",), ("vanilla",), 1, layers=4, hidden=256),
            *runs(("ogbn-products",), (4,), ("gat",), ("vanilla",), 1, layers=3, hidden=256)),
            "Messages of both directions together; their bytes are not counted apart."),
        "IV": Table("Accuracy by width", (*PLACE, *SCORES, "mean bits"),
                    (*runs(("amazonproducts",), (4,), SHALLOW, widths), *runs(("reddit",), (4,), ("jknet",), widths))),
        "VII": Table("Throughput and accuracy", (*PLACE, *SCORES, *SPEED, *BYTES), of_vii),
        "VIII": Table("Seconds an epoch over servers", (*PLACE, *SPEED, *PARTS), (
            *runs(("ogbn-products",), (4,), ("sage",), (*OTHERS, *OURS)),
            *runs(("ogbn-papers100m",), (8,), ("sage",), (*OTHERS, *OURS)))),
        "IX": Table("Throughput on a single server", (*PLACE, "epochs a s", *SPEED),
                    runs(("yelp", "ogbn-products", "amazonproducts"), (2,), SHALLOW, (*OTHERS, *OURS))),
        "X": Table("Fixed widths, always synchronous", (*PLACE, *SCORES, *SPEED, "mean bits"),
                   runs(("yelp",), (2,), ("sage",), ("vanilla", *(f"sync-{b}" for b in (32, 8, 4, 2, 1)),
                                                     "sylvie-sync"))),
        "XI": Table("Modes at fixed widths", (*PLACE, *SCORES, *SPEED, "mean bits", "asynchronous"),
                    runs(("yelp",), (2,), ("sage",),
                         ("vanilla", *(f"{mode}-{bits}" for bits in (32, 1) for mode in of_mode))),
                    "descent is SYLVIE's own rule, measured is that of hpcgnn."),
        "XII": Table("Bytes and seconds", (*PLACE, "payload MB", "parameters MB", "times fewer", *SPEED, *PARTS),
                     runs(("reddit", "amazonproducts"), (4,), ("sage",), ("vanilla", *OURS))),
        "XIII": Table("Seconds an epoch against servers", (*PLACE, *SPEED, *PARTS),
                      runs(("ogbn-products",), (2, 4, 8), ("sage",), ("vanilla", *OURS))),
        "fig9": Table("Throughput by method", (*PLACE, *SPEED),
                      tuple(run for run in of_vii if run.model in ("sage", "gcnii", "gat")), figure="throughput"),
        "fig10": Table("Convergence", (*PLACE, "best validation", "epoch of 95 %", "s to 95 %"),
                       runs(("reddit",), (2,), ("sage", "gcnii", "jknet", "gat"), (*OTHERS, *OURS)), figure="curves"),
        "fig11": Table("Sensitivity to delta", (*PLACE, *SCORES, "epochs a s", "mean bits", "asynchronous"),
                       runs(("reddit",), (2,), ("sage",), ("vanilla", *(f"delta-{d}" for d in (1, 5, 10, 20, 50)))),
                       figure="sensitivity"),
        "fig12": Table("Wall-clock of a training", (*PLACE, *WALL),
                       runs(("reddit",), (4,), ("sage",), ("vanilla", *OURS)), figure="wall"),
        "fig13": Table("Parts of an epoch", (*PLACE, *SPEED, *PARTS),
                       runs(("reddit",), (2, 4), ("sage",), ("vanilla", *OURS)), figure="parts"),
        "fig14": Table("Throughput against ranks", (*PLACE, "epochs a s", *SPEED),
                       (*runs(("amazonproducts",), (1,), ("sage",), ("vanilla",)),
                        *runs(("amazonproducts",), (2, 4, 8), ("sage",), (*OTHERS, *OURS))), figure="ranks"),
    }


def _adaqp() -> dict[str, Table]:
    def runs(*arguments: Any, **options: Any) -> tuple[Run, ...]:
        return grid("adaqp", *arguments, **options)

    small, large = ("reddit", "yelp"), ("ogbn-products", "amazonproducts")
    methods = ("vanilla", "pipegcn", "sancus", "adaqp", "joint")
    of_4 = (*runs(small, (2, 4), ("gcn", "sage"), methods), *runs(large, (4, 8), ("gcn", "sage"), methods))
    ranks = "2M-1D, 2M-2D and 2M-4D are 2, 4 and 8 ranks."
    tuned = {"group": (50, 100, 500, 1000, 2000, 5000), "lambda": (0.0, 0.25, 0.5, 0.75, 1.0),
             "period": (10, 25, 50, 100)}
    return {
        "4": Table("Accuracy and throughput", (*PLACE, *SCORES, "epochs a s", *SPEED, *BYTES), of_4, ranks),
        "5": Table("Wall-clock, AmazonProducts", (*PLACE, *WALL),
                   tuple(run for run in of_4 if run.source == "amazonproducts"), ranks),
        "6": Table("Sampled widths against solved ones", (*PLACE, *SCORES, "epochs a s", *BYTES),
                   runs(("ogbn-products",), (4, 8), ("gcn", "sage"), ("vanilla", "random", "adaqp")), ranks),
        "7": Table("Throughput on the most parts", (*PLACE, "epochs a s", *SPEED),
                   runs(large, (8,), ("sage",), ("vanilla", "adaqp", "joint")), "6M-4D is 8 ranks."),
        "8": Table("Settings", ("graph", "model", "layers", "hidden", "norm", "lr", "dropout", "epochs", "group_size",
                                "lam"), runs(SOURCES, (4,), ("gcn",), ("adaqp",)), "Nothing is trained for it."),
        "9": Table("Wall-clock", (*PLACE, *WALL), of_4, ranks),
        "fig9": Table("Convergence", (*PLACE, "best validation", "epoch of 95 %", "s to 95 %"),
                      tuple(run for run in of_4 if run.source in ("reddit", "ogbn-products") and run.ranks == 4),
                      figure="curves"),
        "fig10": Table("Parts of an epoch, and of a training", (*PLACE, *SPEED, *PARTS, *WALL),
                       tuple(run for run in of_4 if run.model == "gcn" and run.ranks == 4
                             and run.method in ("vanilla", "adaqp", "joint")), figure="parts"),
        "fig11": Table("Sensitivity to the size of groups, lambda and the period",
                       (*PLACE, *SCORES, "epochs a s", "mean bits", "assigning s"),
                       runs(("ogbn-products",), (8,), ("gcn",),
                            ("vanilla", *(f"{name}-{value}" for name, values in tuned.items() for value in values))),
                       figure="sensitivity"),
    }


TABLES: dict[str, dict[str, Table]] = {
    "fidelity": {"all": _fidelity()}, "codes": {"all": _codes()}, "sylvie": _sylvie(), "adaqp": _adaqp(),
}
