"""The tab key completes commands, flags, and the values that are names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from covering import long_but

from hpcgnn.cli.train import command
from hpcgnn.methods import METHODS


def offered(flag, typed):
    option = next(own for own in command.params if flag in own.opts)
    return [item.value for item in option.shell_complete(None, typed)]


def test_models_methods_and_choices_are_offered_by_their_beginning():
    assert offered("--model", "gc") == ["gcn", "gcnii"]
    assert offered("--method", "") == list(METHODS)
    assert offered("--precision", "b") == ["bf16"]
    assert offered("--epochs", "") == []


@pytest.mark.parametrize("typed, found", [
    ("most-m", ["most_motion="]), ("solver=", ["solver=bisection", "solver=highs", "solver=greedy"]),
    ("solver=g", ["solver=greedy"]),
    ("nothing=", []), ("epochs=", []), ("method=syl", ["method=sylvie", "method=sylvie-paper"])])
def test_settings_are_offered_and_behind_the_sign_their_values(typed, found):
    assert sorted(offered("--set", typed)) == sorted(found)


@pytest.mark.parametrize("words, found", [("hpcgnn tr", "train"), ("hpcgnn train --ep", "--epochs"),
                                          ("hpcgnn train --method syl", "sylvie")])
def test_the_program_answers_the_shell(words, found):
    done = subprocess.run([sys.executable, "-m", "hpcgnn"], capture_output=True, text=True, timeout=60, env={
        **os.environ, "_HPCGNN_COMPLETE": "bash_complete", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1)})
    assert done.returncode == 0 and f"plain,{found}\n" in done.stdout, done.stderr


@pytest.mark.parametrize("shell", long_but((0,), ["bash", "zsh", "fish"]))
def test_each_shell_gets_its_script(shell):
    done = subprocess.run([sys.executable, "-m", "hpcgnn"], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "_HPCGNN_COMPLETE": f"{shell}_source"})
    assert done.returncode == 0 and f"_HPCGNN_COMPLETE={shell}_complete" in done.stdout
