"""Seconds of a weight update of LightGCN as its public code trains it, in plain PyTorch.

    python jobs/measurements/lightgcn.py gowalla.npz [20]

Each update propagates the whole graph, as LightGCN-PyTorch (github.com/gusye1234/LightGCN-PyTorch) does: three layers,
64 columns, `torch.sparse.mm`, the BPR loss of 2048 users with one item and one other item each, Adam at 0.001, decay
1e-4 on the table's rows of the batch. An epoch has one update for each 2048 pairs. Drawing the batches is not timed.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import torch
from torch.nn import functional

COLUMNS, LAYERS, BATCH, RATE, DECAY, NUM_WARM = 64, 3, 2048, 1e-3, 1e-4, 2


def propagation(train: np.ndarray, num_users: int, num_items: int) -> torch.Tensor:
    """D^-1/2 A D^-1/2 of users, then items, as the public code makes it: coalesced, 32-bit values."""
    number = num_users + num_items
    ends = np.concatenate([train + np.array([0, num_users]), train[:, ::-1] + np.array([num_users, 0])]).T
    degree = np.bincount(ends[0], minlength=number)
    value = 1 / np.sqrt(degree[ends[0]] * degree[ends[1]])
    return torch.sparse_coo_tensor(torch.from_numpy(ends.copy()), torch.from_numpy(value.astype(np.float32)),
                                   (number, number), check_invariants=True).coalesce()


def drawn_batch(train: np.ndarray, start: np.ndarray, num_items: int, rng: np.random.Generator) -> torch.Tensor:
    """Users, an item of each, and an item that is not theirs, (3, BATCH); `train` is sorted by user."""
    user = rng.choice(np.flatnonzero(np.diff(start)), BATCH)
    item = train[rng.integers(start[user], start[user + 1]), 1]
    other = rng.integers(0, num_items, BATCH)
    for place, one in enumerate(user):
        while other[place] in train[start[one]:start[one + 1], 1]:
            other[place] = rng.integers(0, num_items)
    return torch.from_numpy(np.stack([user, item, other]))


def main(archive: str, num_updates: int = 20) -> None:
    pairs = dict(np.load(archive))
    num_users, num_items = int(pairs["num_users"]), int(pairs["num_items"])
    train = pairs["train"][np.argsort(pairs["train"][:, 0], kind="stable")].astype(np.int64)
    start = np.searchsorted(train[:, 0], np.arange(num_users + 1))
    graph, rng = propagation(train, num_users, num_items), np.random.default_rng(0)
    torch.manual_seed(0)
    tables = [torch.nn.Parameter(torch.randn(number, COLUMNS) * 0.1) for number in (num_users, num_items)]
    optimizer = torch.optim.Adam(tables, lr=RATE)
    seconds, losses = [], []
    for number in range(NUM_WARM + num_updates):
        user, item, other = drawn_batch(train, start, num_items, rng)
        started = time.perf_counter()
        layers = [torch.cat(tables)]
        for _ in range(LAYERS):
            layers.append(torch.sparse.mm(graph, layers[-1]))
        users, items = torch.stack(layers, dim=1).mean(dim=1).split([num_users, num_items])
        asked, near, far = users[user], items[item], items[other]
        loss = functional.softplus((asked * far).sum(1) - (asked * near).sum(1)).mean()
        own = tables[0][user], tables[1][item], tables[1][other]
        loss = loss + DECAY * sum(rows.square().sum() for rows in own) / 2 / BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if number >= NUM_WARM:
            seconds.append(time.perf_counter() - started)
    per_epoch = -(-len(train) // BATCH)
    middle = statistics.median(seconds)
    print(json.dumps({"threads": torch.get_num_threads(), "updates": num_updates, "update_seconds": round(middle, 4),
                      "slowest": round(max(seconds), 4), "updates_per_epoch": per_epoch,
                      "epoch_seconds": round(middle * per_epoch, 1), "first_loss": losses[0], "last_loss": losses[-1]}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
