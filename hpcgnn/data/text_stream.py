"""Text files as clean lines: unpacked, in UTF-8, ended by line feeds and without comments, a block of lines at a time.

A file is recognized by its content, not its name: gzip, bzip2, xz, zstd, LZ4 or zip; UTF-8, or UTF-16 with a byte order
mark. A folder or a pattern such as `edges/*.csv` stands for its files by name, part-9 before part-10.
"""

from __future__ import annotations

import codecs
import glob
import gzip
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

import numpy as np

from hpcgnn.data.options import ProgressTask, check_file
from hpcgnn.errors import DatasetError

BLOCK_BYTES = 1 << 22      # the reader holds some blocks ahead
MAX_LINE_BYTES = 1 << 26
MAGIC_BYTES = 512
BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
PACKINGS = {"gzip": b"\x1f\x8b", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0", "zstd": b"\x28\xb5\x2f\xfd",
            "lz4": b"\x04\x22\x4d\x18", "zip": b"PK"}
HDF5 = "an HDF5 file; write its arrays as .npz"
# First bytes of files that hold no text, or pack it in an unsupported way.
OTHERS = {b"PAR1": "a Parquet file; read it by parquet:", b"ARROW1": "an Arrow file; write it as Parquet or CSV",
          b"FEA1": "a Feather file; write it as Parquet or CSV", b"ORC": "an ORC file; write it as Parquet or CSV",
          b"\x89HDF": HDF5, b"MATLAB 7.3": HDF5,
          b"\x93NUMPY": "an array of NumPy; npz: reads archives of them",
          b"7z\xbc\xaf'\x1c": "packed by 7-Zip; unpack it", b"\x1f\x9d": "packed by compress; unpack it",
          b"Rar!": "packed by RAR; unpack it", b"SQLite format 3": "a SQLite database; write its tables as CSV",
          **dict.fromkeys((b"\x80\x03", b"\x80\x04", b"\x80\x05"), "a pickle; write it as CSV or .npy"),
          b"\xd0\xcf\x11\xe0": "an Excel file; save it as CSV",
          b"MATLAB 5.0": "a MATLAB file; read it by scipy.io.loadmat and pass its matrices to hpcgnn.preprocess"}
# A file in a zip archive that shows what it is.
IN_ZIP = {"[Content_Types].xml": "an Excel file; save it as CSV", "data.pkl": "a file of torch.save; write it as .npy",
          ".npy": "an archive of NumPy or SciPy; write one array as .npy",
          "content.xml": "a LibreOffice file; save it as CSV"}
NO_TEXT = re.compile(rb"[\0-\x08\x0e-\x1a\x80-\xff]")
# Texts that are no tables.
FORMS = ((re.compile(rb"\s*(<[?!][^>]*>\s*)*<(graphml|gexf)\b", re.IGNORECASE),
          "a graph of GraphML or GEXF; read it by networkx and pass the graph to hpcgnn.preprocess"),
         (re.compile(rb"\s*<(\?xml|!doctype|html)", re.IGNORECASE), "XML or a web page; expected the file itself"),
         (re.compile(rb'\s*(\{\s*["}]|\[\s*[\[{"])'), "JSON; write it as CSV"),
         (re.compile(rb"\s*(Creator\b[^\[]*)?graph\s*\[|\*vertices\b|(strict\s+)?(di)?graph\b[^\n]*\{", re.IGNORECASE),
          "a graph of GML, Pajek or Graphviz; read it by networkx and pass the graph to hpcgnn.preprocess"),
         (re.compile(rb"version https://git-lfs"), "a pointer of Git LFS; fetch the file itself by git lfs pull"))
