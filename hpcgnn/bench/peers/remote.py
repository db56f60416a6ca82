"""`Remote` joins processes of a peer that each hold their own nodes' features; other rows are fetched and counted."""

from __future__ import annotations

import torch
import torch.distributed as dist

from hpcgnn.bench.peers.together import Together


class Remote(Together):
    """All processes, over gloo, each with a part of the features; see `Together`.

    `owner` is (num_nodes,) int64: the process with a node's features.
    """

    def __init__(self, owner: torch.Tensor, rank: int, size: int):
        super().__init__(rank, size)
        self.owner = owner

    def share(self, ids: torch.Tensor) -> torch.Tensor:
        """The own nodes among the ids, as many as the process with the fewest has."""
        owner = self.owner[ids]
        return ids[owner == self.rank][:int(torch.bincount(owner, minlength=self.size).min())]

    def fetch(self, rows: torch.Tensor, nodes: torch.Tensor) -> torch.Tensor:
        """Collective: the rows (n, dim) of nodes (n,) int64; other processes send theirs.

        Of `rows` only the own ones are read.
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
