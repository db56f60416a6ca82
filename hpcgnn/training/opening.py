"""Finds the run that a folder holds, checks whether this command may continue it, and prepares the folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcgnn.config import default_of, settings_of
from hpcgnn.errors import CheckpointError
from hpcgnn.shards.schema import GraphInfo, check_fingerprint
from hpcgnn.training.checkpoint import Checkpoint
from hpcgnn.training.environment import environment
from hpcgnn.training.run_folder import RunFolder
from hpcgnn.training.session import Session
from hpcgnn.training.summary import software_versions

# Settings that a checkpoint's weights depend on; all others may change when a run is resumed.
FIXED_BY_CHECKPOINT = ("model", "layers", "hidden", "heads", "norm", "residual", "label_inputs", "jump", "seed",
                       "num_bases", "num_blocks", "node_embedding", "weight_decay_layers", "precision", "quantize",
                       "quantize_bits", "clusters", "batch_size", "between_clusters")


def find_checkpoint(folder: RunFolder, info: GraphInfo, asked: dict[str, Any],
                    other_graph: bool) -> tuple[Checkpoint | None, str | None]:
    """The checkpoint to continue from, None if there is none; and a sentence if it is the previous one.

    `asked` are the settings of --config and flags. CheckpointError if both checkpoints are damaged, belong to other
    data (unless `other_graph`), or do not fit the settings.
    """
    if not folder.generations.exist:
        return None, None
    checkpoint, remark = folder.generations.read()
    _check_data(folder, checkpoint, info, other_graph)
    fixed = FIXED_BY_CHECKPOINT + (("epochs",) if checkpoint.progress.seed_index else ())
    asked = without_auto_precision(asked)
    for name in fixed:
        # A checkpoint of an earlier version lacks newer settings; the run was trained with their defaults.
        written = checkpoint.settings.get(name, default_of(name))
        if name in asked and asked[name] != written:
            raise CheckpointError(f"{folder.checkpoint} was written with {name} = {written!r} and can't go on "
                                  f"with {asked[name]!r}; leave it out, or choose another --out")
    return checkpoint, remark


def without_auto_precision(asked: dict[str, Any]) -> dict[str, Any]:
    """Settings to continue with: the checkpoint already holds the precision that `auto` chose."""
    return {name: value for name, value in asked.items() if (name, value) != ("precision", "auto")}


def _check_data(folder: RunFolder, checkpoint: Checkpoint, info: GraphInfo, other_graph: bool) -> None:
    if checkpoint.dataset != info.name and not other_graph:
        raise CheckpointError(f"{folder.checkpoint} was trained on {checkpoint.dataset}, these shards hold "
                              f"{info.name}; choose another --out, or pass --other-graph if it is meant to go on with "
                              "this graph")
    check_fingerprint(f"the run of {folder.checkpoint}", checkpoint.fingerprint, info, other_graph)


def open_folder(folder: RunFolder, session: Session, resumed: Checkpoint | None, remark: str | None, overwrite: bool,
                resume: bool, shards: Path) -> list[str]:
    """Only on rank 0: create the run folder, or cut it back to the checkpoint; write config.toml; return remarks.

    `remark` says why `resumed` is the previous checkpoint.
    """
    sentences = []
    if resumed is None:
        folder.create(overwrite, resume)
    else:
        if remark is not None:
            folder.generations.restore_previous()
        sentences = [remark, folder.go_on_from(resumed.progress, resumed.settings["seed"])]
    folder.write_config(settings_of(session.config), {
        "shards": str(shards.absolute()), "dataset": session.info.name, "ranks": session.comm.size, **environment(),
        **software_versions()})
    return [sentence for sentence in sentences if sentence is not None]
