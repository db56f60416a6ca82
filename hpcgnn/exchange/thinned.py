"""Thinned messages: some rows of a message of differences travel, and a bitmap says which.

A row that does not travel stays at the receiver as it is, and what it lacks is part of the sender's next difference.
The rows with the largest differences travel, a fixed share of a message, so both sides know its size and layout before.
Example: at a share of 0.25, a message of 10 rows holds parameters and codes of 3 rows, then a bitmap of 2 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from hpcgnn.exchange.plan import RowList
from hpcgnn.ops.quantization import NO_BAD_ROW, Buffer, MessageLayout
from hpcgnn.ops.resident import make_resident, on_device
from hpcgnn.widths import rows_sent


@dataclass(frozen=True)
class ThinnedLayout(MessageLayout):
    """The layout of a message of some rows of a list; the bitmap counts as parameters.

    The widths of the message are a sample of the list's, spread evenly over them. The rows that travel take them in the
    order of their own widths, so that any row may travel.

    coded : MessageLayout      of the rows that travel, without the bitmap
    by_width : (n,) int32      all rows of the list by ascending width, rows of one width in the order of the list
    """

    coded: MessageLayout | None = None
    by_width: np.ndarray | None = None

    def __post_init__(self):
        super().__post_init__()
        make_resident(self, "by_width")

    @classmethod
    def of(cls, whole: MessageLayout, share: float) -> ThinnedLayout:
        """Lay out a message of `share` of the rows, rounded up, which `whole` has at their own widths."""
        by_width = np.argsort(whole.bit_width, kind="stable").astype(np.int32)
        num_rows = int(rows_sent(share, whole.num_rows))
        sample = (2 * np.arange(num_rows) + 1) * whole.num_rows // (2 * max(num_rows, 1))
        coded = MessageLayout.build(whole.bit_width[by_width[sample]], whole.dim, whole.code)
        return cls(coded.dim, coded.bit_width, coded.payload_offset, coded.parameter_offset, coded.payload_bytes,
                   coded.parameter_bytes + bitmap_bytes(whole.num_rows), coded.code, coded, by_width)


class Part(NamedTuple):
    """Rows of a list that travel, in the order of the message, and the message without a bitmap."""

    row_index: np.ndarray | torch.Tensor  # (num_rows,) int32, rows of the list
    node_id: np.ndarray | torch.Tensor    # (num_rows,) int64
    layout: MessageLayout
    message: Buffer


def sent_part(listed: RowList, order: np.ndarray, layout: MessageLayout, message: Buffer,
              difference: torch.Tensor) -> Part:
    """The rows that travel of a list with differences (n, dim): those of largest norm; writes the bitmap."""
    if not isinstance(layout, ThinnedLayout):
        return Part(order, listed.node_id, layout, message)
    norm = torch.linalg.vector_norm(difference, dim=1, dtype=torch.float64)
    is_sent = torch.zeros(8 * bitmap_bytes(len(listed)), dtype=torch.uint8, device=difference.device)
    # A stable sort, so that of equal norms the first is taken; NaN comes first and is refused when it is quantized.
    is_sent[torch.argsort(norm, descending=True, stable=True)[:layout.num_rows]] = 1
    packed = (is_sent.view(-1, 8) << _places_of(is_sent)).sum(1).to(torch.uint8)
    _as_tensor(message)[layout.coded.num_bytes:] = packed
    return _part(listed, layout, message, is_sent)


def received_part(listed: RowList, order: np.ndarray, layout: MessageLayout, message: Buffer) -> Part:
    """The rows of a list that a message holds, as its bitmap says."""
    if not isinstance(layout, ThinnedLayout):
        return Part(order, listed.node_id, layout, message)
    packed = _as_tensor(message)[layout.coded.num_bytes:]
    return _part(listed, layout, message, (packed[:, None] >> _places_of(packed) & 1).view(-1))


def note_in_list(found: torch.Tensor, index: np.ndarray | torch.Tensor) -> None:
    """Turn a device's note on a row of a thinned message, (1,) int32, into the row's place in the list."""
    if isinstance(index, torch.Tensor):
        found.copy_(torch.where(found == NO_BAD_ROW, found, index[found.clamp(max=len(index) - 1).long()]))


def bitmap_bytes(num_rows: int) -> int:
    return -(-num_rows // 8)


def _part(listed: RowList, layout: ThinnedLayout, message: Buffer, is_sent: torch.Tensor) -> Part:
    by_width = on_device(layout.by_width, is_sent)
    # The number of rows is known, so a sort finds them without waiting for a device.
    index = by_width[torch.argsort(is_sent[by_width], descending=True, stable=True)[:layout.num_rows]]
    node_id, coded = on_device(listed.node_id, is_sent)[index], message[:layout.coded.num_bytes]
    if isinstance(message, torch.Tensor):
        return Part(index, node_id, layout.coded, coded)
    return Part(index.numpy(), node_id.numpy(), layout.coded, coded)


def _as_tensor(message: Buffer) -> torch.Tensor:
    return message if isinstance(message, torch.Tensor) else torch.from_numpy(message)


def _places_of(bits: torch.Tensor) -> torch.Tensor:
    return torch.arange(8, dtype=torch.uint8, device=bits.device)
