"""Answers for all nodes as one file, written by rank 0 piece by piece in the order of the source, completely or not
at all.

The file's ending selects the format. `.csv` and `.parquet` are tables, see `columns_of`. `.npz` and `.h5` hold arrays;
row v belongs to the node of global id v: `node`, `prediction`, `probability` (none for a regression), `logits`,
`embeddings` and `class_names` (if there are any). An .h5 file is sealed, of kind `answers`, format 1, with attributes
`dataset`, `task` and `num_nodes`. Only .npz needs memory for all rows at once, and pads each text to the longest one.
If padded texts would be large, `node` is stored as `node_bytes`, uint8, and `node_offset`, int64 (n + 1): text v is the
UTF-8 from offset v to offset v + 1.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import h5py
import numpy as np
from mpi4py import MPI

from hpcgnn.errors import CheckpointError, ConfigError
from hpcgnn.results.answers import Answers
from hpcgnn.run.launch import together
from hpcgnn.shards.schema import packed_texts, unpacked_texts
from hpcgnn.shards.sealed import open_sealed, reason_of, write_sealed
from hpcgnn.training.scores import CLASSES, MULTI_LABEL

KIND, VERSION = "answers", 1
ADVICE = "run hpcgnn predict again"
FEW_BYTES = 1 << 24     # most bytes of padded texts in .npz
Pieces = Iterator[Answers]


def check_answer_file(path: Path) -> None:
    """Check that a file of answers can be written, before the work for it begins.

    Raises ConfigError for an unknown ending, CheckpointError if the file's folder is missing or can't be written to.
    """
    if Path(path).suffix not in WRITERS:
        raise ConfigError(f"{path} names no format of predictions; end it with one of {', '.join(WRITERS)}")
    check_writable(path)


def check_writable(path: Path) -> None:
    """Raise CheckpointError unless a file can be made at `path`, before the work for it begins."""
    parent = Path(path).absolute().parent
    if Path(path).is_dir() or not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise CheckpointError(f"{path} can't be written: its folder does not exist or can't be written to, or it is a "
                              "folder itself; choose another --out")


def write_answers(comm: MPI.Comm, path: Path, dataset: str, answers: Answers) -> None:
    """Collective: replace the file at `path` by the answers of all ranks, in the order of global ids.

    Raises CollectiveError: the folder can't be written or the disk is full.
    """
    write_together(comm, answers, lambda pieces: WRITERS[Path(path).suffix](Path(path), dataset, answers.num_nodes,
                                                                            pieces))


def write_together(comm: MPI.Comm, answers: Answers, write: Callable[[Pieces], None]) -> None:
    """Collective: rank 0 calls `write` with the answers of all ranks, in the order of global ids."""
    pieces = answers.pieces(comm)

    def write_on_rank_zero() -> None:
        try:
            if comm.rank == 0:
                write(pieces)
        finally:
            # If rank 0 failed, it still receives what the other ranks send.
            for _ in pieces:
                pass

    together(comm, write_on_rank_zero)


def read_answer_arrays(path: Path) -> dict[str, np.ndarray]:
    """Arrays of an .h5 or .npz file of answers by name, see the module; CheckpointError if it can't be read."""
    if Path(path).suffix == ".npz":
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            for name in [name.removesuffix("_offset") for name in arrays if name.endswith("_offset")]:
                arrays[name] = unpacked_texts(arrays.pop(f"{name}_bytes"), arrays.pop(f"{name}_offset"))
            return arrays
        except (OSError, ValueError, BadZipFile) as error:
            raise CheckpointError(f"{path} is no file of predictions: {error}; {ADVICE}") from error
    with open_sealed(path, KIND, VERSION, error=CheckpointError, advice=ADVICE) as file:
        return {name: array.asstr()[()] if array.dtype.kind == "O" else array[()]
                for name, array in file.items()}


def columns_of(answers: Answers) -> dict[str, np.ndarray]:
    """The table's columns, (n,) each, without the embeddings.

    `node` is the id in the source. With one class per node: `class`, `class_name` if classes have names, and
    `probability`. With several labels, for each label K: `label_K` (0 or 1) and `probability_K`. For a regression
    `value`, or `value_K` per target. K is the name of a label or target, else its number.
    """
    columns = {"node": answers.name}
    if answers.task == CLASSES:
        names = answers.class_name
        return {**columns, "class": answers.prediction, **({} if names is None else {"class_name": names}),
                "probability": answers.probability}
    if answers.task == MULTI_LABEL:
        return {**columns, **_split("label", answers.prediction, answers.class_names),
                **_split("probability", answers.probability, answers.class_names)}
    if answers.prediction.shape[1] == 1:
        return {**columns, "value": answers.prediction[:, 0]}
    return {**columns, **_split("value", answers.prediction, answers.class_names)}


