"""`hpcgnn launch`: starts the ranks of a command or a Python program by the launcher of the MPI that mpi4py loads."""

from __future__ import annotations

import shutil
import sys
from difflib import get_close_matches
from pathlib import Path

import click

from hpcgnn.run.launcher import QUIET_START, compose, find_launcher, run_held, share_among
from hpcgnn.run.process import launched_size

OF_PARTS = ("train", "predict", "infer")


@click.command("launch", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--ranks", type=click.IntRange(min=1),
              help="Number of ranks. [default: the number of parts of the shards of train, predict or infer]")
@click.option("--hosts", metavar="HOST[:RANKS],...",
              help="Hosts to start ranks on, by ssh. hpcgnn and the files must have the same paths there. "
              "[default: this machine, or the nodes of the Slurm job]")
@click.option("--launcher", type=click.Choice(("auto", "mpirun", "srun")), default="auto", show_default=True,
              help="auto takes srun within a Slurm job if srun suits the MPI, else mpirun.")
@click.option("--threads", type=click.IntRange(min=1),
              help="OpenMP threads per rank. [default: OMP_NUM_THREADS, else an equal share of the cores]")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def command(ranks: int | None, hosts: str | None, launcher: str, threads: int | None, words: tuple[str, ...]) -> None:
    """Start COMMAND on several ranks and end with its status.

    COMMAND is a command of hpcgnn with its options (train shards/demo-p2 --out runs/demo), a Python file with its
    arguments, or -m MODULE. Ctrl-C, TERM and USR1 make a training write a checkpoint and end with status 75; a second
    Ctrl-C ends it at once.
    """
    program, answers_stops = program_of(list(words))
    variable, size = launched_size()
    if size != "1":
        raise click.UsageError(f"this process is already one of {size} ranks ({variable}); start hpcgnn launch without "
                               "mpirun or srun, or leave launch out")
    if ranks is None and not (hosts and all(":" in host for host in hosts.split(","))):
        ranks = parts_of(list(words))
    shares = share_among(hosts, ranks) if hosts else {}
    launch = compose(find_launcher(launcher), ranks or sum(shares.values()), shares, threads)
    click.echo(f"hpcgnn: {launch.sentence}", err=True)
    status = run_held(launch, program, answers_stops)
    if status:
        raise click.exceptions.Exit(status)


def program_of(words: list[str]) -> tuple[list[str], bool]:
    """What each rank runs, and whether it ends in order on USR1: a training does, and a program may.

    Raises UsageError for words that are neither a command of hpcgnn, nor a Python file, nor -m MODULE.
    """
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    commands = [name for name in root.command.list_commands(root) if name != "launch"]
    first = words[0]
    if first in commands:
        script = shutil.which("hpcgnn", path=str(Path(sys.executable).parent))
        program = [script] if script else [sys.executable, "-m", "hpcgnn"]
        return [*(QUIET_START if first == "train" else ()), *program, *words], first == "train"
    if (first == "-m" and len(words) > 1) or (not first.startswith("-") and Path(first).is_file()):
        return [sys.executable, *words], True
    if first.startswith("-"):
        raise click.UsageError("-m needs the name of a module" if first == "-m" else f"No such option: {first}")
    near = get_close_matches(first, commands, 1)
    raise click.UsageError(f"{first!r} is neither a command of hpcgnn nor a Python file; "
                           + (f"did you mean {near[0]}?" if near else f"commands are {', '.join(commands)}"))


def parts_of(words: list[str]) -> int:
    """Number of parts of the first folder of shards among the words of a command.

    Raises UsageError if the command names none.
    """
    if words[0] in OF_PARTS:
        from hpcgnn.shards.folder import shards_in
        from hpcgnn.shards.reader import read_graph_info

        folder = next((Path(word) for word in words[1:] if Path(word).is_dir() and shards_in(Path(word))), None)
        if folder is not None:
            return read_graph_info(folder).num_parts
    raise click.UsageError(f"{words[0]} does not say how many ranks to start; give their number with -n")
