"""Kernels under the address and the undefined-behavior sanitizer: their tests, and forged input for decoders.

A case is a test file at one SIMD level, or a batch of decoder executions in a process that lives on until a fault ends
it. `jobs/sanitize.sh` makes the build.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVELS = ("portable", "avx2", "avx512")
# Those whose kernels read what others have written come first.
TEST_FILES = (
    "tests/lowbit/test_package_faults.py", "tests/ops/test_quantization.py", "tests/ops/test_two_tables.py",
    "tests/ops/test_bounds.py", "tests/ops/test_aggregation.py", "tests/lowbit/test_package.py",
    "tests/ops/test_nearest.py", "tests/ops/test_code_aggregation.py",
    "tests/ops/test_code_attention.py", "tests/ops/test_integer_rows.py", "tests/ops/test_tiles.py",
    "tests/ops/test_batch_tiles.py", "tests/ops/test_bit_gemm.py", "tests/ops/test_combination.py",
    "tests/ops/test_integer_layers.py", "tests/ops/test_row_bits.py",
    "tests/ops/test_fake_quantization.py", "tests/ops/test_pointwise.py", "tests/ops/test_maximum.py",
    "tests/ops/test_attention.py", "tests/ops/test_absent_rows.py", "tests/ops/test_dense.py",
    "tests/ops/test_draws.py", "tests/lowbit/test_combination.py", "tests/lowbit/test_package_formats.py",
    "tests/lowbit/test_bit_tensor.py", "tests/lowbit/test_bit_products.py", "tests/lowbit/inference", "tests/exchange",
    "tests/partition", "tests/bench/test_ceilings.py", "tests/graph")
NUM_BATCHES = 1500          # of fuzzing, among which the test files are spread
BATCH_EXECUTIONS = 1000     # about, of decoders in one batch; the worker says how many they were
STRIDE = NUM_BATCHES // (len(TEST_FILES) * len(LEVELS)) + 1
TEST_SECONDS, BATCH_SECONDS = 1200, 120


class Worker:
    """A process with sanitized kernels at one SIMD level, that takes the number of a batch and answers with a line."""

    def __init__(self, level: str, seed: int) -> None:
        self.process = subprocess.Popen(
            ["bash", "jobs/sanitize.sh", sys.executable, "-m", "campaigns.sanitize_worker", str(seed)], cwd=ROOT,
            env=_environment(level), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ask(self, number: int) -> tuple[int, str | None]:
        """(decoder executions, fault or None) of a batch."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{number}\n")
            self.process.stdin.flush()
        said = []
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            while ready.select(BATCH_SECONDS):
                line = self.process.stdout.readline()
                if line.startswith("done "):
                    return int(line.split()[1]), None
                if not line:
                    return 0, _fault_in("".join(said)) or f"the worker ended with {self.process.wait()}"
                said.append(line)
        return 0, f"no answer within {BATCH_SECONDS} s"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


class Sanitize:
    """See `campaigns.runner.Campaign`; case STRIDE * k is test file k // 3 at level k % 3, others are batches."""

    def __init__(self, seed: int) -> None:
        built = subprocess.run(["bash", "jobs/sanitize.sh"], cwd=ROOT)
        if built.returncode:
            raise SystemExit(built.returncode)
        self.seed, self.workers, self._tries = seed, {}, {}
        self.cases = range(NUM_BATCHES + len(TEST_FILES) * len(LEVELS))

    def try_case(self, number: int) -> str | None:
        place, rest = divmod(number, STRIDE)
        if rest == 0 and place < len(TEST_FILES) * len(LEVELS):
            return self._try_tests(number, TEST_FILES[place // len(LEVELS)], LEVELS[place % len(LEVELS)])
        level = LEVELS[number % len(LEVELS)]
        worker = self.workers.get(level) or self.workers.setdefault(level, Worker(level, self.seed))
        self._tries[number], fault = worker.ask(number)
        if fault is not None:
            self.workers.pop(level).end()
            fault = f"{level}: {fault}"
        return fault

    def tries_of(self, number: int) -> int:
        """Decoder executions, or tests, that a case was; 1 where it failed before it could say."""
        return max(self._tries.pop(number, 1), 1)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.end()

    def _try_tests(self, number: int, tests: str, level: str) -> str | None:
        done = subprocess.run(["timeout", "--kill-after=5", str(TEST_SECONDS), "bash", "jobs/sanitize.sh",
                               sys.executable, "-m", "pytest", "-q", "--capture=sys", "-p", "no:cacheprovider",
                               "-m", "parallel[1]", tests], cwd=ROOT, text=True, env=_environment(level),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        lines = done.stdout.splitlines()
        passed = [int(words[0]) for words in map(str.split, lines[-1:]) if words[1:2] and words[1].startswith("passed")]
        self._tries[number] = sum(passed)
        if done.returncode == 0:
            return None
        return f"{tests} at {level}: " + (_fault_in(done.stdout) or " | ".join(lines[-5:]))


def _environment(level: str) -> dict[str, str]:
    return {**os.environ, "HPCGNN_SIMD": level, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive",
            "HPCGNN_SANITIZED": "1"}


def _fault_in(text: str) -> str | None:
    """The sanitizer's first line with the two frames below it, on one line; None where it said nothing."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if "runtime error:" in line or "ERROR: AddressSanitizer" in line:
            frames = [one.strip() for one in lines[number + 1:] if one.strip().startswith("#")][:3]
            return " ".join([line.strip(), *frames])
    return lines[-1] if lines else None


def open_campaign(scratch: Path, seed: int, mpi: str) -> Sanitize:
    """The campaign of a seed; the kernels are built first where they have changed."""
    return Sanitize(seed)
