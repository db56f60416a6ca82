"""The rates of one node for `hpcgnn plan`: kernels as a training calls them, on all ranks of the node at once.

All ranks call in the same order, and the slowest rank counts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hpcgnn.bench.exchange import RanksPlace
from hpcgnn.bench.graphs import SYNTHETIC_DEGREE, draw_power_law
from hpcgnn.bench.place import PRECISION, zeros
from hpcgnn.bench.timing import OURS
from hpcgnn.exchange.bits import UniformBits
from hpcgnn.exchange.halo import HaloExchange
from hpcgnn.exchange.plan import NO_ROWS, ExchangePlan
from hpcgnn.exchange.transfer import HostDelivery, Transfer
from hpcgnn.graph.local_graph import LocalGraph
from hpcgnn.graph.rows import LocalRows
from hpcgnn.methods.problem import fit
from hpcgnn.nn.models import ModelShape, build_model
from hpcgnn.ops.aggregation import from_csr, multiply
from hpcgnn.ops.counter import DROPOUT, FORWARD, CounterKey
from hpcgnn.ops.dense import map_rows, weight_gradient
from hpcgnn.ops.pointwise import activate, dropout
from hpcgnn.ops.quantization import MessageLayout, dequantize_rows, quantize_rows
from hpcgnn.widths import PACKED_WIDTHS

WIDTH, NUM_ROWS = 256, 65_536
TABLE_MB, COLUMNS = (1, 8, 64, 256), (64, 256)
MESSAGE_BYTES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22)
TAG, LEAST_LATENCY = 7, 1e-7
KEYS = {"drop": CounterKey(0, 0, DROPOUT, 0), "message": CounterKey(0, 0, FORWARD, 0)}
TINY, TINY_DEGREE = 64, 4      # nodes of a graph so small that a step takes no longer than the work around kernels

Tables = dict[str, dict[str, Any]]


@dataclass
class NodeRates:
    place: RanksPlace
    precisions: tuple[str, ...]

    def measure(self) -> Tables:
        """Collective: the tables of a cluster file; [network] lacks what could not be measured."""
        process_bytes = resident_bytes()      # before anything is allocated here
        comm = self.place.comm
        rates = {f"rates.{precision}": self._rates(precision) for precision in self.precisions}
        pack, unpack = self._messages()
        step_seconds = self._step_seconds()
        hosts = comm.allgather(socket.gethostname())
        node = {"ranks": hosts.count(hosts[0]), "process_bytes": max(comm.allgather(process_bytes)),
                "step_seconds": step_seconds, "memory_bytes": memory_bytes()}
        return {"node": node, **rates, "pack": pack, "unpack": unpack, "network": self._network(hosts)}

    def _seconds(self, what: str, work: Callable[[], object]) -> float:
        # The slowest rank counts, in the repetition that was disturbed least.
        return min(self.place.measure("rate", what, 0.0, "s", {OURS: work}).seconds[OURS])

    def _rates(self, precision: str) -> dict[str, Any]:
        dtype, values = PRECISION[precision], NUM_ROWS * WIDTH
        rows, gradient = (self.place.random_rows(NUM_ROWS, WIDTH, dtype, seed) for seed in (0, 1))
        weight = self.place.random_rows(WIDTH, WIDTH, dtype, seed=2)
        node_id, scale = np.arange(NUM_ROWS), [torch.ones(WIDTH, requires_grad=True), torch.zeros(WIDTH)]
        h = rows.detach().requires_grad_()
        normed = activate(h, 0.5, node_id, KEYS["drop"], *scale)
        works = {
            "map_flops": (2 * values * WIDTH, partial(map_rows, rows, weight)),
            "gradient_flops": (2 * values * WIDTH, partial(weight_gradient, gradient, rows)),
            "drop_values": (values, partial(dropout, rows, 0.5, node_id, KEYS["drop"])),
            "norm_values": (values, partial(activate, h, 0.5, node_id, KEYS["drop"], *scale)),
            "norm_back_values": (values, partial(torch.autograd.grad, normed, (h, scale[0]), gradient,
                                                 retain_graph=True))}
        found = {name: amount / self._seconds(f"{name} {precision}", work) for name, (amount, work) in works.items()}
        return {**found, "sum_bytes": list(self._sums(precision))}

    def _sums(self, precision: str) -> Iterator[list[float]]:
        item = PRECISION[precision].itemsize
        for columns in COLUMNS:
            for size in TABLE_MB:
                num_nodes = (size << 20) // (columns * item)
                graph = draw_power_law(SYNTHETIC_DEGREE * num_nodes, "cpu")
                rows = self.place.random_rows(num_nodes, columns, PRECISION[precision])
                matrix = from_csr(graph.indptr, graph.indices, num_nodes, row_scale=graph.inverse_degree)
                seconds = self._seconds(f"sums of {columns} columns, {size} MiB, {precision}",
                                        partial(multiply, matrix, rows))
                yield [columns, rows.nbytes, graph.num_edges * columns * item / seconds]

    def _messages(self) -> tuple[dict[str, float], dict[str, float]]:
        index, node_id = np.arange(NUM_ROWS, dtype=np.int32), np.arange(NUM_ROWS)
        pack, unpack = {}, {}
        kinds = [(code, bits) for code in ("affine", "rotated") for bits in PACKED_WIDTHS] + [("stored", 16),
                                                                                           ("stored", 32)]
        for code, bits in kinds:
            rows = self.place.random_rows(NUM_ROWS, WIDTH, torch.bfloat16 if bits == 16 else torch.float32)
            layout = MessageLayout.build(np.full(NUM_ROWS, bits, np.uint8), WIDTH,
                                         "affine" if code == "stored" else code)
            message, received = self.place.empty_bytes(layout.num_bytes), torch.empty_like(rows)
            quantize = partial(quantize_rows, rows, index, node_id, layout, KEYS["message"], message)
            decode = partial(dequantize_rows, message, index, node_id, layout, received, key=KEYS["message"])
            pack[f"{code}_{bits}"] = rows.numel() / self._seconds(f"pack {code} {bits}", quantize)
            unpack[f"{code}_{bits}"] = rows.numel() / self._seconds(f"unpack {code} {bits}", decode)
        return pack, unpack

    def _step_seconds(self) -> float:
        alone = self.place.comm.Split(self.place.comm.rank)
        indptr = np.arange(TINY + 1, dtype=np.int64) * TINY_DEGREE
        indices = (np.arange(TINY * TINY_DEGREE, dtype=np.int32) * 7) % TINY
        plan = ExchangePlan(0, 1, TINY, 0, (0,), (NO_ROWS,), (NO_ROWS,), ())
        rows = LocalRows(indptr, indices, np.arange(TINY), np.full(TINY, TINY_DEGREE, np.int32),
                         torch.ones(TINY, WIDTH))
        graph = LocalGraph(rows, HaloExchange(alone, plan, UniformBits(32)))
        model = build_model(ModelShape("sage", WIDTH, WIDTH, WIDTH, 3, 0.5, "layer")).train()

        def step() -> None:
            graph.begin_forward(0, 0, is_training=True)
            model(graph, graph.x).sum().backward()

        seconds = self._seconds("a step without work", step)
        alone.Free()
        return seconds

    def _network(self, hosts: list[str]) -> dict[str, float]:
        # Links between the ranks of a host, and between hosts if there are several.
        rank = self.place.comm.rank
        found: dict[str, float] = {}
        names = list(dict.fromkeys(hosts))
        beside = [[other for other, host in enumerate(hosts) if host == name] for name in names]
        if min(map(len, beside)) > 1:
            own = next(ranks for ranks in beside if rank in ranks)
            found |= self._link("within", own)
        if len(names) > 1 and len(set(map(len, beside))) == 1:
            found |= self._link("between", [ranks[beside[names.index(hosts[rank])].index(rank)] for ranks in beside])
        return found

    def _link(self, name: str, ring: list[int]) -> dict[str, float]:
        place = ring.index(self.place.comm.rank)
        rounds = ((ring[(place + 1) % len(ring)], ring[place - 1]),)
        sizes, seconds = [], []
        for num_bytes in MESSAGE_BYTES:
            send, receive = ([zeros((num_bytes if rank in rounds[0][side:side + 1] else 0,), "uint8")
                              for rank in range(self.place.comm.size)] for side in (0, 1))
            work = partial(self._transfer, rounds, send, receive)
            seconds.append(self._seconds(f"message of {num_bytes} bytes {name} nodes", work))
            sizes.append(num_bytes)
        per_byte, once = fit(np.array(sizes), np.array(seconds))
        # A fit may explain all seconds by the latency or by the rate alone; both are kept within limits.
        return {f"{name}_latency_seconds": max(once, LEAST_LATENCY),
                f"{name}_bytes_per_second": 1 / (per_byte or seconds[-1] / sizes[-1])}

    def _transfer(self, rounds: tuple[tuple[int, int]], send: list[np.ndarray], receive: list[np.ndarray]) -> None:
        Transfer(HostDelivery(self.place.comm, range(self.place.comm.size), send, receive, TAG), rounds).wait()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
