"""An arena within a limit of memory: tables that do not fit lie in a file on a local disk, at unchanged addresses.

If a new tensor does not fit, tables go to the disk: first those that stay for long, such as the features, then what
the forward pass keeps, the oldest first, since the backward pass reads it last. A table is written to the file, and the
file is mapped in its place, so that all tensors that show it stay as they are. The backward pass reads it back into
memory in one go. Example with room for three tables: the forward pass makes a, b and c, and keeps all three. When it
makes d, a goes to the disk; when the backward pass reads a, it has freed d, c and b. If nothing can leave memory, the
new tensor itself is made in the file.

The file has no name: it is gone when the process ends, however it ends, and two runs never meet in it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

from hpcgnn.errors import TrainingError
from hpcgnn.ops.arena import LIBC, MAP_NORESERVE, Arena, addresses, system_moves_pages, using
from hpcgnn.ops.evictions import Evictions, too_little
from hpcgnn.ops.pieces import Pieces
from hpcgnn.run.output import size_text

KEEP_SIZE, PUNCH_HOLE = 1, 2                    # from linux/falloc.h
WAIT_BEFORE, WRITE, WAIT_AFTER = 1, 2, 4        # from linux/fs.h, of sync_file_range
MAP_FIXED = 0x10                                # from sys/mman.h
BLOCK = 1 << 23                                 # bytes that are written or read at once
PROBE = 4 * BLOCK       # bytes that rates are measured with
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")      # file systems that lie in memory

LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
LIBC.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
LIBC.mmap.restype = ctypes.c_void_p


class DiskUse(NamedTuple):
    """Bytes of one rank since the last count. The system's own counts are 0 where it has none for a process."""

    spilled: int = 0      # of tables that were written to the disk, or are made there
    fetched: int = 0      # of tables that the backward pass read from it
    written: int = 0      # that the system wrote to disks for this process
    read: int = 0         # that it read from them


