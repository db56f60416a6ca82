"""Together joins the processes of a peer over gloo: rows are fetched, gradients averaged, and bytes counted."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcgnn.bench.peers.score_loop import Alone


class Together(Alone):
    """All processes, over gloo; see `Alone`.

    Parameters
    ----------
    owner : (num_nodes,) the process that has a node's features
    """

    def __init__(self, owner: torch.Tensor):
        self.owner, self.rank, self.size, self.sent_here = owner, dist.get_rank(), dist.get_world_size(), 0

    def agree(self, seconds: float) -> float:
        """See `Alone`."""
        longest = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return longest.item()

    def sent_bytes(self) -> int:
        """See `Alone`."""
        total = torch.tensor([self.sent_here])
        dist.all_reduce(total)
        return int(total)

    def fetch(self, rows: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Return the rows of some nodes, those of other processes as these send them.

        Parameters
        ----------
        rows : (num_nodes, dim)      of which only the own ones are read
        nodes : (n,) int64
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
        """Send values to one process and return those of another; without `out` their number goes first."""
        if out is None:
            lengths = self._swap(torch.tensor([len(values)]), to, source, torch.empty(1, dtype=torch.int64))
            out = torch.empty(int(lengths), dtype=values.dtype)
        sending = dist.isend(values, to)
        dist.recv(out, source)
        sending.wait()
        self.sent_here += values.nbytes
        return out

    def sum_gradients(self, optimizer: torch.optim.Optimizer, *_) -> None:
        """Make the gradients the means of all processes', as DistributedDataParallel does."""
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        self.sent_here += 2 * (self.size - 1) * flat.nbytes // self.size
        for gradient, mean in zip(gradients, (flat / self.size).split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))
