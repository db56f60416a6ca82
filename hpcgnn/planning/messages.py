"""Bytes of messages: of the one width of a method, or of the least and the most that it may choose in training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcgnn.config import LEAST_ROTATED, ROTATED, TrainConfig
from hpcgnn.errors import ConfigError
from hpcgnn.methods import METHODS
from hpcgnn.methods.choosing import ChoosesWidths, Pipelined
from hpcgnn.methods.stored import BNS, PipeGCN, Sancus
from hpcgnn.planning.loads import Pairs
from hpcgnn.planning.model import Exchange, ModelSize
from hpcgnn.settings import hint_of
from hpcgnn.widths import BIT_WIDTHS, PACKED_WIDTHS, rows_sent

PARAMETER_BYTES = {"affine": 4, "rotated": 2}     # per row of 1 to 8 bits, see ARCHITECTURE.md, "Rules of the wire"
SUM_BYTES = 4      # of a float32 in a sum of gradients
# Of sums in codes, as `hpcgnn.exchange.quantized_sums` has them, which planning can't import.
VALUES_OF_A_SUM, MOST_ROTATED_OF_A_SUM = 256, 4      # gradients that share parameters of a code; bits
SAMPLED_ROWS = 2048      # rows of an exchange in which motion is measured, over two epochs


@dataclass(frozen=True)
class Messages:
    name: str                             # METHOD or METHOD:BITS
    bits: int                             # width of every row; the widest if the method chooses in training
    least_bits: int | None = None         # the narrowest of these, 0 if a rank may send nothing; None: `bits`
    share: float = 1.0                    # share of the rows sent in an epoch; below 1, rows are drawn, bytes are means
    is_asynchronous: bool = False         # rows come from the epoch before, so nobody waits for messages
    keeps: bool = False                   # messages are kept for the epoch after
    tables_sent: int = 0                  # float32 copies of the sent rows that are kept
    tables_received: int = 0              # the same of received rows
    measures_motion: bool = False         # of a sample of the sent rows, which is kept
    overlaps: bool = True                 # sums go on while messages travel
    rotated: tuple[str, ...] = ()         # directions with rotated rows, of 1 to 8 bits
    least_rotated: int = LEAST_ROTATED    # fewest columns of a rotated row
    send_share: float = 1.0               # share of a message's rows that are sent; below 1, with a bitmap of them

    @property
    def is_exact(self) -> bool:
        """Whether the byte count is exact."""
        return self.share == 1.0 and self.least_bits is None

    @property
    def narrowest(self) -> Messages:
        """The messages if every row has the least width."""
        return self if self.least_bits is None else replace(self, bits=self.least_bits)

    @property
    def shares_rows(self) -> bool:
        """Whether ranks of a node may share the rows that come to the node: only if all rows travel."""
        return self.share == 1.0 and self.least_bits != 0

    def code_of(self, exchange: Exchange) -> str:
        """The code of the rows: "affine", "rotated", or "stored" if they are sent as values of 16 or 32 bits."""
        if self.bits not in PACKED_WIDTHS:
            return "stored"
        direction = "backward" if exchange.is_backward else "forward"
        return "rotated" if direction in self.rotated and exchange.dim >= self.least_rotated else "affine"

    def row_bytes(self, exchange: Exchange) -> int:
        """Bytes of one row with its parameters; at 0 bits it is not sent."""
        return (self.bits * exchange.dim + 7) // 8 + PARAMETER_BYTES.get(self.code_of(exchange), 0)

    def rows(self, exchange: Exchange, pairs: Pairs) -> np.ndarray:
        """Rows of each pair that are in an exchange, (n,); the expected number if some are drawn."""
        rows = pairs.rows_within[:, exchange.reach]
        return rows if self.share == 1.0 else rows * self.share

    def num_bytes(self, exchange: Exchange, pairs: Pairs) -> np.ndarray:
        """Bytes of each pair's message in an exchange, (n,)."""
        rows, row_bytes = self.rows(exchange, pairs), self.row_bytes(exchange)
        if self.send_share == 1.0:
            return rows * row_bytes
        return rows_sent(self.send_share, rows) * row_bytes + np.ceil(rows / 8)

    def table_bytes(self, exchange: Exchange, sent: np.ndarray, received: np.ndarray) -> np.ndarray:
        """Bytes of the float32 rows that are kept of an exchange, by rows sent and received of each part."""
        tables = self.tables_sent * sent + self.tables_received * received
        return 4.0 * exchange.dim * (tables + 2 * self.measures_motion * np.minimum(sent, SAMPLED_ROWS))


def read_method(text: str) -> dict[str, Any]:
    """The settings of METHOD or METHOD:BITS. Raises ConfigError: an unknown method, or bits that it does not take."""
    name, colon, bits = text.partition(":")
    if name not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(METHODS)}, uniform with its bits as in uniform:8, found "
                          f"{name!r}" + hint_of(name, METHODS))
    if bool(colon) != (name == "uniform"):
        raise ConfigError(f"method {text} can't be planned: write uniform:BITS, and {name} without bits"
                          if colon else "method uniform needs its bits, as in uniform:8")
    if colon and (not bits.isdigit() or int(bits) not in BIT_WIDTHS):
        raise ConfigError(f"method {text} has bits {bits!r}; expected one of {', '.join(map(str, BIT_WIDTHS))}")
    return {"method": name, **({"bits": int(bits)} if colon else {})}


def messages_of(name: str, config: TrainConfig, size: ModelSize) -> Messages:
    """The messages of a training; ConfigError if they can't be planned in epochs of several steps."""
    method, predicts = config.method, config.predict != "none"
    keeps, skips = isinstance(method, Pipelined) or predicts, isinstance(method, Sancus)
    if size.num_steps > 1 and (keeps or skips):
        what = f"predict {config.predict}" if predicts else name
        raise ConfigError(f"{what} keeps gradients that come late from step to step, or rows, which hpcgnn plan does "
                          "not count; plan it with one step, or run hpcgnn train --dry-run")
    stored, is_own = 8 * size.item_bytes, config.code == "auto"
    bits, least = method.fixed_bits(stored) or stored, 0 if skips else None
    if isinstance(method, ChoosesWidths):
        least, bits = method.choices()[0], method.choices()[-1]
    return Messages(
        name, bits, None if least == bits else least, method.share if isinstance(method, BNS) else 1.0,
        method.rule() == "always", keeps or skips, tables_sent=predicts + skips,
        tables_received=predicts + (isinstance(method, PipeGCN) and method.smoothing > 0),
        measures_motion=method.rule() == "measured" or config.predict == "auto", overlaps=config.overlap,
        rotated=ROTATED[method.own_code() if is_own else config.code], least_rotated=LEAST_ROTATED if is_own else 1,
        send_share=config.send_share)


def row_bytes_of_sums(size: ModelSize) -> int:
    """Bytes of VALUES_OF_A_SUM gradients in a sum over ranks."""
    parameters = PARAMETER_BYTES["rotated" if size.sum_bits <= MOST_ROTATED_OF_A_SUM else "affine"]
    return VALUES_OF_A_SUM * size.sum_bits // 8 + parameters * (size.sum_bits in PACKED_WIDTHS)
