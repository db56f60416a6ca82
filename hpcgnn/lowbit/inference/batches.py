"""Batches of METIS clusters of a graph, and the same packed for passes.

As in QGTC, a batch's adjacency is block-diagonal, one block per cluster: an edge between two clusters is left out even
if both are in one batch. Cluster-GCN keeps those edges, and `keeps_all` does so too. Example: clusters 0, 1, 2, 3 in
batches of two; an edge from cluster 0 to 1 is kept only with `keeps_all`, one from 1 to 2 never.

`PackedBatches` has adjacency, tiles and features of batches in one contiguous buffer (QGTC, Section 4.6). The buffer is
written once and read in place: arrays are views of its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse
import torch

from hpcgnn.errors import KernelError
from hpcgnn.lowbit.bit_tensor import BitTensor, to_bit
from hpcgnn.ops.bit_gemm import PAD8, padded, words_of
from hpcgnn.ops.tiles import TILE_ROWS, BatchTiles, tiles_of_csr
from hpcgnn.partition.clusters import arc_groups, batch_clusters

MAGIC, VERSION = 0x48435441_42544147, 1
HEADER = ("magic", "version", "num_bytes", "num_rows", "num_batches", "num_entries", "num_tile_rows", "num_tiles",
          "num_features", "bit_width", "is_signed")
ALIGNMENT = 64
HEADER_BYTES = 128
Sections = dict[str, tuple[int, type, tuple[int, ...]]]     # name -> first byte, type and shape in a buffer


@dataclass(frozen=True)
class Batches:
    """Batches of nodes, one after the other, as one CSR without edges between batches."""

    node_id: np.ndarray    # (num_rows,) int64, of each row, in the whole graph
    row_begin: np.ndarray  # (num_batches + 1,) int64, batch b has the rows row_begin[b] .. row_begin[b + 1] - 1
    indptr: np.ndarray     # (num_rows + 1,) int64, row v lists the sources of the edges into v
    indices: np.ndarray    # (num_entries,) int32, rows, ascending within a row

    @property
    def num_batches(self) -> int:
        return len(self.row_begin) - 1

    @property
    def num_rows(self) -> int:
        return len(self.node_id)

    @property
    def in_degree(self) -> np.ndarray:
        return np.diff(self.indptr)

    def adjacency(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        first, end = self.row_begin[batch], self.row_begin[batch + 1]
        indptr = self.indptr[first:end + 1]
        return indptr - indptr[0], self.indices[indptr[0]:indptr[-1]] - np.int32(first)

    def joined(self) -> Batches:
        return replace(self, row_begin=np.array([0, self.num_rows], np.int64))

    def chosen(self, batches: np.ndarray) -> Batches:
        counts = np.diff(self.row_begin)[batches]
        row_begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        rows = _ranges(self.row_begin[batches], counts)
        degree = self.in_degree[rows]
        indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
        moved = np.repeat(row_begin[:-1] - self.row_begin[batches], counts)
        indices = self.indices[_ranges(self.indptr[rows], degree)] + np.repeat(moved, degree)
        return Batches(self.node_id[rows], row_begin, indptr, indices.astype(np.int32))


def runs_of_batches(row_begin: np.ndarray, most_rows: int) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(row_begin) - 1:
        end = max(first + 1, int(np.searchsorted(row_begin, row_begin[first] + most_rows, "right")) - 1)
        yield first, end
        first = end


def cut_batches(indptr: np.ndarray, indices: np.ndarray, num_clusters: int, batch_size: int, *, keeps_all: bool = False,
                name: str = "the graph") -> Batches:
    """Cut a graph into METIS clusters of about equally many nodes, `batch_size` neighboring clusters per batch.

    The CSR is by destination, without duplicate edges; keeps_all keeps edges between clusters of one batch; messages
    use `name`. Raises ConfigError for no cluster, no batch, or a graph that METIS can't cut.

    Reference: QGTC, Section 4.1; Chiang et al., KDD 2019, Section 3.2, for `keeps_all`.
    """
    cluster = batch_clusters(indptr, indices, num_clusters, batch_size, name)
    batch, group, num_nodes = cluster // batch_size, arc_groups(cluster, batch_size, keeps_all), len(cluster)
    target = np.repeat(np.arange(num_nodes), np.diff(indptr))
    is_kept = group[target] == group[indices]
    order = np.argsort(cluster, kind="stable")
    row_of = np.empty(num_nodes, np.int64)
    row_of[order] = np.arange(num_nodes)
    kept = scipy.sparse.csr_matrix((np.ones(int(is_kept.sum()), np.int8), (row_of[target[is_kept]],
                                    row_of[np.asarray(indices)[is_kept]])), shape=(num_nodes, num_nodes))
    kept.sort_indices()
    ends = np.flatnonzero(np.diff(batch[order], append=-1)) + 1
    return Batches(order.astype(np.int64), np.concatenate([[0], ends]).astype(np.int64),
                   kept.indptr.astype(np.int64), kept.indices.astype(np.int32))


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    # All ranges, one after the other.
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(starts - (ends - counts), counts)


@dataclass(frozen=True)
class PackedBatches:
    buffer: np.ndarray     # (num_bytes,) uint8, header, then the sections of `_places`
    batches: Batches
    tiles: BatchTiles
    in_degree: np.ndarray  # (num_rows,) int64, in the whole graph; chooses steps and widths
    features: BitTensor    # codes of the rows by column, shifted by 2**(bit_width - 1) where signed
    is_signed: bool

    @classmethod
    def pack(cls, batches: Batches, codes: np.ndarray, in_degree: np.ndarray, bit_width: int) -> PackedBatches:
        """Build the object from codes (num_rows, num_features), uint8 or signed int8, and in_degree (num_rows,).

        Raises KernelError for codes that don't fit `bit_width` (1 to 8, with the sign), or numbers of rows that differ.
        """
        is_signed = codes.dtype == np.int8
        if codes.ndim != 2 or len(codes) != batches.num_rows or len(in_degree) != batches.num_rows:
            raise KernelError(f"batches of {batches.num_rows} rows need one row of codes and one in-degree per row, "
                              f"found codes of shape {codes.shape} and {len(in_degree)} degrees")
        shifted = (codes.astype(np.int16) + (1 << bit_width >> 1)).astype(np.uint8) if is_signed else codes
        features = to_bit(torch.from_numpy(np.ascontiguousarray(shifted)), bit_width)
        lists = [tiles_of_csr(*batches.adjacency(b), int(size)) for b, size in enumerate(np.diff(batches.row_begin))]
        tiles = BatchTiles.stack(lists, batches.indptr)
        counts = {"num_rows": batches.num_rows, "num_batches": batches.num_batches,
                  "num_entries": len(batches.indices), "num_tile_rows": len(tiles.begin) - 1,
                  "num_tiles": len(tiles.column), "num_features": codes.shape[1], "bit_width": bit_width,
                  "is_signed": int(is_signed)}
        arrays = {"node_id": batches.node_id, "row_begin": batches.row_begin, "indptr": batches.indptr,
                  "in_degree": in_degree, "tile_row_begin": tiles.tile_row_begin, "tile_begin": tiles.begin,
                  "indices": batches.indices, "tile_column": tiles.column, "tile_words": tiles.words,
                  "features": features.words.numpy()}
        places, num_bytes = _places(counts)
        buffer = np.zeros(num_bytes, np.uint8)
        counts |= {"magic": MAGIC, "version": VERSION, "num_bytes": num_bytes}
        buffer[:8 * len(HEADER)].view(np.int64)[:] = [counts[name] for name in HEADER]
        for name, (start, dtype, shape) in places.items():
            section_of(buffer, start, dtype, shape)[...] = arrays[name].reshape(shape)
        return cls.load(buffer)

    @classmethod
    def load(cls, buffer: np.ndarray) -> PackedBatches:
        """The object in a contiguous uint8 buffer that starts on 8 bytes, without a copy.

        Raises KernelError for another content or version, a short buffer, or arrays that contradict each other.
        """
        counts = _header(buffer)
        places, _ = _places(counts)
        arrays = {name: section_of(buffer, *place) for name, place in places.items()}
        _check(arrays, counts)
        batches = Batches(arrays["node_id"], arrays["row_begin"], arrays["indptr"], arrays["indices"])
        tiles = BatchTiles(arrays["row_begin"], arrays["tile_row_begin"], arrays["tile_begin"],
                           arrays["tile_column"], arrays["tile_words"], arrays["indptr"])
        features = BitTensor.from_words(torch.from_numpy(arrays["features"]),
                                        (counts["num_rows"], counts["num_features"]), "column")
        return cls(buffer, batches, tiles, arrays["in_degree"], features, bool(counts["is_signed"]))

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def codes(self) -> np.ndarray:
        codes = self.features.to_codes().numpy()
        return (codes - np.uint8(1 << (self.features.bit_width - 1))).view(np.int8) if self.is_signed else codes


def _header(buffer: np.ndarray) -> dict[str, int]:
    if buffer.dtype != np.uint8 or buffer.ndim != 1 or not buffer.flags.c_contiguous or buffer.ctypes.data % 8:
        raise KernelError("packed batches lie in a contiguous buffer of bytes that begins on a multiple of 8")
    if len(buffer) < HEADER_BYTES:
        raise KernelError(f"packed batches have a header of {HEADER_BYTES} bytes, found {len(buffer)}; it is cut short")
    counts = dict(zip(HEADER, buffer[:8 * len(HEADER)].view(np.int64).tolist(), strict=True))
    if counts["magic"] != MAGIC or counts["version"] != VERSION:
        raise KernelError(f"a buffer holds no packed batches of version {VERSION}; pack the batches again")
    sizes = [counts[name] for name in HEADER[3:]]
    is_sane = min(sizes) >= 0 and max(sizes) <= 8 * len(buffer) and 1 <= counts["bit_width"] <= 8
    if not is_sane or counts["is_signed"] > 1 or _places(counts)[1] != counts["num_bytes"]:
        raise KernelError("the header of packed batches contradicts itself; pack the batches again")
    if counts["num_bytes"] != len(buffer):
        raise KernelError(f"packed batches of {counts['num_bytes']} bytes were given {len(buffer)}; "
                          "the buffer is cut short or too long")
    return counts


def _places(counts: dict[str, int]) -> tuple[Sections, int]:
    num_rows, num_batches, num_tiles = counts["num_rows"], counts["num_batches"], counts["num_tiles"]
    planes = counts["bit_width"], padded(num_rows, PAD8), words_of(counts["num_features"])
    return sections({
        "node_id": (np.int64, (num_rows,)), "row_begin": (np.int64, (num_batches + 1,)),
        "indptr": (np.int64, (num_rows + 1,)), "in_degree": (np.int64, (num_rows,)),
        "tile_row_begin": (np.int64, (num_batches + 1,)), "tile_begin": (np.int64, (counts["num_tile_rows"] + 1,)),
        "indices": (np.int32, (counts["num_entries"],)), "tile_column": (np.int32, (num_tiles,)),
        "tile_words": (np.int32, (num_tiles, TILE_ROWS, 4)), "features": (np.int32, planes)}, HEADER_BYTES)


def sections(arrays: dict[str, tuple[type, tuple[int, ...]]], start: int) -> tuple[Sections, int]:
    """Place arrays, each on ALIGNMENT bytes, in a buffer from byte `start` on; also the end of the buffer."""
    places: Sections = {}
    for name, (dtype, shape) in arrays.items():
        places[name] = start, dtype, shape
        start += padded(math.prod(shape) * np.dtype(dtype).itemsize, ALIGNMENT)
    return places, start


def section_of(buffer: np.ndarray, start: int, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    return buffer[start:start + math.prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def _check(arrays: dict[str, np.ndarray], counts: dict[str, int]) -> None:
    # Kernels trust these arrays: every array of bounds must rise to its total, and every place must exist.
    totals = {"row_begin": counts["num_rows"], "indptr": counts["num_entries"],
              "tile_row_begin": counts["num_tile_rows"], "tile_begin": counts["num_tiles"]}
    for name, total in totals.items():
        bounds = arrays[name]
        if bounds[0] != 0 or bounds[-1] != total or (np.diff(bounds) < 0).any():
            raise KernelError(f"packed batches have a {name} that does not rise from 0 to {total}; "
                              "pack the batches again")
    size = np.diff(arrays["row_begin"])
    is_fit = (np.diff(arrays["tile_row_begin"]) == -(-size // TILE_ROWS)).all()
    rows = np.repeat(np.arange(len(size)), size)
    entry_batch = np.repeat(rows, np.diff(arrays["indptr"]))
    first, end = arrays["row_begin"][:-1][entry_batch], arrays["row_begin"][1:][entry_batch]
    is_fit &= bool(((arrays["indices"] >= first) & (arrays["indices"] < end)).all())
    tile_batch = np.repeat(np.repeat(np.arange(len(size)), np.diff(arrays["tile_row_begin"])),
                           np.diff(arrays["tile_begin"]))
    limit = -(-size // (4 * 32))[tile_batch]
    is_fit &= bool(((arrays["tile_column"] >= 0) & (arrays["tile_column"] < limit)).all())
    if not is_fit or (arrays["in_degree"] < 0).any():
        raise KernelError("packed batches have an edge or a tile outside its batch, or a negative in-degree; "
                          "pack the batches again")