def _split(name: str, table: np.ndarray, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    keys = names if len(names) == table.shape[1] else range(table.shape[1])
    return {f"{name}_{key}": table[:, number] for number, key in enumerate(keys)}


def arrays_of(answers: Answers) -> dict[str, np.ndarray]:
    arrays = {"node": answers.name, "prediction": answers.prediction, "probability": answers.probability,
              "logits": answers.logits, "embeddings": answers.embeddings if answers.embeddings.shape[1] else None}
    return {name: array for name, array in arrays.items() if array is not None}


def _write_h5(path: Path, dataset: str, num_nodes: int, pieces: Pieces) -> None:
    def fill(file: h5py.File) -> None:
        file.attrs["dataset"], file.attrs["num_nodes"] = dataset, num_nodes
        for piece in pieces:
            if "task" not in file.attrs:
                file.attrs["task"] = piece.task
                if piece.class_names:
                    file.create_dataset("class_names", data=list(piece.class_names), dtype=h5py.string_dtype())
            store_rows(file, num_nodes, piece, arrays_of(piece))

    write_sealed(path, KIND, VERSION, fill, error=CheckpointError)


def store_rows(file: h5py.File, num_nodes: int, piece: Answers, arrays: dict[str, np.ndarray]) -> None:
    """Write the piece's rows of some arrays to datasets of all nodes, which the first piece makes."""
    for name, rows in arrays.items():
        if name not in file:
            kind = h5py.string_dtype() if rows.dtype == object else rows.dtype
            file.create_dataset(name, (num_nodes, *rows.shape[1:]), kind)
        if rows.size:
            first = int(piece.node_id[0])
            file[name][first:first + len(rows)] = rows


def _write_npz(path: Path, dataset: str, num_nodes: int, pieces: Pieces) -> None:
    blocks = list(pieces)
    found = [arrays_of(block) for block in blocks]
    arrays = {name: np.concatenate([one[name] for one in found]) for name in (found[0] if found else ())}
    for name in [name for name, array in arrays.items() if array.dtype == object]:
        # Without pickle, .npz stores texts padded to the longest one.
        texts = arrays.pop(name)
        content, offset = packed_texts(texts)
        if len(texts) * 4 * max(map(len, texts)) > FEW_BYTES + 8 * len(content):
            arrays[f"{name}_bytes"], arrays[f"{name}_offset"] = content, offset
        else:
            arrays[name] = texts.astype(str)
    if blocks and blocks[0].class_names:
        arrays["class_names"] = np.array(blocks[0].class_names)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        columns: dict[str, Any] = arrays
        np.savez(file, dataset=np.array(dataset), **columns)


def _write_csv(path: Path, dataset: str, num_nodes: int, pieces: Pieces) -> None:
    with replacing(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for number, piece in enumerate(pieces):
            columns = {**columns_of(piece), **_split("embedding", piece.embeddings, ())}
            if number == 0:
                writer.writerow(columns)
            # str(float32) is the shortest text that reads back as the same number.
            cells = (column if column.dtype == object else column.astype(str) for column in columns.values())
            writer.writerows(zip(*(column.tolist() for column in cells), strict=True))


def _write_parquet(path: Path, dataset: str, num_nodes: int, pieces: Pieces) -> None:
    import pyarrow as arrow  # needed only for these files
    from pyarrow import parquet

    with replacing(path) as temporary, open(temporary, "wb") as file:
        writer = None
        try:
            for piece in pieces:
                columns = {name: arrow.array(column) for name, column in columns_of(piece).items()}
                width = piece.embeddings.shape[1]
                if width:
                    values = arrow.array(np.ascontiguousarray(piece.embeddings).reshape(-1))
                    columns["embedding"] = arrow.FixedSizeListArray.from_arrays(values, width)
                table = arrow.table(columns).replace_schema_metadata({"dataset": dataset, "task": piece.task})
                writer = writer or parquet.ParquetWriter(file, table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


WRITERS: dict[str, Callable[[Path, str, int, Pieces], None]] = {
    ".parquet": _write_parquet, ".h5": _write_h5, ".npz": _write_npz, ".csv": _write_csv}


@contextmanager
def replacing(path: Path, advice: str = ", then start again") -> Iterator[Path]:
    """A name to write to. The file is renamed to `path` when all is written, and removed after a failure.

    Raises CheckpointError, which ends with `advice`, if the file can't be written.
    """
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise CheckpointError(f"{path} can't be written: {reason_of(error)}; check the folder and the space on its "
                              f"disk{advice}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