TAR_AT, TAR = 257, b"ustar"
MARKS, KEPT_COMMENTS = b"#%", 8
EXCEL = re.compile(rb'"?sep=.?"?[ \t]*\n', re.IGNORECASE)      # names the separator; rows show it anyway
MATRIX_MARKET = b"%%matrixmarket"
EMPTY_LINES = re.compile(rb"[ \t\n]*\n")
BLANK_RUN = re.compile(rb'("[^"]*")|([ \t]*\n[ \t]*|[ \t]+)')
BLANK_LINE = re.compile(rb"^[ \t]+\n", re.MULTILINE)


# Forms of paths that a shell or a browser would take.
NO_PATHS = ((re.compile(r"\w\w+:/"), ": download it, and name the file"),
            (re.compile("~"), ": write the path of the home folder for ~"),
            (re.compile("-$"), ": standard input is not read, so write it to a file"))


def parts_of(path: Path, kinds: str) -> list[Path]:
    """The files of a path, sorted by name.

    Hidden files, and files that begin with _ or end with .crc, are skipped: Spark and Dask write them next to the data.

    Parameters
    ----------
    path : Path            a file, a folder, or a pattern with *, ? or [
    kinds : str            expected kinds of files, for a sentence
    """
    if not path.exists() and any(mark in str(path) for mark in "*?["):
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]
    elif path.is_dir():
        found = [Path(folder) / name for folder, _, names in os.walk(path) for name in names]
    else:
        if not os.path.lexists(path):
            path.stat() if len(path.name) > 255 else None
            hint = next((hint for form, hint in NO_PATHS if form.match(str(path))), "")
            raise DatasetError(f"{path} does not exist; expected {kinds}{hint}")
        check_file(path)
        return [path]
    depth = 0 if path.is_dir() else 1
    found = sorted((file for file in found if file.is_file() and not file.name.endswith(".crc") and not any(
        part.startswith(("_", ".")) for part in (file.relative_to(path).parts if depth == 0 else file.parts[-1:]))),
        key=_by_number)
    if not found:
        what = "is a folder without files" if path.is_dir() else "is a pattern that fits no file"
        raise DatasetError(f"{path} {what}; expected {kinds}, or a folder or pattern of such")
    return found


def _by_number(file: Path) -> list[tuple[str, int]]:
    # A key that sorts names with the numbers in them by value.
    return [(text, int(number or 0)) for text, number in re.findall(r"(\D*)(\d*)", str(file))]


NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def keys_of(file: Path, folder: Path) -> dict[str, str]:
    """Columns and values in the names of folders, as Hive, Spark and Dask write them."""
    fixed = len(folder.parts) if folder.is_dir() or file == folder else next(
        place for place, part in enumerate(folder.parts) if any(mark in part for mark in "*?["))
    parts = file.parts[fixed:-1]
    return {key: "" if value == NO_VALUE else unquote(value)
            for key, equals, value in (part.partition("=") for part in parts) if equals and key}


def name_of(path: Path) -> str:
    """Name of the dataset in these files: up to the first dot, or the folder's name for a pattern."""
    name = path.name
    if any(mark in name for mark in "*?[") and not path.exists():
        name = re.split(r"[*?\[]", name)[0].rstrip("-_.") or path.parent.name
    # KONECT calls every file of edges out.NAME.
    return name[len("out."):].split(".")[0] if name.startswith("out.") and len(name) > 4 else name.split(".")[0]


