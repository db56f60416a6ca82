"""A peer's processes: the rows that they fetch, the gradients that they average, and the bytes that they count."""

from __future__ import annotations

import multiprocessing

import torch
import torch.distributed as dist

from hpcgnn.bench.peers.together import Together

OWNER = torch.tensor([0, 1, 1, 0, 2, 1, 0, 2])
ROWS = torch.arange(24.0).view(8, 3)
ASKED = [[1, 0, 4, 5], [6, 2, 3], [7]]      # by each process
REMOTE = [3, 2, 0]                          # of these, rows of others


def work(rank: int, store: str, answers) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    together = Together(OWNER)
    own = torch.where((rank == OWNER)[:, None], ROWS, torch.nan)
    fetched = together.fetch(own, torch.tensor(ASKED[rank]))
    fetched_bytes = together.sent_bytes()
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([1.0, 10.0]) * (rank + 1)
    together.sum_gradients(torch.optim.SGD([weight], lr=1.0))
    answers.put((rank, fetched.tolist(), fetched_bytes, weight.grad.tolist(), together.agree(float(rank)),
                 together.sent_bytes()))
    dist.barrier()


def test_processes_fetch_the_rows_of_others_and_count_what_they_send(tmp_path):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=work, args=(rank, tmp_path / "store", answers)) for rank in range(3)]
    for process in processes:
        process.start()
    found = dict((rank, rest) for rank, *rest in (answers.get(timeout=100) for _ in processes))
    for process in processes:
        process.join()
    counts, ids, rows, gradients = 6 * 8, sum(REMOTE) * 4, sum(REMOTE) * 3 * 4, 3 * (4 * 8 // 3)
    for rank, (fetched, fetched_bytes, gradient, longest, sent) in found.items():
        assert fetched == ROWS[ASKED[rank]].tolist()
        assert fetched_bytes == counts + ids + rows
        assert gradient == [2.0, 20.0] and longest == 2.0
        assert sent == fetched_bytes + gradients
