"""Which tables lie in memory and which on the disk, as plain numbers: the bytes are the limited arena's.

If a new table does not fit, others go to the disk: first those that last, then what the forward pass keeps, the oldest
first. `hpcgnn plan` replays a training with an `Evictions`; `LimitedArena` moves the bytes as its own decides.
"""

from __future__ import annotations

from hpcgnn.run.output import size_text

COLUMNS_TOGETHER = 8       # a range of columns is a multiple: draws for masks come in groups
ROOM_OF_SUMS = 0.75         # share of the room that the rows of one sum may take
SLACK = 10      # a tenth of a limit is left to what a process allocates between two tables


class Evictions:
    """Tables by the start of their piece, within `room` bytes of memory that a process may use.

    A subclass moves the bytes, in `_write`, `_read` and `_reserve`.
    """

    def __init__(self, room: float):
        self._room = room
        self.num_in_memory = 0      # bytes of tables
        self.others = 0             # bytes of memory that the process has besides
        self._pinned: list[int] = []      # starts of pieces that stay in memory
        self.most_in_memory = self.most_on_disk = self.most_kept = 0
        # By the start of a piece: its size; in order, what goes to the disk first; and its place in the file.
        self._size: dict[int, int] = {}
        self._lasting: dict[int, None] = {}
        self._kept: dict[int, None] = {}
        self._on_disk: dict[int, int] = {}
        self._spilled = self._fetched = 0

    def take_counts(self) -> tuple[int, int]:
        """Bytes of tables that went to the disk, and that came back, since the last call."""
        counts, self._spilled, self._fetched = (self._spilled, self._fetched), 0, 0
        return counts

    def add(self, start: int, size: int) -> None:
        self._size[start] = size
        if self._makes_room(size):
            self._hold(size)
        else:
            self._spill(start, self._reserve(start))

    def forget(self, start: int) -> tuple[int, int | None]:
        """A table that is gone: its size, and its place in the file, None if it was in memory."""
        self._kept.pop(start, None)
        self._lasting.pop(start, None)
        size, place = self._size.pop(start), self._on_disk.pop(start, None)
        self.num_in_memory -= size if place is None else 0
        return size, place

    def last(self, start: int) -> None:
        self._lasting[start] = None

    def keep(self, start: int) -> None:
        """The forward pass keeps a table for the backward pass, which first reads what was kept last."""
        if start not in self._lasting:
            self._kept.pop(start, None)
            self._kept[start] = None
            self.most_kept = max(self.most_kept, sum(self._size[kept] for kept in self._kept))

    def fetch(self, start: int) -> bool:
        """The backward pass reads a table. Whether that was on the disk."""
        self._kept.pop(start, None)
        if start not in self._on_disk or start in self._lasting:
            return False
        self._fetched += self._size[start]
        self._return(start)
        return True

    def pin(self, start: int) -> None:
        """A table is in memory, if it fits, until its `unpin`."""
        if start in self._on_disk and self._return(start):
            self._fetched += self._size[start]
        self._pinned.append(start)

    def unpin(self) -> None:
        """End the last `pin`."""
        self._pinned.pop()

    def _return(self, start: int) -> bool:
        fits = self._makes_room(self._size[start])
        if fits:
            self._read(start, self._on_disk.pop(start))
            self._hold(self._size[start])
        return fits

    def _spill(self, start: int, place: int) -> None:
        self._on_disk[start] = place
        self._spilled += self._size[start]
        self.most_on_disk = max(self.most_on_disk, sum(self._size[other] for other in self._on_disk))

    def _hold(self, size: int) -> None:
        self.num_in_memory += size
        self.most_in_memory = max(self.most_in_memory, self.num_in_memory)

    def _excess(self, num_bytes: int) -> float:
        """Bytes above the limit if the tables in memory had `num_bytes` more."""
        return self.others + self.num_in_memory + num_bytes - self._room

    def _makes_room(self, num_bytes: int) -> bool:
        """Whether `num_bytes` more fit into memory, after tables that are read late went to the disk."""
        for start in [*self._lasting, *self._kept]:
            if self._excess(num_bytes) <= 0:
                break
            if start not in self._on_disk and start not in self._pinned:
                self._spill(start, self._write(start))
                self.num_in_memory -= self._size[start]
        return self._excess(num_bytes) <= 0

    def _write(self, start: int) -> int:
        return 0

    def _read(self, start: int, place: int) -> None:
        """Read a table from its place on the disk."""

    def _reserve(self, start: int) -> int:
        return 0


def columns_of_a_range(row_bytes: int | None, dim: int, item_bytes: int) -> int:
    """How many of `dim` columns are summed at a time, if `row_bytes` bytes of a row may be in memory; None: any."""
    most = dim if row_bytes is None else row_bytes // item_bytes
    if dim <= most:
        return dim
    most = max(COLUMNS_TOGETHER, most // COLUMNS_TOGETHER * COLUMNS_TOGETHER)
    even = -(-dim // -(-dim // most))
    return min(dim, -(-even // COLUMNS_TOGETHER) * COLUMNS_TOGETHER)


def row_bytes_that_fit(room: float, num_inner: int, num_halo: int, num_sent: int) -> int:
    """Bytes of a row that a rank may sum at once: of its inner and halo rows, their sums, and its messages."""
    return int(room * ROOM_OF_SUMS / max(1, 2 * num_inner + 2 * num_halo + num_sent))


def too_little(limit: int, slack: int, others: float, num_ranks: int) -> str | None:
    """Why a rank's `limit` is less than the `others` bytes that can't leave its memory; None if it is more.

    `num_ranks` share the machine.
    """
    room = limit - slack
    if others < room:
        return None
    share = f" leaves each of {num_ranks} ranks {size_text(limit)}" if num_ranks > 1 else " is too little"
    return (f"memory {size_text(limit * num_ranks)}{share}, and {size_text(others)} can't leave memory: the process, "
            f"edges and messages; set --memory to more than {size_text(others * num_ranks * limit / room)}, or use "
            "more machines")