class TextStream:
    """Clean lines of one text file.

    Parameters
    ----------
    task : ProgressTask            advances by bytes of the file as it is stored

    Attributes
    ----------
    num_comments : int             comment lines skipped so far
    comments : list of str         the first comment lines
    head : list of bytes           lines before the data that begin with # or % and a letter: comments, or data
    """

    def __init__(self, path: Path, task: ProgressTask | None = None) -> None:
        self.path, self._task = path, task or ProgressTask()
        self.num_comments = 0
        self.comments: list[str] = []
        self.head: list[bytes] = []
        self._in_head, self._quotes = True, 0

    def blocks(self) -> Iterator[bytes]:
        """Read whole lines, about BLOCK_BYTES at a time."""
        for lines in self._lines():
            if kept := self._without_comments(lines):
                yield kept

    def _unpacked(self) -> Iterator[bytes]:
        check_file(self.path)
        try:
            with self.path.open("rb") as raw:
                stream, done = self._opened(raw), 0
                while block := stream.read(BLOCK_BYTES):
                    yield block
                    self._task.advance(raw.tell() - done)
                    done = raw.tell()
        except DatasetError:
            raise
        except FileNotFoundError:
            raise DatasetError(f"{self.path} does not exist; expected a text table") from None
        except ImportError as error:
            raise DatasetError(f"{self.path} is packed in a way that this Python can't read ({error}); unpack it"
                               ) from None
        except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError,
                ValueError) as error:
            raise DatasetError(f"{self.path} can't be read ({error}); it is truncated or damaged") from None

    def _opened(self, raw: BinaryIO) -> BinaryIO:
        start = raw.read(MAGIC_BYTES)
        raw.seek(0)
        self._refuse_others(start)
        packing = next((name for name, magic in PACKINGS.items() if start.startswith(magic)), None)
        if packing == "gzip":
            return gzip.GzipFile(fileobj=raw)
        if packing == "bzip2" and start[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
            import bz2
            return bz2.BZ2File(raw)
        if packing == "xz":
            import lzma
            return _Raising(lzma.LZMAFile(raw), lzma.LZMAError)
        if packing in ("zstd", "lz4"):
            import pyarrow
            return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, "r"), packing)
        if packing == "zip" and start[2:4] in (b"\x03\x04", b"\x05\x06"):
            archive = zipfile.ZipFile(raw)
            members = [member for member in archive.infolist() if not member.is_dir()
                       and not member.filename.startswith("__MACOSX/")]
            what = next((what for member in members for name, what in IN_ZIP.items()
                         if member.filename.split("/")[-1] == name or name == member.filename[-4:]), None)
            if what is not None:
                raise DatasetError(f"{self.path} is no text table but {what}")
            if len(members) != 1:
                raise DatasetError(f"{self.path} is a zip archive of {len(members)} files; expected one, so unpack it "
                                   "and name the file")
            return archive.open(members[0])
        return raw

    def _refuse_others(self, start: bytes) -> None:
        what = next((what for mark, what in OTHERS.items() if start.startswith(mark)), None)
        if what is not None and NO_TEXT.search(start):
            raise DatasetError(f"{self.path} is no text table but {what}")
        what = next((what for form, what in FORMS if form.match(start)), None)
        if what is not None:
            raise DatasetError(f"{self.path} is no text table but {what}")
        if start[TAR_AT:TAR_AT + len(TAR)] == TAR:
            raise DatasetError(f"{self.path} is no text table but a tar archive; unpack it and name the file")

    def _utf8(self) -> Iterator[bytes]:
        blocks = self._unpacked()
        start = next(blocks, b"")
        while len(start) < 4 and (more := next(blocks, b"")):
            start += more
        self._refuse_others(start[:MAGIC_BYTES])
        packing = next((name for name, magic in PACKINGS.items() if start.startswith(magic)), None)
        if packing is not None and b"\0" in start:
            raise DatasetError(f"{self.path} is packed twice, inside by {packing}; unpack it once")
        mark, encoding = next(((mark, encoding) for mark, encoding in BOMS if start.startswith(mark)), (b"", "utf-8"))
        if encoding == "utf-8":
            yield start[len(mark):]
            yield from blocks
            return
        decoder = codecs.getincrementaldecoder(encoding)()
        try:
            for block in chain([start], blocks):
                yield decoder.decode(block).encode()
            decoder.decode(b"", final=True)
        except UnicodeError as error:
            raise DatasetError(f"{self.path} begins as {encoding.upper()} and is none ({error}); write it anew in "
                               "UTF-8") from None

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        for block in self._utf8():
            if b"\0" in block:
                raise DatasetError(f"{self.path} holds zero bytes, so it is no text in UTF-8; expected a table in "
                                   "UTF-8 or, with a byte order mark, UTF-16")
            block = rest + block
            end = b""
            if b"\r" in block:
                # A carriage return at the end may be the first half of a line end.
                block, end = (block[:-1], b"\r") if block.endswith(b"\r") else (block, b"")
                block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            cut = block.rfind(b"\n") + 1
            if cut:
                yield block[:cut]
            rest = block[cut:] + end
            if len(rest) > MAX_LINE_BYTES:
                raise DatasetError(f"{self.path} has a line of more than {MAX_LINE_BYTES >> 20} MiB; expected one row "
                                   "per line")
        if rest.strip():
            yield rest.rstrip(b"\r") + b"\n"

    def _without_comments(self, lines: bytes) -> bytes:
        if self._in_head:
            lines = self._without_head(lines)
        if b"#" not in lines and b"%" not in lines:
            self._quotes += lines.count(b'"')
            return lines
        kept, begin = [], 0
        for found in re.finditer(rb"^[#%](?=[#%]*[ \t\n]).*\n", lines, re.MULTILINE):
            between = lines[begin:found.start()]
            self._quotes += between.count(b'"')
            kept.append(between)
            begin = found.end()
            if self._quotes % 2:      # inside of a quoted cell of several lines
                self._quotes += found.group().count(b'"')
                kept.append(found.group())
            else:
                self.skip(found.group())
        self._quotes += lines.count(b'"', begin)
        kept.append(lines[begin:])
        return b"".join(kept)

    def _without_head(self, lines: bytes) -> bytes:
        # Skip comments and empty lines before the data; lines that may be data are kept in `head`.
        start = 0
        while start < len(lines):
            if lines[start] in b" \t\n" and (empty := EMPTY_LINES.match(lines, start)):
                start = empty.end()
                continue
            end = lines.index(b"\n", start) + 1
            if start == 0 and EXCEL.fullmatch(lines, start, end):
                start = end
                continue
            if lines[start] not in MARKS:
                break
            line = lines[start:end]
            if line.lstrip(MARKS)[:1] in b" \t\n" or line.lower().startswith(MATRIX_MARKET):
                self.skip(line)
            else:
                self.head.append(line)
            start = end
        self._in_head = start >= len(lines)
        return lines[start:]

    def skip(self, line: bytes) -> None:
        """Count a line as a comment."""
        self.num_comments += 1
        if len(self.comments) < KEPT_COMMENTS:
            self.comments.append(line.decode(errors="replace").strip())


