"""A plan as tables for a terminal (memory, bytes and seconds of every run, a recommendation) and as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from hpcgnn.planning.memory import KINDS
from hpcgnn.planning.planner import Plan, layout_remarks
from hpcgnn.planning.predictions import Prediction
from hpcgnn.planning.stages import STAGES, total
from hpcgnn.run.output import fitted_text, size_text, time_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_plan(plan: Plan) -> Figure:
    """Draw seconds of an epoch by stage and memory of the fullest rank by kind: one stacked bar per run on each side.

    Without seconds, memory alone is drawn.
    """
    from matplotlib.figure import Figure

    runs, best = plan.predictions, plan.best
    is_timed = any(one.seconds is not None for one in runs)
    figure = Figure(figsize=(12 if is_timed else 8, 2.2 + 0.3 * max(len(runs), 3)), layout="constrained")
    # Legends have cells of their own below the axes: they can cover neither axes nor labels.
    axes, legends = figure.subplots(2, 1 + is_timed, squeeze=False, gridspec_kw={
        "height_ratios": [0.6 + 0.3 * max(len(runs), 3), 0.9]})
    labels = [f"{one.num_parts} {one.messages.name}" + ("" if one.fits else " (too large)") for one in runs]
    fullest = [int(total(one.memory.values()).argmax()) for one in runs]
    _stack(axes[-1], legends[-1], labels, {MEMORY_NAMES[kind]: [float(one.memory[kind][rank]) / 1e9
                                                               for one, rank in zip(runs, fullest, strict=True)]
                                           for kind in KINDS})
    axes[-1].set_xlabel("GB of the fullest rank")
    if is_timed:
        _stack(axes[0], legends[0], labels,
               {STAGE_NAMES.get(stage, stage): [0.0 if one.seconds is None else one.seconds.of_slowest[stage]
                                                for one in runs] for stage in STAGES})
        axes[0].set_xlabel("seconds of an epoch, slowest rank")
        axes[1].set_yticklabels([])
    axes[0].set_ylabel("ranks and method")
    figure.suptitle(f"hpcgnn plan {plan.graph}" + ("" if best is None else
                                                   f": {best.num_parts} ranks with {best.messages.name}"))
    return figure


def _stack(axes, below, labels: list[str], amounts: dict[str, list[float]]) -> None:
    """Draw stacked bars, and their legend in the axes below; what is 0 in all runs is left out."""
    left = [0.0] * len(labels)
    for number, (name, widths) in enumerate(amounts.items()):
        if any(widths):
            axes.barh(range(len(labels)), widths, left=left, label=name, color=COLORS[number])
            left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    below.axis("off")
    below.legend(*axes.get_legend_handles_labels(), loc="upper center", ncols=4, frameon=False)


# One color per kind of memory, of which there are more than stages.
COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b79a20", "#e45756", "#72b7b2", "#b279a2", "#ff9da6", "#9d755d", "#2f4b7c",
          "#88d27a")
MEMORY_NAMES = {"process": "process", "reading": "part as read", "features": "features", "structure": "structure",
                "weights": "weights", "activations": "activations", "gradients": "gradients", "halo_rows": "halo rows",
                "messages": "messages", "shared_rows": "shared", "method_state": "method"}
STAGE_NAMES = {"within": "within nodes", "between": "between nodes", "allreduce": "Allreduce", "step": "overhead"}


def plan_text(plan: Plan) -> str:
    sizes, size, per_node = plan.sizes, plan.size, plan.cluster.network.ranks_per_node
    head: list[str] = [f"{plan.graph}" + (", scaled to" if plan.choices.larger else ":") + f" {sizes.nodes:,} nodes, "
            f"{sizes.edges:,} edges, {sizes.features} features, {sizes.classes} classes; {size.model} "
            f"{size.num_layers} x {size.hidden_dim} in {size.precision}, "
            + (f"{size.num_steps} steps in an epoch, " if size.num_steps > 1 else "")
            + f"{per_node} {'rank' if per_node == 1 else 'ranks'} per node",
            "".join(f"{key} {text}; " for key, text in plan.cluster.about.items()).rstrip("; "),
            *(f"{key} assumed: {text}" for key, text in plan.cluster.assumed.items())]
    tables: list[Table | str] = [*filter(None, head), _memory_table(plan.predictions)]
    if any(one.limited is not None for one in plan.predictions):
        tables.append(_limit_table(plan.predictions, str(plan.choices.settings["memory"])))
    tables += [_bytes_table(plan.predictions), _pairs_table(plan.predictions)]
    timed = [one for one in plan.predictions if one.seconds is not None]
    if timed:
        tables.append(_seconds_table(timed))
    cuts = [f"cutting into {parts} parts and counting took {time_text(took)} here"
            for parts, took in plan.cut_seconds.items()]
    best, *others = plan.reasons
    return fitted_text(tables, [f"recommended: {best}", *others, *layout_remarks(plan), *cuts, *plan.remarks])


ZEROS = ("0", "0 B", "0 s")


def _fill(title: str, columns: list[str], predictions: list[Prediction], cells_of) -> Table:
    """A table of one row per run; columns that are 0 in all runs are left out."""
    rows = [cells_of(one) for one in predictions]
    shown = [place for place in range(len(columns)) if any(cells[place] not in ZEROS for cells in rows)]
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", collapse_padding=True, pad_edge=False)
    table.add_column("ranks", justify="right")
    table.add_column("method")
    for place in shown:
        table.add_column(columns[place], justify="right", no_wrap=True)
    before = None
    for one, cells in zip(predictions, rows, strict=True):
        if before not in (None, one.num_parts):
            table.add_section()
        before = one.num_parts
        table.add_row(str(one.num_parts), one.messages.name, *(cells[place] for place in shown))
    return table


def _memory_table(predictions: list[Prediction]) -> Table:
    columns = ["in all", "fits its node", *(MEMORY_NAMES[kind] for kind in KINDS)]

    def cells(one: Prediction) -> list[str]:
        fullest = int(total(one.memory.values()).argmax())
        known = "not known" if one.node_bytes is None else "yes" if one.fits_whole else "NO"
        return [size_text(one.peak_bytes), known, *(size_text(float(one.memory[kind][fullest])) for kind in KINDS)]

    without = ", without a limit" if predictions[0].limited is not None else ""
    return _fill(f"memory of the fullest rank{without}", columns, predictions, cells)


def _limit_table(predictions: list[Prediction], memory: str) -> Table:
    columns = ["fits", "a rank may use", "can't leave memory", "tables in memory", "on the disk", "written", "read",
               "seconds of the disk"]

    def cells(one: Prediction) -> list[str]:
        limited = one.limited
        assert limited is not None
        most = (limited.limit, limited.fixed, limited.in_memory, limited.on_disk)
        return ["yes" if one.fits else "NO", *(size_text(float(amount.max())) for amount in most),
                *(size_text(float(amount.sum())) for amount in (limited.written, limited.read)),
                "not known" if limited.seconds is None else time_text(limited.seconds)]

    return _fill(f"within memory = {memory}: the most of a rank; what all ranks write and read in an epoch", columns,
                 predictions, cells)


def _bytes_table(predictions: list[Prediction]) -> Table:
    columns = ["in all", "within nodes", "between nodes", "sums of gradients", "an evaluation", "once"]

    def cells(one: Prediction) -> list[str]:
        ends = dict.fromkeys(size_text(messages + one.sent.sums) for messages in (one.least_bytes, one.sent.total))
        return [" to ".join(ends), *map(size_text, (one.sent.of(True)[0], one.sent.of(False)[0], one.sent.sums,
                                                    one.sent.evaluation, one.sent.setup))]

    return _fill("bytes of an epoch, all ranks", columns, predictions, cells)


def _pairs_table(predictions: list[Prediction]) -> Table:
    columns = ["pairs", "halo rows / rows", "rows, mean", "max", "bytes within nodes, mean", "max",
               "between nodes, mean", "max"]

    def cells(one: Prediction) -> list[str]:
        rows = one.sent.rows
        return [f"{len(rows):,}", f"{one.loads.halo_ratio:.3f}", f"{rows.mean() if len(rows) else 0:,.0f}",
                f"{rows.max(initial=0):,.0f}", *map(size_text, (*one.sent.of(True)[1:], *one.sent.of(False)[1:]))]

    return _fill("pairs of ranks that share rows, in an epoch", columns, predictions, cells)


def _seconds_table(predictions: list[Prediction]) -> Table:
    columns = ["epoch", *(STAGE_NAMES.get(stage, stage) for stage in STAGES), "mean / slowest", "exchanges in all",
               "by closed form"]

    def cells(one: Prediction) -> list[str]:
        assert one.seconds is not None
        stages = one.seconds.of_slowest
        work = total(one.seconds.by_stage[stage] for stage in ("products", "sums", "passes"))
        return [time_text(one.seconds.epoch), *(time_text(stages[stage]) for stage in STAGES),
                f"{work.mean() / work.max():.2f}", time_text(one.seconds.exchange), time_text(one.seconds.closed_form)]

    return _fill("seconds of an epoch, by stage of the slowest rank; of exchanges, what sums don't hide", columns,
                 predictions, cells)
