"""The picture of a plan: seconds of an epoch by stage, and memory of the fullest rank by kind. It needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcgnn.planning.memory import KINDS
from hpcgnn.planning.planner import Plan
from hpcgnn.planning.stages import STAGES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_plan(plan: Plan) -> Figure:
    """Draw one stacked bar a run on each side."""
    from matplotlib.figure import Figure

    runs = plan.predictions
    figure = Figure(figsize=(12, 1.8 + 0.3 * max(len(runs), 3)), layout="constrained")
    seconds, memory = figure.subplots(1, 2, sharey=True)
    labels = [f"{one.num_parts} {one.messages.name}" + ("" if one.fits else " (too large)") for one in runs]
    _stack(seconds, labels, {stage: [one.seconds.of_slowest[stage] for one in runs] for stage in STAGES})
    fullest = [int(sum(one.memory.values()).argmax()) for one in runs]
    _stack(memory, labels, {kind.replace("_", " "): [float(one.memory[kind][rank]) / 1e9
                                                     for one, rank in zip(runs, fullest, strict=True)]
                            for kind in KINDS})
    seconds.set(xlabel="seconds of an epoch, slowest rank", ylabel="ranks and method",
                ylim=(len(runs) - 0.5, -0.5))
    memory.set(xlabel="GB of the fullest rank")
    figure.suptitle(f"hpcgnn plan {plan.graph}: {plan.best.num_parts} ranks with {plan.best.messages.name}")
    return figure


def _stack(axes, labels: list[str], amounts: dict[str, list[float]]) -> None:
    left = [0.0] * len(labels)
    for number, (name, widths) in enumerate(amounts.items()):
        axes.barh(range(len(labels)), widths, left=left, label=name, color=f"C{number}")
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(labels)), labels)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False)