class _Raising:
    """A stream of a library with its own exception, which becomes an OSError."""

    def __init__(self, stream: BinaryIO, error: type[Exception]) -> None:
        self._stream, self._error = stream, error

    def read(self, num_bytes: int) -> bytes:
        try:
            return self._stream.read(num_bytes)
        except self._error as reason:
            raise OSError(str(reason)) from None


def with_single_blanks(lines: bytes) -> bytes:
    """Lines with one blank between cells and none around them."""
    if b'"' in lines:
        return BLANK_RUN.sub(lambda found: found[1] or found[2].strip(b" \t") or b" ", lines).lstrip(b" ")
    if b"\t" in lines:
        lines = lines.replace(b"\t", b" ")
    if not _has_adjacent_blanks(lines):
        return lines
    while b"  " in lines:
        lines = lines.replace(b"  ", b" ")
    return lines.replace(b"\n ", b"\n").replace(b" \n", b"\n").removeprefix(b" ")


def without_blank_lines(lines: bytes) -> bytes:
    return BLANK_LINE.sub(b"", lines) if _has_adjacent_blanks(lines) else lines


def _has_adjacent_blanks(lines: bytes) -> bool:
    is_blank = np.frombuffer(lines, np.uint8) < 33
    return bool(is_blank[:1].any() or (is_blank[1:] & is_blank[:-1]).any())
