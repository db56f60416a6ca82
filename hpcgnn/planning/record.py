"""A plan as plain data for plan.json: numbers in bytes and seconds, by the names of the attributes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from hpcgnn.planning.planner import Plan
from hpcgnn.planning.predictions import Prediction

FORMAT = 1


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return everything of a plan that JSON can hold."""
    choices = {name: str(value) if name == "root" and value else value
               for name, value in asdict(plan.choices).items()}
    return {"format": FORMAT, "graph": plan.graph, "sizes": asdict(plan.sizes), "model": asdict(plan.size),
            "cluster": {"file": plan.cluster.name, **plan.cluster.about}, "choices": choices,
            "recommended": {"ranks": plan.best.num_parts, "method": plan.best.messages.name,
                            "reasons": plan.reasons},
            "remarks": plan.remarks, "cut_seconds": {str(parts): took for parts, took in plan.cut_seconds.items()},
            "predictions": [_prediction_record(one) for one in plan.predictions]}


def _prediction_record(one: Prediction) -> dict[str, Any]:
    near, far = (one.sent.of(is_near) for is_near in (True, False))
    names = ("bytes", "mean_bytes_a_pair", "max_bytes_a_pair")
    return {
        "ranks": one.num_parts, "method": one.messages.name, "source": one.source, "fits": one.fits,
        "epoch_seconds": one.seconds.epoch, "seconds_of_slowest_rank": one.seconds.of_slowest,
        "mean_seconds": {stage: float(np.mean(seconds)) for stage, seconds in one.seconds.by_stage.items()},
        "exchange_seconds_simulated": one.seconds.exchange, "exchange_seconds_closed_form": one.seconds.closed_form,
        "sent_bytes_per_epoch": one.sent.total, "is_exact": one.messages.is_exact and one.source in ("cut", "shards"),
        "within_nodes": dict(zip(names, near, strict=True)), "between_nodes": dict(zip(names, far, strict=True)),
        "rows_a_pair": {"mean": float(one.sent.rows.mean()) if len(one.sent.rows) else 0.0,
                        "max": float(one.sent.rows.max(initial=0))},
        "pairs": len(one.loads.pairs.rows), "halo_rows": int(one.loads.num_halo.sum()),
        "evaluation_bytes": one.sent.evaluation, "setup_bytes": one.sent.setup,
        "peak_bytes": one.peak_bytes,
        "memory_of_fullest_rank": {kind: float(amount[int(sum(one.memory.values()).argmax())])
                                   for kind, amount in one.memory.items()}}
