"""A plan as tables for a terminal (memory, bytes and seconds of every run, a recommendation) and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from hpcgnn.bench.result import print_to_text
from hpcgnn.planning.memory import KINDS
from hpcgnn.planning.planner import Plan
from hpcgnn.planning.predictions import Prediction
from hpcgnn.planning.stages import STAGES, total
from hpcgnn.run.output import size_text, time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_plan(plan: Plan) -> Figure:
    """Draw seconds of an epoch by stage and memory of the fullest rank by kind: one stacked bar per run on each side.
    """
    from matplotlib.figure import Figure

    runs, best = plan.predictions, plan.best
    figure = Figure(figsize=(12, 1.8 + 0.3 * max(len(runs), 3)), layout="constrained")
    seconds, memory = figure.subplots(1, 2, sharey=True)
    labels = [f"{one.num_parts} {one.messages.name}" + ("" if one.fits else " (too large)") for one in runs]
    _stack(seconds, labels, {stage: [0.0 if one.seconds is None else one.seconds.of_slowest[stage] for one in runs]
                             for stage in STAGES})
    fullest = [int(total(one.memory.values()).argmax()) for one in runs]
    _stack(memory, labels, {kind.replace("_", " "): [float(one.memory[kind][rank]) / 1e9
                                                     for one, rank in zip(runs, fullest, strict=True)]
                            for kind in KINDS})
    seconds.set(xlabel="seconds of an epoch, slowest rank", ylabel="ranks and method",
                ylim=(len(runs) - 0.5, -0.5))
    memory.set(xlabel="GB of the fullest rank")
    figure.suptitle(f"hpcgnn plan {plan.graph}" + ("" if best is None else
                                                   f": {best.num_parts} ranks with {best.messages.name}"))
    return figure


def _stack(axes, labels: list[str], amounts: dict[str, list[float]]) -> None:
    left = [0.0] * len(labels)
    for number, (name, widths) in enumerate(amounts.items()):
        axes.barh(range(len(labels)), widths, left=left, label=name, color=f"C{number}")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(labels)), labels)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)


MEMORY_NAMES = {"process": "process", "reading": "part as read", "features": "features", "structure": "structure",
                "weights": "weights", "activations": "activations", "gradients": "gradients", "halo_rows": "halo rows",
                "messages": "messages", "shared_rows": "shared", "method_state": "method"}
STAGE_NAMES = {"within": "within nodes", "between": "between nodes", "allreduce": "Allreduce", "step": "overhead"}


def plan_text(plan: Plan) -> str:
    sizes, size = plan.sizes, plan.size
    head: list[str] = [f"{plan.graph}" + (", scaled to" if plan.choices.larger else ":") + f" {sizes.nodes:,} nodes, "
            f"{sizes.edges:,} edges, {sizes.features} features, {sizes.classes} classes; {size.model} "
            f"{size.num_layers} x {size.hidden_dim} in {size.precision}, "
            + (f"{size.num_steps} steps in an epoch, " if size.num_steps > 1 else "")
            + f"{plan.cluster.network.ranks_per_node} ranks per node",
            "".join(f"{key} {text}; " for key, text in plan.cluster.about.items()).rstrip("; ")]
    tables: list[Table | str] = [*filter(None, head), _memory_table(plan.predictions), _bytes_table(plan.predictions)]
    timed = [one for one in plan.predictions if one.seconds is not None]
    if timed:
        tables.append(_seconds_table(timed))
    cuts = [f"cutting into {parts} parts and counting took {time_text(took)} here"
            for parts, took in plan.cut_seconds.items()]
    best, *others = plan.reasons
    return print_to_text(tables, [f"recommended: {best}", *others, *cuts, *plan.remarks])


def _table(title: str, columns: list[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("ranks", justify="right")
    table.add_column("method")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _fill(table: Table, predictions: list[Prediction], cells_of) -> Table:
    before = None
    for one in predictions:
        if before not in (None, one.num_parts):
            table.add_section()
        before = one.num_parts
        table.add_row(str(one.num_parts), one.messages.name, *cells_of(one))
    return table


def _memory_table(predictions: list[Prediction]) -> Table:
    table = _table("memory of the fullest rank", ["in all", *(MEMORY_NAMES[kind] for kind in KINDS), "fits its node"])

    def cells(one: Prediction) -> list[str]:
        fullest = int(total(one.memory.values()).argmax())
        known = "not known" if one.node_bytes is None else "yes" if one.fits else "NO"
        return [size_text(one.peak_bytes), *(size_text(float(one.memory[kind][fullest])) for kind in KINDS), known]

    return _fill(table, predictions, cells)


def _bytes_table(predictions: list[Prediction]) -> Table:
    table = _table("rows and bytes of an epoch; pairs of ranks that share rows", [
        "in all", "pairs", "halo rows / rows", "rows per pair, mean", "max", "within nodes", "per pair, mean", "max",
        "between nodes", "a pair, mean", "max", "sums of gradients", "an evaluation", "once"])

    def cells(one: Prediction) -> list[str]:
        rows = one.sent.rows
        ends = dict.fromkeys(size_text(messages + one.sent.sums) for messages in (one.least_bytes, one.sent.total))
        return [" to ".join(ends), f"{len(rows):,}", f"{one.loads.halo_ratio:.3f}",
                f"{rows.mean() if len(rows) else 0:,.0f}", f"{rows.max(initial=0):,.0f}",
                *map(size_text, (*one.sent.of(True), *one.sent.of(False), one.sent.sums, one.sent.evaluation,
                                 one.sent.setup))]

    return _fill(table, predictions, cells)


def _seconds_table(predictions: list[Prediction]) -> Table:
    table = _table("seconds of an epoch, by stage of the slowest rank; exchanges as far as sums don't hide them", [
        "epoch", *(STAGE_NAMES.get(stage, stage) for stage in STAGES), "mean / slowest", "exchanges in all",
        "by closed form"])

    def cells(one: Prediction) -> list[str]:
        assert one.seconds is not None
        stages = one.seconds.of_slowest
        work = total(one.seconds.by_stage[stage] for stage in ("products", "sums", "passes"))
        return [time_text(one.seconds.epoch), *(time_text(stages[stage]) for stage in STAGES),
                f"{work.mean() / work.max():.2f}", time_text(one.seconds.exchange), time_text(one.seconds.closed_form)]

    return _fill(table, predictions, cells)
