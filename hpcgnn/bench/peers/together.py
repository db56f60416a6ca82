"""Alone and Together are the processes of a peer's training: what each of them does, and what they tell each other."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from hpcgnn.bench.race.contestants import PeerSettings


class Alone:
    """Serves as the processes of a training, where there is one."""

    rank, size = 0, 1

    def seed(self, seed: int) -> int:
        """Return the seed of this process's draws, another one in each process of each training."""
        return seed * self.size + self.rank

    def share(self, ids: torch.Tensor) -> torch.Tensor:
        """Return this process's share of (n,) ids, in all processes as many."""
        return ids

    def fetch(self, rows: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Return the rows (len(nodes), dim) of some nodes, (n,) int64, of all rows (num_nodes, dim)."""
        return rows[nodes]

    def meet(self) -> None:
        """Wait for all processes, so that their clocks start together."""

    def average_gradients(self, model: nn.Module) -> None:
        """Make the gradients the means of all processes'."""

    def agree(self, value: float) -> float:
        """Return the most that any process has measured."""
        return value

    def ask_first(self, answer: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        """Return what the first process answers; the others wait for it."""
        return answer()

    def sent_bytes(self) -> int:
        """Return the bytes that all processes have sent in training."""
        return 0

    def leave(self) -> None:
        """Part with the others, at the end."""


class Together(Alone):
    """All processes, over gloo, each with the whole graph and all features; see `Alone`, whose methods are collective
    here, but for `seed`, `share` and `fetch`.

    Parameters
    ----------
    rank, size : int      which of how many this process is
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.sent_here = rank, size, 0

    def share(self, ids: torch.Tensor) -> torch.Tensor:
        """See `Alone`; where they can't be divided evenly, some are taken twice, as DistributedSampler does."""
        each = -(-len(ids) // self.size)
        return ids[torch.arange(self.rank, each * self.size, self.size) % len(ids)]

    def meet(self) -> None:
        dist.barrier()

    def average_gradients(self, model: nn.Module) -> None:
        """Average them as DistributedDataParallel does, but in one piece after the backward pass."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        self.sent_here += 2 * (self.size - 1) * flat.nbytes // self.size
        for gradient, mean in zip(gradients, (flat / self.size).split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def agree(self, value: float) -> float:
        most = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return most.item()

    def ask_first(self, answer: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        found = [answer() if self.rank == 0 else None]
        dist.broadcast_object_list(found)
        return found[0]

    def sent_bytes(self) -> int:
        total = torch.tensor([self.sent_here])
        dist.all_reduce(total)
        return int(total)

    def leave(self) -> None:
        dist.barrier()
        dist.destroy_process_group()


def join(settings: PeerSettings) -> Alone:
    """Collective: return the processes of a training, which meet by the file that the settings name."""
    if settings.processes == 1:
        return Alone()
    dist.init_process_group("gloo", f"file://{settings.store}", rank=settings.rank, world_size=settings.processes)
    return Together(settings.rank, settings.processes)
