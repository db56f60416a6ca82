"""Lays a graph out by clusters and counts what Condense-Edge reads from DRAM: python examples/condense_edge.py"""

import sys
from pathlib import Path

import numpy as np
import scipy.sparse

from hpcgnn.accelerators.condense_traffic import Buffer
from hpcgnn.partition.condense import ClusteredRows, condensed_regions, lay_out
from hpcgnn.partition.order import cluster_rows

sys.path.insert(0, str(Path(__file__).parents[1] / "jobs"))
from measurements.dram import condensed_traffic, gather_traffic

half = scipy.sparse.random(4000, 4000, 0.001, format="csr", random_state=np.random.default_rng(0))
arcs, buffer, row_bytes = (half + half.T).tocsr(), Buffer(32 << 10), 64
_, rows = lay_out(arcs, cluster_rows(arcs, buffer.dense().num_bytes // row_bytes, seed=0, name="drawn"))
regions = condensed_regions(rows)                      # Algorithm 1: rows that a cluster needs of others, in order
unordered = ClusteredRows(np.array([0, arcs.shape[0]]), arcs.indptr.astype(np.int64), arcs.indices)
print(f"{regions.num_copies} copies; {gather_traffic(unordered, row_bytes, buffer).total_bytes} bytes as they come, "
      f"{gather_traffic(rows, row_bytes, buffer).total_bytes} by METIS, "
      f"{condensed_traffic(rows, row_bytes, buffer).total_bytes} condensed")
