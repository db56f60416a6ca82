"""Output of `hpcgnn train --dry-run`; `hpcgnn.training.forecast` computes it."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from hpcgnn.run.tables import wrapped

if TYPE_CHECKING:
    from hpcgnn.training.forecast import Forecast

NAMES = {"features": "input rows, halo rows too", "structure": "ids, edges and matrices",
         "weights": "weights, gradients and optimizer", "activations": "kept for the backward pass",
         "halo_rows": "halo rows of one layer", "messages": "messages of one exchange",
         "method_state": "kept by the method between epochs", "process": "in all, measured at its peak"}
VALUES_AT = 19      # column at which the values of bytes and time begin
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
SECONDS_A_MINUTE, SECONDS_AN_HOUR = 60, 3600


def forecast_lines(found: Forecast) -> list[str]:
    ranks = len(found.memory)
    lines = [f"memory of a rank: the largest of {ranks}, and their mean"]
    for own in fields(found.memory[0]):
        sizes = [getattr(memory, own.name) for memory in found.memory]
        lines.append(f"  {NAMES[own.name]:34} {in_bytes(max(sizes)):>9} {in_bytes(sum(sizes) / ranks):>9}")
    if found.limited is not None:
        lines += ["tables within the limit of memory",
                  f"  in memory        {in_bytes(found.limited.in_memory)} on the fullest rank",
                  f"  on the disk      {in_bytes(found.limited.on_disk)} of the rank that has most there",
                  f"  besides          {in_bytes(found.limited.fixed)} of a rank can't leave memory",
                  f"  an epoch         writes {in_bytes(found.limited.written)} to the disk and reads "
                  f"{in_bytes(found.limited.read)}, all ranks",
                  f"  takes            {in_time(found.limited.seconds)} of it, at the "
                  f"{in_bytes(found.limited.write_rate)} that a machine's disk writes in a second, and the "
                  f"{in_bytes(found.limited.read_rate)} that it reads"]
    lines += ["bytes sent by all ranks", *_sent(found), "time on this machine, with these ranks",
              f"  an epoch         {in_time(found.epoch_seconds)}, the median of {found.sampled_epochs - 1} after the "
              "first",
              f"  an evaluation    {in_time(found.evaluation_seconds)}",
              *([f"  a choice of widths {in_time(found.assign_seconds)}, {found.num_assignments} of them"]
                if found.num_assignments else []),
              f"  in all           {in_time(found.total_seconds)} for {found.num_epochs} epochs and "
              f"{found.num_evaluations} evaluations, without start-up and checkpoints",
              "nothing was written"]
    return [wrapped(line, indent=VALUES_AT) for line in lines]


def _sent(found: Forecast) -> list[str]:
    epoch = in_bytes(found.most_bytes)
    if found.least_bytes != found.most_bytes:
        epoch = f"{in_bytes(found.least_bytes)} to {epoch}, as the method decides"
    sums = f", and {in_bytes(found.sum_bytes)} of sums" if found.sum_bytes else ""
    return [f"  an epoch         {epoch}{' of messages' * bool(sums)}{sums}",
            f"  an evaluation    {in_bytes(found.evaluation_bytes)}",
            f"  once             {in_bytes(found.setup_bytes)} of input rows"]


def in_bytes(number: float) -> str:
    """412 MB, 3.21 GB."""
    for size, unit in UNITS:
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def in_time(seconds: float) -> str:
    """3.2 ms, 12.1 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    whole = round(seconds)
    if whole < SECONDS_A_MINUTE:
        return f"{seconds:.3g} s"
    if whole < SECONDS_AN_HOUR:
        return f"{whole // SECONDS_A_MINUTE} min {whole % SECONDS_A_MINUTE} s"
    return f"{whole // SECONDS_AN_HOUR} h {whole % SECONDS_AN_HOUR // SECONDS_A_MINUTE} min"
