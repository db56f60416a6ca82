"""GraphInfo to and from the attributes and tables of an open HDF5 file. No file is opened here."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import h5py
import numpy as np

from hpcgnn.datasets.dataset import CleaningReport
from hpcgnn.partition.statistics import PartitionStatistics
from hpcgnn.shards.schema import GraphInfo, Provenance

NESTED = ("provenance", "cleaning", "statistics")


def store_info(file: h5py.File, info: GraphInfo) -> None:
    """Write scalars as attributes, the cleaning report and provenance as JSON, statistics as one column a count."""
    for item in fields(GraphInfo):
        if item.name not in NESTED:
            file.attrs[item.name] = getattr(info, item.name)
    file.attrs["provenance"] = json.dumps(asdict(info.provenance))
    file.attrs["cleaning"] = json.dumps(asdict(info.cleaning))
    for item in fields(PartitionStatistics):
        file[f"statistics/{item.name}"] = np.array([getattr(row, item.name) for row in info.statistics])


def load_info(file: h5py.File) -> GraphInfo:
    """Read what store_info wrote."""
    scalars = {item.name: _plain(file.attrs[item.name]) for item in fields(GraphInfo) if item.name not in NESTED}
    cleaning = json.loads(file.attrs["cleaning"])
    cleaning["remarks"] = tuple(cleaning["remarks"])
    columns = {item.name: file[f"statistics/{item.name}"][()].tolist() for item in fields(PartitionStatistics)}
    rows = zip(*columns.values(), strict=True)
    return GraphInfo(
        **scalars,
        provenance=Provenance(**json.loads(file.attrs["provenance"])),
        cleaning=CleaningReport(**cleaning),
        statistics=tuple(PartitionStatistics(**dict(zip(columns, row, strict=True))) for row in rows),
    )


def _plain(value):
    """NumPy scalars of HDF5 attributes as Python's own."""
    return value.item() if isinstance(value, np.generic) else value
