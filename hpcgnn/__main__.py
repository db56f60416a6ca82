"""The `hpcgnn` command. Each subcommand lives in a file of `hpcgnn.cli` and is imported only when it is called."""

from __future__ import annotations

import importlib
import os
import sys
import time

import click

import hpcgnn
from hpcgnn.errors import HpcgnnError

USAGE_ERROR = 2
GRACE_SECONDS = 3.0

COMMANDS = {
    "preprocess": "Convert a source graph into HDF5 shards, one a rank.",
    "inspect": "Show what a folder of shards holds, part by part.",
    "train": "Train a model on shards; run it under mpirun with one rank a part.",
    "quantize": "Make a trained model a small one of integers.",
    "infer": "Answer with an integer model for every node; run it under mpirun with one rank a part.",
    "report": "Draw one or several run folders as HTML and PNG.",
    "bench": "Measure kernels, epochs and exchanges against the machine's ceilings and against peers.",
}

# What each launcher sets in a rank's environment before MPI is initialised.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


class LazyGroup(click.Group):
    """A group that imports `hpcgnn.cli.NAME` only when NAME is called, so that help needs neither torch nor MPI."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"hpcgnn.cli.{name}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(hpcgnn.__version__, prog_name="hpcgnn")
def cli() -> None:
    """Distributed full-graph training of graph neural networks with bit-packed messages."""


def launched_rank() -> int:
    """Rank according to the launcher's environment, 0 outside a parallel run. Valid before MPI is initialised."""
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), 0)


def complain(message: str) -> None:
    """Print one sentence to standard error, once for all ranks."""
    if launched_rank() == 0:
        print(f"hpcgnn: {message}", file=sys.stderr, flush=True)
    elif "mpi4py.MPI" not in sys.modules:
        # A launcher kills all ranks once one has failed; rank 0 must have spoken by then. With MPI, its end waits.
        time.sleep(GRACE_SECONDS)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 75 interrupted with a checkpoint."""
    try:
        sys.exit(cli.main(arguments, prog_name="hpcgnn", standalone_mode=False))
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        complain(error.format_message())
        sys.exit(USAGE_ERROR)
    except (click.Abort, KeyboardInterrupt):
        complain("interrupted")
        sys.exit(130)
    except HpcgnnError as error:
        complain(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
