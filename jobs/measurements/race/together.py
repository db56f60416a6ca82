"""The processes of a peer's training: what each of them does, and what they tell each other.

`Alone` is one process. In `Together`, several processes over gloo each hold all features. In `Remote`, each holds the
features of its own nodes; the rows of other nodes are fetched and counted.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from measurements.race.contestants import PeerSettings
from torch import nn


class Alone:
    """A training in one process."""

    rank, size = 0, 1

    def seed(self, seed: int) -> int:
        """Seed of this process's draws, different for each process of each training."""
        return seed * self.size + self.rank

    def share(self, ids: torch.Tensor) -> torch.Tensor:
        """This process's share of (n,) ids; all shares have the same size."""
        return ids

    def fetch(self, rows: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """The rows (len(nodes), dim) of nodes (n,) int64, from all rows (num_nodes, dim)."""
        return rows[nodes]

    def meet(self) -> None:
        """Wait for all processes, so that their clocks start together."""

    def average_gradients(self, model: nn.Module) -> None:
        """Average the gradients over all processes."""

    def agree(self, value: float) -> float:
        """The largest value among all processes."""
        return value

    def ask_first(self, answer: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
        """The first process's answer; all other processes wait for that answer."""
        return answer()

    def sent_bytes(self) -> int:
        """Bytes that all processes have sent in training."""
        return 0

    def leave(self) -> None:
        pass


class Together(Alone):
    """All processes, over gloo, each with the whole graph and all features.

    The methods of `Alone` are collective here, except `seed`, `share` and `fetch`.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size, self.sent_here = rank, size, 0

    def share(self, ids: torch.Tensor) -> torch.Tensor:
        # If the ids can't be divided evenly, some are taken twice, as in DistributedSampler.
        each = -(-len(ids) // self.size)
        return ids[torch.arange(self.rank, each * self.size, self.size) % len(ids)]

    def meet(self) -> None:
        dist.barrier()

    def average_gradients(self, model: nn.Module) -> None:
        # As DistributedDataParallel does, but in one piece after the backward pass.
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


class Remote(Together):
    """All processes, over gloo, each with a part of the features; see `Together`.

    `owner` is (num_nodes,) int64: the process with a node's features.
    """

    def __init__(self, owner: torch.Tensor, rank: int, size: int):
        super().__init__(rank, size)
        self.owner = owner

    def share(self, ids: torch.Tensor) -> torch.Tensor:
        """This process's own nodes among the ids, cut to the number of the process with the fewest."""
        owner = self.owner[ids]
        return ids[owner == self.rank][:int(torch.bincount(owner, minlength=self.size).min())]

    def fetch(self, rows: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Collective: the rows (n, dim) of nodes (n,) int64; other processes send theirs.

        Only the process's own rows in `rows` are read.
        """
        owner, out = self.owner[nodes], torch.empty(len(nodes), rows.shape[1])
        is_own = owner == self.rank
        out[is_own] = rows[nodes[is_own]]
        for shift in range(1, self.size):
            source, target = (self.rank + shift) % self.size, (self.rank - shift) % self.size
            wanted = (owner == source).nonzero()[:, 0]
            asked = self._swap(nodes[wanted].int(), source, target)
            out[wanted] = self._swap(rows[asked.long()], target, source, torch.empty(len(wanted), rows.shape[1]))
        return out

    def _swap(self, values: torch.Tensor, to: int, source: int, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is None:
            lengths = self._swap(torch.tensor([len(values)]), to, source, torch.empty(1, dtype=torch.int64))
            out = torch.empty(int(lengths), dtype=values.dtype)
        sending = dist.isend(values, to)
        dist.recv(out, source)
        sending.wait()
        self.sent_here += values.nbytes
        return out


def join(settings: PeerSettings) -> Alone:
    """Collective: the processes of a training, which meet by the file in the settings."""
    if settings.processes == 1:
        return Alone()
    dist.init_process_group("gloo", f"file://{settings.store}", rank=settings.rank, world_size=settings.processes)
    return Together(settings.rank, settings.processes)
