"""Bytes of messages, for methods that fix their bit-widths before the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.config import LEAST_ROTATED, ROTATED
from hpcgnn.errors import ConfigError
from hpcgnn.methods import METHODS, find_method
from hpcgnn.methods.bns import BNS
from hpcgnn.methods.method import Method
from hpcgnn.methods.pipegcn import PipeGCN
from hpcgnn.planning.loads import Pairs
from hpcgnn.planning.model import Exchange, ModelSize
from hpcgnn.widths import BIT_WIDTHS, PACKED_WIDTHS

PARAMETER_BYTES = {"affine": 4, "rotated": 2}     # per row of 1 to 8 bits, see ARCHITECTURE.md, "Rules of the wire"
KNOWN = ("vanilla", "uniform", "pipegcn", "bns")


@dataclass(frozen=True)
class Messages:
    """How a method sends rows."""

    name: str                             # METHOD or METHOD:BITS
    bits: int                             # width of every row
    share: float = 1.0                    # share of the rows sent in an epoch; below 1, rows are drawn, bytes are means
    is_asynchronous: bool = False         # rows come from the epoch before, so nobody waits for messages
    rotated: tuple[str, ...] = ()         # directions with rotated rows, of 1 to 8 bits
    least_rotated: int = LEAST_ROTATED    # fewest columns of a rotated row

    @property
    def is_exact(self) -> bool:
        """Whether the byte count is exact."""
        return self.share == 1.0

    @property
    def shares_rows(self) -> bool:
        """Whether ranks of a node may share the rows that come to the node: only if all rows travel."""
        return self.is_exact

    def code_of(self, exchange: Exchange) -> str:
        """The code of the rows: "affine", "rotated", or "stored" if they are sent as values of 16 or 32 bits."""
        if self.bits not in PACKED_WIDTHS:
            return "stored"
        direction = "backward" if exchange.is_backward else "forward"
        return "rotated" if direction in self.rotated and exchange.dim >= self.least_rotated else "affine"

    def row_bytes(self, exchange: Exchange) -> int:
        """Bytes of one row with its parameters."""
        return (self.bits * exchange.dim + 7) // 8 + PARAMETER_BYTES.get(self.code_of(exchange), 0)

    def rows(self, exchange: Exchange, pairs: Pairs) -> np.ndarray:
        """Rows of each pair that travel in an exchange, (n,); the expected number if some are drawn."""
        rows = pairs.rows_within[:, exchange.reach]
        return rows if self.is_exact else rows * self.share


def parse_method(text: str, size: ModelSize) -> Messages:
    """The messages of METHOD or METHOD:BITS; raises as `read_method`."""
    own = read_method(text)
    return messages_of(text, find_method(own.pop("method"))(**own), size)


def read_method(text: str) -> dict[str, Any]:
    """The settings of METHOD or METHOD:BITS.

    Raises
    ------
    ConfigError      an unknown method, one that decides widths in a run, or bits that it does not take
    """
    name, colon, bits = text.partition(":")
    if name not in METHODS:
        raise ConfigError(f"method must be one of {', '.join(KNOWN)}, uniform with its bits as in uniform:8, found "
                          f"{name!r}")
    if name not in KNOWN:
        raise ConfigError(f"{name} decides its widths in training, by losses and rows; plan uniform:1 and "
                          "uniform:8 as its lower and upper bounds, or run hpcgnn train --dry-run")
    if bool(colon) != (name == "uniform"):
        raise ConfigError(f"method {text} can't be planned: write uniform:BITS, and {name} without bits"
                          if colon else "method uniform needs its bits, as in uniform:8")
    if colon and (not bits.isdigit() or int(bits) not in BIT_WIDTHS):
        raise ConfigError(f"method {text} has bits {bits!r}; expected one of {', '.join(map(str, BIT_WIDTHS))}")
    return {"method": name, **({"bits": int(bits)} if colon else {})}


def messages_of(name: str, method: Method, size: ModelSize, code: str = "auto") -> Messages:
    """The messages of a method; ConfigError if it can't be planned in epochs of several steps."""
    if isinstance(method, PipeGCN) and size.num_steps > 1:
        raise ConfigError(f"{name} keeps gradients that come late from step to step, which hpcgnn plan does not count; "
                          "plan it with one step, or run hpcgnn train --dry-run")
    stored, is_own = 8 * size.item_bytes, code == "auto"
    return Messages(name, method.fixed_bits(stored) or stored, method.share if isinstance(method, BNS) else 1.0,
                    isinstance(method, PipeGCN), ROTATED[method.own_code() if is_own else code],
                    LEAST_ROTATED if is_own else 1)
