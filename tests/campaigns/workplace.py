"""A folder with what the commands of campaigns io and memory start from, and the check that nothing of it was lost.

The commands are preprocess --overwrite, train --overwrite, train --resume, quantize and infer, on one rank each.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from campaigns.calls import must_run_all, shortened
from campaigns.corrupt import plain
from campaigns.made_files import GRAPH, TRAIN, preprocessing

COMMANDS = ("preprocess", "train", "resume", "quantize", "infer")
MODULES = ("hpcgnn.cli.preprocess", "hpcgnn.cli.train", "hpcgnn.cli.infer", "hpcgnn.cli.quantize", "hpcgnn.run.launch",
           "hpcgnn.training.trainer", "hpcgnn.lowbit.inference.model_source", "hpcgnn.lowbit.inference.predictions",
           "hpcgnn.lowbit.inference.run", "hpcgnn.lowbit.inference.model_file")


@dataclass(frozen=True)
class Workplace:
    """`whole` is never touched; `place` is a fresh copy for each case.

    Attributes
    ----------
    whole, place : Path
    """

    whole: Path
    place: Path

    @classmethod
    def make(cls, scratch: Path) -> Workplace:
        whole = scratch / "whole"
        shards, model = whole / "shards", whole / "model.h5"
        must_run_all([preprocessing(shards, 1), ["train", shards, *TRAIN, "--out", whole / "run"],
                      ["quantize", whole / "run", shards, "--bits", 4, "--out", model],
                      ["infer", model, shards, "--repeat", 1, "--out", whole / "predictions.h5"]])
        return cls(whole, scratch / "place")

    def renew(self) -> None:
        """Throw the last case away."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.whole, self.place)

    def command(self, name: str) -> list:
        """Arguments of hpcgnn; every command replaces what an earlier one has left."""
        place = self.place
        return {
            "preprocess": ["preprocess", GRAPH, "--out", place / "shards", "--parts", 1, "--seed", 1, "--overwrite"],
            "train": ["train", place / "shards", *TRAIN, "--out", place / "run", "--overwrite"],
            "resume": ["train", place / "shards", *TRAIN[:6], "--epochs", 6, "--eval-every", 2, "--checkpoint-every", 1,
                       "--out", place / "run", "--resume"],
            "quantize": ["quantize", place / "run", place / "shards", "--bits", 4, "--out", place / "model.h5"],
            "infer": ["infer", place / "model.h5", place / "shards", "--repeat", 1, "--out", place / "predictions.h5"],
        }[name]

    def what_is_lost(self, name: str) -> str | None:
        """What a command that failed has left unreadable; a run that is being replaced may be gone, never torn."""
        from hpcgnn.errors import HpcgnnError
        from hpcgnn.lowbit.inference.model_file import read_model
        from hpcgnn.lowbit.inference.predictions import read_predictions
        from hpcgnn.shards.reader import read_graph_info, read_partition

        place = self.place
        try:
            info = read_graph_info(place / "shards")
            parts = plain(read_partition(place / "shards", 0, 1, info))
            if parts != plain(read_partition(self.whole / "shards", 0, 1)):
                return "shards hold something else"
            for read, file in ((read_model, "model.h5"), (read_predictions, "predictions.h5")):
                if plain(read(place / file)) != plain(read(self.whole / file)):
                    return f"{file} holds something else"
            if name != "train" or (place / "run" / "checkpoint.h5").exists():
                self._read_checkpoint(place / "run")
        except HpcgnnError as error:
            return f"lost: {shortened(str(error))}"
        return None

    def _read_checkpoint(self, run: Path) -> None:
        """Whichever generation is whole serves."""
        from hpcgnn.errors import HpcgnnError
        from hpcgnn.training.checkpoint import read_checkpoint

        files = [run / "checkpoint.h5", run / "checkpoint-previous.h5"]
        for file in files[:-1]:
            with contextlib.suppress(HpcgnnError):
                read_checkpoint(file)
                return
        read_checkpoint(files[-1] if files[-1].exists() else files[0])


def start(arguments: list, arm: Callable[[], None] = lambda: None) -> int:
    """In a forked child: start MPI where the command needs it, arm what is to fail, and run the command."""
    from hpcgnn.__main__ import main

    if arguments[0] != "preprocess":
        from mpi4py import MPI

        MPI.Init_thread(MPI.THREAD_SERIALIZED)
    arm()
    try:
        main([str(word) for word in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    raise AssertionError("hpcgnn ends with SystemExit")
