"""One rank's shard, read once: its part, and its input rows as floats or packages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI

from hpcgnn.exchange.plan import check_peers
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.lowbit.inference.coded_rows import CodedRows, code_packages, code_rows
from hpcgnn.lowbit.integer_model import RowScale
from hpcgnn.lowbit.package import PackagedRows
from hpcgnn.lowbit.package_shards import floats_of, load_packages
from hpcgnn.partition.partition import Partition
from hpcgnn.run.launch import together
from hpcgnn.shards.feature_formats import PACKAGE
from hpcgnn.shards.folder import find_shard
from hpcgnn.shards.reader import check_num_parts, load_part, open_part
from hpcgnn.shards.schema import GraphInfo, part_file


@dataclass(frozen=True)
class FloatRows:
    """Rows of one rank; `num_bytes` are in memory, before the compression of the shard."""

    rows: np.ndarray

    @property
    def form(self) -> str:
        return str(self.rows.dtype)

    @property
    def num_bytes(self) -> int:
        return self.rows.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> CodedRows:
        """Codes of all rows; KernelError for NaN, or negative values where codes have no sign."""
        return code_rows(scale, self.rows, in_degree)


@dataclass(frozen=True)
class PackageRows:
    packed: PackagedRows
    scale: np.ndarray

    form = "packages"

    @property
    def num_bytes(self) -> int:
        return sum(self.packed.stored_bits.values()) // 8 + self.scale.nbytes

    def coded(self, scale: RowScale, in_degree: np.ndarray) -> CodedRows:
        return code_packages(scale, self.packed, self.scale, in_degree)


@dataclass(frozen=True)
class StoredPart:
    part: Partition      # without features
    rows: FloatRows | PackageRows
    path: Path

    @classmethod
    def read(cls, comm: MPI.Comm, shards: Path, info: GraphInfo) -> StoredPart:
        """Collective: read this rank's part; CollectiveError as `read_partition`, or if parts were mixed."""
        stored = together(comm, lambda: _read(shards, comm.rank, comm.size, info))
        check_peers(comm, stored.part, info.run_id)
        return stored

    def with_floats(self) -> Partition:
        """The part with features; ShardError if packages are damaged."""
        rows = self.rows
        return replace(self.part, features=rows.rows if isinstance(rows, FloatRows)
                       else floats_of(rows.packed, rows.scale, self.path))

    def shared_with(self, graph: LocalGraph) -> StoredPart:
        """Return this part with the rows of `graph` if they are the same, so that memory holds float32 rows once."""
        x = graph.x
        is_alike = (isinstance(self.rows, FloatRows) and self.rows.rows.dtype == np.float32 and x.dtype == torch.float32
                    and x.device.type == "cpu" and np.array_equal(graph.node_id[:graph.num_inner], self.part.inner_id))
        return replace(self, rows=FloatRows(x.numpy())) if is_alike else self


def _read(shards: Path, number: int, num_parts: int, info: GraphInfo) -> StoredPart:
    check_num_parts(info, num_parts)
    path = find_shard(part_file(shards, number))
    with open_part(shards, number, info) as file:
        part = load_part(file, path, number, info, expands_packages=False)
        if info.feature_dtype == PACKAGE:
            rows: FloatRows | PackageRows = PackageRows(*load_packages(file, path, part.num_inner, info.num_features))
        else:
            rows = FloatRows(part.features)
    return StoredPart(replace(part, features=np.empty((part.num_inner, 0), np.float32)), rows, path)
