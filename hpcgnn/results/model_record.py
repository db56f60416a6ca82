"""ModelRecord: what a file of exported weights says beside them, as JSON in its header. No weight is read here.

A file is in the safetensors format; its metadata has one key of ours, `hpcgnn`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hpcgnn.errors import CheckpointError

KEY, VERSION = "hpcgnn", 1
BUILT_IN, OWN_MODEL, PYG_MODEL = "hpcgnn", "own", "pyg"


@dataclass(frozen=True)
class ModelRecord:
    """Say which model some weights are of and where they come from.

    Attributes
    ----------
    kind : {"hpcgnn", "own", "pyg"}      a built-in model; one of a user's own; a built-in model as one of PyTorch
                                         Geometric, under the names that it gives its weights
    model : str                          name of a built-in model, MODULE:CLASS of one's own, a class of
                                         torch_geometric.nn
    arguments : dict or None             that it is made with, by name; None of one's own
    dataset : str                        name of the graph
    fingerprint : dict                   of that graph, its split and its features
    task : str                           classes, multi-label or regression; empty where that is not known
    class_names : list of str            empty where classes have none
    score : dict                         its name, and train_score, val_score and test_score at the best epoch
    seed, epoch : int                    of the weights
    settings : dict                      of the training
    hpcgnn_version : str
    version : int                        of this record
    """

    kind: str
    model: str
    arguments: dict[str, Any] | None
    dataset: str
    fingerprint: dict[str, str]
    task: str = ""
    class_names: list[str] = field(default_factory=list)
    score: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    epoch: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    hpcgnn_version: str = ""
    version: int = VERSION

    def metadata(self) -> dict[str, str]:
        """Return the metadata of a safetensors file."""
        return {"format": "pt", KEY: json.dumps(asdict(self))}


def record_of(metadata: dict[str, str] | None, path: str) -> ModelRecord:
    """Return the record in a file's metadata.

    Raises
    ------
    CheckpointError      there is none, it is damaged, or of another version
    """
    text = (metadata or {}).get(KEY)
    if text is None:
        raise CheckpointError(f"{path} is a safetensors file that hpcgnn export has not written; read it with "
                              "safetensors.torch.load_file")
    try:
        values = json.loads(text)
        if values["version"] != VERSION:
            raise CheckpointError(f"{path} has version {values['version']} of its record, this hpcgnn reads {VERSION}; "
                                  "export the run again")
        record = ModelRecord(**values)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path} has a record that hpcgnn export has not written ({error}); export the run "
                              "again") from error
    _check_types(record, path)
    return record


def _check_types(record: ModelRecord, path: str) -> None:
    kinds = {"str": str, "int": int}
    for own in fields(record):
        value, kind = getattr(record, own.name), own.type.partition("[")[0]
        expected = {**kinds, "dict": dict, "list": list}[kind]
        if not isinstance(value, expected) and not (value is None and own.type.endswith("None")):
            raise CheckpointError(f"{path} has a record whose {own.name} is no {kind}; export the run again")