class ScratchFile:
    """A file without a name in a folder, whose blocks are reserved before they are written.

    Raises TrainingError: the folder is missing, not writable or in memory, or can't give back parts of a file.
    """

    def __init__(self, folder: Path):
        self.folder, self._places, self.num_bytes, self.most_bytes = folder, Pieces(0, 1 << 60), 0, 0
        kind = file_system_of(folder)
        if kind in IN_MEMORY:
            raise TrainingError(f"scratch {folder} lies in memory ({kind}); name a folder on a local disk by "
                                "--set scratch=FOLDER")
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)      # noqa: SIM115, closed with its arena
        except OSError as error:
            raise TrainingError(f"scratch {folder} can't be written: {error.strerror}; name a folder on a local disk "
                                "by --set scratch=FOLDER") from error
        self.give_back(self.take(mmap.PAGESIZE), mmap.PAGESIZE)

    @property
    def number(self) -> int:
        return self._file.fileno()

    def take(self, num_bytes: int) -> int:
        """Reserve blocks on the disk and return their place in the file; TrainingError if the disk is full."""
        offset = self._places.take(num_bytes)
        try:
            os.posix_fallocate(self.number, offset, num_bytes)
        except OSError as error:
            raise TrainingError(
                f"scratch {self.folder} can't take {size_text(num_bytes)} more beside the {size_text(self.num_bytes)} "
                f"of this rank: {error.strerror}; free space there, name another folder by --set scratch=FOLDER, or "
                "set more --memory") from error
        self.num_bytes += num_bytes
        self.most_bytes = max(self.most_bytes, self.num_bytes)
        return offset

    def give_back(self, offset: int, num_bytes: int) -> None:
        if LIBC.fallocate(self.number, KEEP_SIZE | PUNCH_HOLE, offset, num_bytes):
            raise TrainingError(f"scratch {self.folder} can't give back parts of a file; name a folder on a local "
                                "file system, such as ext4 or xfs, by --set scratch=FOLDER")
        self._places.give_back(offset, num_bytes)
        self.num_bytes -= num_bytes

    def write(self, rows: memoryview, offset: int) -> None:
        """Write by blocks; a block leaves the page cache while the next one is on its way to the disk."""
        with self._working("written"):
            for start in range(0, len(rows), BLOCK):
                done, stop = start, min(start + BLOCK, len(rows))
                while done < stop:
                    done += os.pwrite(self.number, rows[done:stop], offset + done)
                self._sync(offset + start, BLOCK, WRITE)
                if start:
                    self._drop(offset + start - BLOCK, BLOCK)
            self._drop(offset, len(rows))

    def read(self, rows: memoryview, offset: int) -> None:
        os.posix_fadvise(self.number, offset, len(rows), os.POSIX_FADV_SEQUENTIAL)
        done = 0
        with self._working("read"):
            while done < len(rows):
                done += os.preadv(self.number, [rows[done:done + BLOCK]], offset + done)

    def read_ahead(self, offset: int, num_bytes: int) -> None:
        os.posix_fadvise(self.number, offset, num_bytes, os.POSIX_FADV_WILLNEED)

    def rates(self) -> tuple[float, float]:
        """Bytes per second of writing and of reading PROBE bytes, each measured once."""
        rows = memoryview(bytearray(PROBE))
        place, started = self.take(PROBE), time.perf_counter()
        self.write(rows, place)
        written = time.perf_counter()
        self.read(rows, place)
        read = time.perf_counter()
        self.give_back(place, PROBE)
        return PROBE / (written - started), PROBE / (read - written)

    def _sync(self, offset: int, num_bytes: int, flags: int) -> None:
        if LIBC.sync_file_range(self.number, offset, num_bytes, flags):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _drop(self, offset: int, num_bytes: int) -> None:
        self._sync(offset, num_bytes, WAIT_BEFORE | WRITE | WAIT_AFTER)
        os.posix_fadvise(self.number, offset, num_bytes, os.POSIX_FADV_DONTNEED)

    @contextmanager
    def _working(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TrainingError(f"scratch {self.folder} can't be {done}: the disk reports an error; see the system's "
                                "log, and name another folder by --set scratch=FOLDER") from error


class LimitedArena(Evictions, Arena):
    """An arena of a process that may use `limit` bytes of memory in all; what exceeds them lies in `folder`.

    `slack` of these bytes are left to what the process allocates itself between two tensors.

    Raises TrainingError as `ScratchFile`, OSError if the system refuses the mapping.
    """

    is_limited = True

    def __init__(self, limit: int, folder: Path, num_bytes: int | None = None, can_move: bool | None = None,
                 slack: int = 0):
        Arena.__init__(self, addresses() if num_bytes is None else num_bytes,
                       system_moves_pages() if can_move is None else can_move)
        Evictions.__init__(self, limit - slack)
        self.limit, self.slack, self.file = limit, slack, ScratchFile(folder)
        self._view = memoryview(self._mapping)
        self._offset = self.address - ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self._counted, self._mapped = _disk_counts(), _resident_bytes("RssFile:")

    @contextmanager
    def in_use(self) -> Iterator[LimitedArena]:
        with using(self):
            yield self
        self._take_returned()

    def keep_long(self, tensor: torch.Tensor) -> None:
        start = self._start_of(tensor)
        if start is not None:
            self.last(start)

    def set_aside(self, tensor: torch.Tensor) -> None:
        self._note_kept(tensor)

    def make_room(self, num_bytes: int) -> None:
        self._take_returned()
        self._measure_others()
        self._makes_room(num_bytes)

    def keeping(self) -> AbstractContextManager:
        return torch.autograd.graph.saved_tensors_hooks(self._note_kept, self._fetch)

    @contextmanager
    def _pinning(self, start: int) -> Iterator[None]:
        self._take_returned()
        self.pin(start)
        try:
            yield
        finally:
            self.unpin()

    def in_memory(self, tensor: torch.Tensor) -> AbstractContextManager:
        start = self._start_of(tensor)
        return nullcontext() if start is None else self._pinning(start)

    @property
    def room_for_tables(self) -> int:
        """Bytes that tables may have in memory beside what the process holds."""
        return self.limit - self.slack - self.others

    def take_use(self) -> DiskUse:
        counts = _disk_counts()
        use = DiskUse(*self.take_counts(), *(now - then for now, then in zip(counts, self._counted, strict=True)))
        self._counted = counts
        return use

    def check_limit(self, num_ranks: int) -> None:
        """TrainingError if the process, without its tables, exceeds the limit; `num_ranks` share the machine."""
        self.others = 0      # what was there while the part was read is gone
        self._measure_others()
        reason = too_little(self.limit, self.slack, self.others, num_ranks)
        if reason is not None:
            raise TrainingError(reason)

    def _start_of(self, tensor: torch.Tensor) -> int | None:
        if tensor.layout is not torch.strided:
            return None
        start = tensor.untyped_storage().data_ptr() - self.address
        return start if start in self._size else None

    def _note_kept(self, tensor: torch.Tensor) -> torch.Tensor:
        start = self._start_of(tensor)
        if start is not None:
            self.keep(start)
        return tensor

    def _fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        start = self._start_of(tensor)
        if start is not None and self.fetch(start):
            # While the backward pass computes, the system reads what it reads next.
            before = [other for other in self._kept if other in self._on_disk]
            if before and self._excess(self._size[before[-1]]) <= 0:
                self.file.read_ahead(self._on_disk[before[-1]], self._size[before[-1]])
        return tensor

    def _take(self, num_bytes: int) -> tuple[int, int]:
        self._take_returned()
        self._measure_others()
        start, size = super()._take(num_bytes)
        self.add(start, size)
        if self._excess(self._places.num_free) > 0:
            for free, num_free in self._places.drop_free():
                LIBC.madvise(self.address + free, num_free, mmap.MADV_DONTNEED)
        # Pages of the file that were read leave the process; the system keeps them while it has memory.
        if self._on_disk and self._excess(_resident_bytes("RssFile:") - self._mapped) > 0:
            for other in self._on_disk:
                LIBC.madvise(self.address + other, self._size[other], mmap.MADV_DONTNEED)
        return start, size

    def _take_returned(self) -> None:
        while self.returned:
            start, _ = self.returned.popleft()
            size, place = self.forget(start)
            if place is not None:
                self._unmap(start, size)
                self.file.give_back(place, size)
            elif not self._places.keeps_memory(start):
                LIBC.madvise(self.address + start, size, mmap.MADV_DONTNEED)
            self._places.give_back(start, size, has_memory=place is None)

    def _measure_others(self) -> None:
        self.others = max(self.others, process_bytes() - self.num_in_memory - self._places.num_free)

    def _write(self, start: int) -> int:
        size = self._size[start]
        place = self.file.take(size)
        self.file.write(self._memory(start, size), place)
        _mapped(self.address + start, size, mmap.MAP_SHARED, self.file.number, place)
        return place

    def _read(self, start: int, place: int) -> None:
        size = self._size[start]
        self._unmap(start, size)
        self.file.read(self._memory(start, size), place)
        self.file.give_back(place, size)

    def _reserve(self, start: int) -> int:
        place = self.file.take(self._size[start])
        _mapped(self.address + start, self._size[start], mmap.MAP_SHARED, self.file.number, place)
        return place

    def _unmap(self, start: int, size: int) -> None:
        _mapped(self.address + start, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)

    def _memory(self, start: int, size: int) -> memoryview:
        return self._view[self._offset + start:self._offset + start + size]


def _mapped(address: int, num_bytes: int, flags: int, number: int, offset: int) -> None:
    """Replace the pages at an address; huge pages where they are memory."""
    found = LIBC.mmap(address, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags | MAP_FIXED, number, offset)
    if found != address:
        raise MemoryError(f"the system refused to map {num_bytes} bytes")
    if number < 0:
        LIBC.madvise(address, num_bytes, mmap.MADV_HUGEPAGE)


def process_bytes() -> int:
    return _resident_bytes("RssAnon:", "RssShmem:")


def _resident_bytes(*kinds: str) -> int:
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        return sum(1024 * int(line.split()[1]) for line in status if line.startswith(kinds))


def _disk_counts() -> tuple[int, int]:
    try:
        found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    except OSError:
        return 0, 0
    return int(found["write_bytes"]), int(found["read_bytes"])


def file_system_of(folder: Path) -> str:
    """Kind of the file system that a folder lies in; "" if the system does not say."""
    try:
        device = os.stat(folder).st_dev
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    at = f"{os.major(device)}:{os.minor(device)}"
    return next((line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == at), "")
