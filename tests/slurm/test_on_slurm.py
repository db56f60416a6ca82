"""jobs/train.sbatch on a real Slurm of two nodes, preempted at seeded moments; tests/slurm/run.sh does it at length."""

import os
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.skipif("HPCGNN_SLURM" not in os.environ, reason="it takes minutes; HPCGNN_SLURM=1 runs it")
@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_preempted_job_ends_like_an_undisturbed_one(tmp_path, launcher):
    done = subprocess.run(["bash", FOLDER / "run.sh", "--repeat", "2", "--only", f"preempt-{launcher}",
                           "--out", tmp_path / "out"], capture_output=True, text=True, timeout=900)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
