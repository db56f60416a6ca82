"""The command line and its exit. Each subcommand is a file of `hpcgnn.cli` that is imported when it is called.

An error or signal that ends a command becomes one sentence on standard error and an exit status.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from difflib import get_close_matches
from typing import TextIO

import click

import hpcgnn
from hpcgnn.errors import HpcgnnError, StreamClosed, exit_code_of, explanation_of, sentence_of
from hpcgnn.run.process import launched_rank

USAGE_ERROR = 2
GRACE_SECONDS = 3.0

COMMANDS = {
    "preprocess": "Convert a source graph into HDF5 shards, one per rank.",
    "inspect": "Show what a folder of shards holds, part by part.",
    "plan": "Predict memory, bytes and seconds of runs on many ranks, and recommend one.",
    "launch": "Start the ranks of a command or a Python program: hpcgnn launch -n 4 train SHARDS.",
    "train": "Train a model on shards; run it under launch or mpirun with one rank per part.",
    "predict": "Answer with a trained model for every node; run it under launch or mpirun with one rank per part.",
    "export": "Write a trained model's weights for plain PyTorch or PyTorch Geometric.",
    "quantize": "Turn a trained model into a small integer model.",
    "infer": "Answer with an integer model for every node; run it under launch or mpirun with one rank per part.",
    "watch": "Show the progress of a training in the terminal, until it ends.",
    "report": "Draw one or several run folders as HTML and PNG.",
    "doctor": "Say what this machine can do, and what slows a training on it.",
    "bench": "Measure kernels, epochs and exchanges against the machine's ceilings and against peers.",
}


# What other programs call a command.
OTHER_NAMES = {"partition": "preprocess", "convert": "preprocess", "fit": "train", "evaluate": "predict",
               "eval": "predict", "test": "predict", "info": "inspect", "show": "inspect", "plot": "report",
               "compare": "report", "check": "doctor", "estimate": "plan"}


class LazyGroup(click.Group):
    """A group that imports `hpcgnn.cli.NAME` only when NAME is called, so that help needs neither torch nor MPI."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"hpcgnn.cli.{name}").command

    def resolve_command(self, ctx: click.Context,
                        args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name.startswith("-"):
            return super().resolve_command(ctx, args)
        near = OTHER_NAMES.get(name) or next(iter(get_close_matches(name, COMMANDS, 1)), None)
        hint = f"did you mean {near}?" if near else f"commands are {', '.join(COMMANDS)}"
        raise click.UsageError(f"No such command {name!r}; {hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context):
        try:
            os.getcwd()      # without one, MPI and MKL would end the program with texts of their own
        except FileNotFoundError as error:
            raise HpcgnnError("the folder that this command was started in has been removed; cd to another") from error
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # click would end the program silently with status 1.
            raise StreamClosed(sentence_of(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(hpcgnn.__version__, prog_name="hpcgnn")
def cli() -> None:
    """Distributed full-graph training of graph neural networks with bit-packed messages."""


def run(words: list[str], command: click.Command = cli, name: str = "hpcgnn") -> int | str | None:
    """Run one command line to its end, say in one sentence why it failed, and return the exit status."""
    try:
        status = command.main(words, prog_name=name, standalone_mode=False) or 0
        sys.stdout.flush()
    except SystemExit as stop:
        return stop.code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.NoSuchOption as error:
        from hpcgnn.cli.grouped import explain_option

        complain(explain_option(error))
        return USAGE_ERROR
    except click.ClickException as error:
        complain(error.format_message())
        return USAGE_ERROR
    except BaseException as error:
        # click turns a KeyboardInterrupt into an Abort.
        found = KeyboardInterrupt() if isinstance(error, click.Abort) else error
        complain(explanation_of(found))
        return exit_code_of(found)
    finally:
        _give_up_unwritten_output()
    return status


def complain(message: str) -> None:
    if launched_rank():
        if _waits_for_rank_zero():
            return
        # A launcher kills all ranks once one has failed; rank 0 must have printed before. A rank that lives on may have
        # no rank 0: a variable that a launcher left in the environment says that it is one.
        time.sleep(GRACE_SECONDS)
    try:
        print(f"hpcgnn: {message}", file=sys.stderr, flush=True)
    except OSError:
        return      # standard error can't be written; the exit status remains


def _waits_for_rank_zero() -> bool:
    """Whether this rank's exit waits for the others, because MPI has started."""
    launch = sys.modules.get("hpcgnn.run.launch")
    return "mpi4py.MPI" in sys.modules and (launch is None or launch.has_company())


def _give_up_unwritten_output() -> None:
    """Discard output that can't be written, so that the interpreter does not fail on it again with a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if not _is_written(stream):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _is_written(stream: TextIO) -> bool:
    try:
        stream.flush()
    except OSError:
        return False
    return True
