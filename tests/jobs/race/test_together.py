"""A peer's processes: what each has, the rows that they fetch, the gradients that they average, and their bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fork_server import served
from parallel_run import clean_environment

sys.path.insert(0, str(Path(__file__).parents[3] / "jobs"))

from measurements.race.together import Alone, Remote, Together

OWNER = torch.tensor([0, 1, 1, 0, 2, 1, 0, 2])
ROWS = torch.arange(24.0).view(8, 3)
ASKED = [[1, 0, 4, 5], [6, 2, 3], [7]]      # by each process
REMOTE = [3, 2, 0]                          # of these, rows of others
PROGRAM = "import sys; from jobs.race.test_together import work; work(int(sys.argv[1]), sys.argv[2])"


def work(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    together = Remote(OWNER, rank, 3)
    own = torch.where((rank == OWNER)[:, None], ROWS, torch.nan)
    fetched = together.fetch(own, torch.tensor(ASKED[rank]))
    fetched_bytes = together.sent_bytes()
    model = torch.nn.Linear(2, 1)      # its bias has no gradient
    model.weight.grad = torch.tensor([[1.0, 10.0]]) * (rank + 1)
    together.average_gradients(model)
    print(json.dumps([fetched.tolist(), fetched_bytes, model.weight.grad.tolist(), together.agree(float(rank)),
                      together.sent_bytes(), together.share(torch.arange(8)).tolist(),
                      together.ask_first(lambda: (rank, 0.5))]))
    together.leave()


def test_processes_fetch_the_rows_of_others_and_count_what_they_send(tmp_path):
    processes = [subprocess.Popen(served(["-c", PROGRAM, rank, tmp_path / "store"]), stdout=subprocess.PIPE,
                                  cwd=Path(__file__).parents[2], env=clean_environment()) for rank in range(3)]
    found = [json.loads(process.communicate(timeout=100)[0]) for process in processes]
    counts, ids, rows, gradients = 6 * 8, sum(REMOTE) * 4, sum(REMOTE) * 3 * 4, 3 * (4 * 8 // 3)
    for rank, (fetched, fetched_bytes, gradient, longest, sent, share, answer) in enumerate(found):
        assert fetched == ROWS[ASKED[rank]].tolist()
        assert fetched_bytes == counts + ids + rows
        assert gradient == [[2.0, 20.0]] and longest == 2.0
        assert sent == fetched_bytes + gradients
        assert share == [[0, 3], [1, 2], [4, 7]][rank] and answer == [0, 0.5]


@pytest.mark.parametrize("count, size", [(12, 3), (7, 3), (2, 5), (1, 4)])
def test_all_ids_are_shared_out_and_everybody_has_as_many(count, size):
    ids = torch.arange(100, 100 + count)
    shares = [Together(rank, size).share(ids).tolist() for rank in range(size)]
    assert {len(share) for share in shares} == {-(-count // size)}
    assert {one for share in shares for one in share} == set(ids.tolist())
    if count % size == 0:
        assert sorted(one for share in shares for one in share) == ids.tolist()
    assert torch.equal(Alone().share(ids), ids)


def test_no_two_processes_of_any_trainings_draw_alike():
    seeds = [Together(rank, 3).seed(seed) for seed in range(4) for rank in range(3)]
    assert len(set(seeds)) == 12 and Alone().seed(7) == 7
