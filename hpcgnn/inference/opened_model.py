"""OpenedModel: an integer model from wherever a user has it, a file or a run folder."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from mpi4py import MPI

from hpcgnn.errors import CollectiveError
from hpcgnn.inference.graph_check import check_graph, other_graph_line
from hpcgnn.inference.model_file import payload_bytes, read_model
from hpcgnn.inference.trained_run import TrainedRun
from hpcgnn.launch import together
from hpcgnn.quantized.integer_model import IntegerModel
from hpcgnn.shards.schema import GraphInfo


@dataclass(frozen=True)
class OpenedModel:
    """A model that fits the shards.

    Attributes
    ----------
    model : IntegerModel
    num_bytes : int                  of its file, or of its numbers where it has none
    score : str                      that it is judged by
    float_seconds : float or None    median of a pass in floats, of a run folder
    remark : str or None             a sentence where the model was made on another graph
    """

    model: IntegerModel
    num_bytes: int
    score: str
    float_seconds: float | None
    remark: str | None = None


def open_model(comm: MPI.Comm, path: Path, shards: Path, info: GraphInfo, bits: int | None, row_bits: int | None,
               other_graph: bool, repeat: int) -> OpenedModel:
    """Collective: read a model file, or quantize the model of a run folder and time it in floats.

    Parameters
    ----------
    bits, row_bits : see `TrainedRun.integer_model`
    repeat : int                     passes in floats to time

    Raises
    ------
    CollectiveError      what is there is no model, or one of another graph; widths for a model that has its own
    """
    if Path(path).is_dir():
        return _of_run(TrainedRun.open(comm, path, shards, info, other_graph), bits, row_bits, repeat)
    model, made_on = together(comm, lambda: read_model(path))
    together(comm, lambda: check_graph(str(path), model, made_on, info, other_graph))
    if bits is not None or row_bits is not None:
        raise CollectiveError(f"{path} is a model file and has widths of its own; leave --bits and --row-bits out, or "
                              "name the run folder")
    score = "micro_f1" if info.is_multi_label else "accuracy"
    return OpenedModel(model, Path(path).stat().st_size, score, None, other_graph_line(str(path), made_on, info))


def _of_run(run: TrainedRun, bits: int | None, row_bits: int | None, repeat: int) -> OpenedModel:
    model = run.integer_model(bits, row_bits)
    return OpenedModel(model, payload_bytes(model), run.session.score,
                       statistics.median(run.forward_seconds(repeat)), run.remark)
