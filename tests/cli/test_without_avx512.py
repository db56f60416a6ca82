"""Every command on a processor that has AVX2 and no more: variables hold the kernels, torch and its libraries to it."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import SIMD_FLAGS, processor_flags
from fork_server import served
from inference_setup import archive_of
from parallel_run import clean_environment
from training_setup import easy_graph, losses, random_owner, write

from hpcgnn.lowbit.inference.predictions import read_predictions
from hpcgnn.ops.simd import best_level

AVX2 = {"HPCGNN_SIMD": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2", "OPENBLAS_CORETYPE": "Haswell"}
PORTABLE = {"HPCGNN_SIMD": "portable", "ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default",
            "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "OPENBLAS_CORETYPE": "Prescott"}
AVX512 = {"HPCGNN_SIMD": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}    # without products of bfloat16
LIMIT_SECONDS = 300
TRAINING = ("--model", "gcn", "--layers", 2, "--hidden", 16, "--epochs", 20, "--eval-every", 5, "--lr", 0.03)
# What holds each run, and its flags.
RUNS = {"fp32": (AVX2, ()), "integers": (AVX2, ("--quantize", "degree-steps", "--set", "quantize_bits=4")),
        **{precision: (AVX2, ("--precision", precision)) for precision in ("bf16", "fp16")},
        **{f"bf16-{name}": (held, ("--precision", "bf16"))
           for name, held in (("free", {}), ("portable", PORTABLE), ("avx512", AVX512))}}
# Options of `quantize` and of `infer` for two of them.
INTEGERS = {"fp32": (("--bits", 8), ()),
            "integers": ((), ("--clusters", 12, "--set", "batch_size=4", "--set", "between_clusters=true", "--set",
                              "aggregation=tiles"))}
# bfloat16 keeps 8 bits, so a rounding errs by 2^-9 at most, and two runs that sum in other orders differ by twice that.
# Before the logits of two layers come four: of the product and of the sum over neighbors, in each. What Adam makes of
# the differences is less here: after 20 epochs the losses differ by 0.2 %.
BFLOAT16_ROUNDINGS = 4 * 2**-8
pytestmark = pytest.mark.skipif(bool(SIMD_FLAGS["avx2"] - processor_flags()), reason="this processor has no AVX2")


def held_command(*words, held=AVX2):
    """What one command printed; it must end in order."""
    # What the caller's own environment holds must not reach a run that is to be held by nothing.
    free = {name: value for name, value in clean_environment().items() if name not in AVX2}
    done = subprocess.run(served(words), capture_output=True, text=True, timeout=LIMIT_SECONDS, env={**free, **held})
    assert done.returncode == 0, done.stderr
    return done


def hpcgnn_in_one(commands, held=AVX2):
    """What each of the commands printed, on standard output and as errors; one process runs them all."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = held_command(Path(__file__).resolve().parents[1] / "several_commands.py", words, held=held)
    return list(zip(done.stdout.split("\0"), done.stderr.split("\0"), strict=True))[:-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A graph as an archive and as shards."""
    path, dataset = tmp_path_factory.mktemp("avx2"), easy_graph()
    archive_of(path / "small.npz", dataset)
    write(replace(dataset, name="small"), random_owner(dataset, 1), 1, path / "shards")
    return path


def inferring(folder, run, name):
    return ("infer", folder / f"{run}.h5", folder / "shards", "--repeat", 1, *INTEGERS[run][1], "--out",
            folder / f"{run}-{name}.h5")


def commands_of(folder, run):
    """`train`, and `quantize` and `infer` of what it leaves."""
    commands = [("train", folder / "shards", *TRAINING, *RUNS[run][1], "--out", folder / run)]
    if run in INTEGERS:
        commands += [("quantize", folder / run, folder / "shards", *INTEGERS[run][0], "--out", folder / f"{run}.h5"),
                     inferring(folder, run, "held")]
    return commands


@pytest.fixture(scope="module")
def train(folder):
    """train(name): losses of a run of RUNS, in a folder of that name; one process does all that is held alike.

    What `quantize` and `infer` print of a run of INTEGERS is in a file of its name.
    """
    done: dict[str, np.ndarray] = {}

    def once(name):
        held = RUNS[name][0]
        alike = [] if name in done else [other for other in RUNS if RUNS[other][0] == held]
        printed = iter(hpcgnn_in_one([words for other in alike for words in commands_of(folder, other)], held))
        for other in alike:
            text, *answers = [next(printed)[0] for _ in commands_of(folder, other)]
            assert text.startswith("small gcn ") and f"run folder: {folder / other}" in text
            (folder / f"{other}.json").write_text(json.dumps(answers))
            lines = (folder / other / "metrics.jsonl").read_text().splitlines()
            done[other] = losses([json.loads(line) for line in lines])
        return done[name]

    return once


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.long), "bf16", "fp16"])
def test_training_learns_in_every_precision(train, folder, precision):
    found = train(precision)
    assert len(found) == 20 and np.isfinite(found).all() and found[-1] < 0.5 * found[0]
    assert json.loads((folder / precision / "summary.json").read_text())["test_score"] > 0.8


@pytest.mark.long
def test_losses_in_bfloat16_are_those_of_its_own_instructions_up_to_its_roundings(train):
    np.testing.assert_allclose(train("bf16"), train("bf16-free"), rtol=BFLOAT16_ROUNDINGS)


@pytest.mark.long
@pytest.mark.parametrize("level", ["portable", "avx512"])
def test_losses_in_bfloat16_are_the_same_at_other_levels_up_to_its_roundings(train, level):
    missing = SIMD_FLAGS[level] - processor_flags()
    if missing:
        pytest.skip(f"this processor has no {', '.join(sorted(missing))}")
    np.testing.assert_allclose(train(f"bf16-{level}"), train("bf16"), rtol=BFLOAT16_ROUNDINGS)


@pytest.mark.parametrize("run", INTEGERS)
def test_integers_answer_to_the_bit_as_with_all_instructions(train, folder, hpcgnn, run):
    assert train(run)[-1] < 1.0
    quantized, held = json.loads((folder / f"{run}.json").read_text())
    assert f"model file: {folder / run}.h5" in quantized
    status, free, _ = hpcgnn(*inferring(folder, run, "free"))
    assert status == 0
    for printed in (held, free):
        assert float(re.search(r"test ([\d.]+) %", printed)[1]) > 80
    held, free = (read_predictions(folder / f"{run}-{name}.h5") for name in ("held", "free"))
    for array in ("prediction", "logits", "embeddings"):
        assert getattr(held, array).tobytes() == getattr(free, array).tobytes(), array


@pytest.mark.long
def test_doctor_names_what_is_there_and_what_is_held_back():
    printed = held_command("-m", "hpcgnn", "doctor", "--threads", 1).stdout
    assert "instructions: kernels avx2, torch avx2, products of bfloat16 no" in printed
    assert "there are no instructions for products of bfloat16" in printed
    assert ("HPCGNN_SIMD holds the kernels at avx2" in printed) == (best_level() != "avx2")
