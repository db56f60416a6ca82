"""SourceOptions: how a source graph is read and cleaned; the settings of a specification; and the progress of long
reads.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.errors import DatasetError


def check_file(path: Path) -> None:
    """Raise DatasetError if a path is not a file, such as a pipe on which a reader could wait for ever.

    A missing or unreadable path passes: opening it says why.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise DatasetError(f"{path} is {kind}; expected a file")


@contextmanager
def reading(path: Path, expected: str, fault: str) -> Iterator[None]:
    """Turn any error of a library that reads a file into a DatasetError; `fault` is the sentence around it."""
    check_file(path)
    try:
        yield
    except (DatasetError, MemoryError):
        raise
    except FileNotFoundError:
        raise DatasetError(f"{path} does not exist; expected {expected}") from None
    except Exception as error:      # a damaged file can raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = "its first bytes show another kind of file" if "allow_pickle" in reason else reason
        raise DatasetError(f"{path} {fault.format(reason)}") from None


def check_memory(name: str, what: str, num_bytes: int) -> None:
    """Raise DatasetError if arrays of this many bytes do not fit into memory.

    The system promises more memory than it has, and kills the process that uses it.
    """
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if num_bytes > available:
        raise DatasetError(f"{name} has {what}, which take {num_bytes / 1e9:,.0f} GB or more, and this machine has "
                           f"{available / 1e9:,.0f} GB; look for a wrong number in the source, or use a larger machine")


NOTHING = "none"
BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def split_settings(text: str, valid: tuple[str, ...], source: str) -> dict[str, str]:
    """Split "a=1,b=2" into {"a": "1", "b": "2"}."""
    settings: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        key, equals, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in valid:
            raise DatasetError(f"{source} has no setting {item!r}; expected NAME=VALUE with NAME one of "
                               f"{', '.join(valid)}")
        if key in settings:
            raise DatasetError(f"{source} gives {key} twice; expected it once")
        settings[key] = value.strip()
        if not settings[key]:
            raise DatasetError(f"{source} gives {key} no value; write {key}=VALUE, or leave it out")
    return settings


def split_path(rest: str, valid: tuple[str, ...], source: str) -> tuple[str, dict[str, str]]:
    """Split "PATH,a=1,b=2" into the path, which may hold commas, and its settings; see split_settings."""
    path, settings = (*re.split(rf",(?=(?:{'|'.join(valid)})=)", rest, maxsplit=1), "")[:2]
    if (odd := re.search(r",([\w-]+)=", path)) and not os.path.exists(path) and os.path.exists(path[:odd.start()]):
        split_settings(path[odd.start() + 1:], valid, source)      # says which setting is unknown
    if not path:
        raise DatasetError(f"{source} names no file; write its path after the colon")
    return path, split_settings(settings, valid, source)


def choice_of(text: str | None) -> str | bool | None:
    """The choice of a setting: False for "none", None if it is not given."""
    return False if text == NOTHING else text


def convert_setting(key: str, text: str, kind: type, source: str) -> int | float | bool:
    """Convert one value to `kind`: int (1e6 is accepted), float or bool."""
    try:
        if kind is bool:
            return BOOLEANS[text.lower()]
        if kind is float:
            return float(text)
        return int(text) if "e" not in text.lower() else _whole(float(text))
    except (ValueError, KeyError, OverflowError):
        expected = {bool: "true or false", float: "a number", int: "a whole number"}[kind]
        raise DatasetError(f"{source} has {key}={text!r}; expected {expected}") from None


def _whole(value: float) -> int:
    if not value.is_integer():
        raise ValueError(value)
    return int(value)


NON_FINITE = ("error", "zero")
FEATURES = ("auto", "given", "structural")
NORMALIZATIONS = ("auto", "none", "row", "standard")
TASKS = ("auto", "classes", "multi-label", "regression")


class ProgressTask:
    """A long step under way; here one that nobody watches."""

    def advance(self, amount: float) -> None:
        """Report that another `amount` of the total is done."""


def silent(description: str, total: float | None) -> ProgressTask:
    """Start a step that is not shown."""
    return ProgressTask()


Progress = Callable[[str, "float | None"], ProgressTask]


def _two_numbers(values: Any, name: str, example: str) -> tuple[float, float]:
    try:
        first, second = values
        return float(first), float(second)
    except (TypeError, ValueError):
        raise DatasetError(f"{name} is {values!r}; expected two numbers, as in {name}={example}") from None


@dataclass(frozen=True)
class SourceOptions:
    """How to read a source; `hpcgnn.preprocess` describes each option. The others:

    feature_kind : {"auto", "given", "structural"}   the source's features, or features made from the graph; auto makes
                                                     them if the source has none
    is_public : bool            the source is a public dataset by its name, not a user's file or object
    scratch : Path or None      folder for unnamed files of features and edges; None keeps them in memory
    """

    seed: int = 0
    symmetrize: bool = False
    root: str | Path | None = None
    non_finite: str = "error"
    feature_kind: str = "given"
    normalize_features: str = "none"
    split: tuple[float, float] = (0.6, 0.2)
    make_labels: int | None = None
    task: str = "auto"
    hold_out: tuple[float, float] = (0.0, 0.0)      # shares of links that are drawn for validation and for test
    hold_out_relation: str = ""      # whose links alone are drawn; all by default
    val_links: Any = None      # held-out links: an array or table of ends, see `as_ends`
    test_links: Any = None
    is_public: bool = False
    progress: Progress = silent
    scratch: Path | None = None

    @property
    def holds_out(self) -> bool:
        """Whether links are held out."""
        return any(self.hold_out) or self.val_links is not None or self.test_links is not None

    def __post_init__(self) -> None:
        for name, value, choices in (("non-finite", self.non_finite, NON_FINITE), ("task", self.task, TASKS),
                                     ("features", self.feature_kind, FEATURES),
                                     ("normalize-features", self.normalize_features, NORMALIZATIONS)):
            if value not in choices:
                raise DatasetError(f"{name} is {value!r}; expected one of {', '.join(choices)}")
        train, val = _two_numbers(self.split, "split", "(0.6, 0.2)")
        if not (0 < train <= 1 and 0 <= val <= 1 - train + 1e-12):
            raise DatasetError(f"split fractions are {train} for training and {val} for validation; "
                               "expected a positive and a non-negative number that sum to at most 1")
        val, test = _two_numbers(self.hold_out, "hold_out", "(0.05, 0.1)")
        if not (0 <= val < 1 and 0 <= test < 1 and val + test < 1):
            raise DatasetError(f"hold-out shares are {val} for validation and {test} for test; expected two numbers "
                               "from 0 that sum to less than 1")
        if self.hold_out_relation and not any(self.hold_out):
            raise DatasetError(f"the relation to hold out is {self.hold_out_relation!r}, which has no effect without "
                               "shares; add --hold-out, such as --hold-out 0.1 0.1")
        if self.make_labels is not None and self.make_labels < 2:
            raise DatasetError(f"make-labels is {self.make_labels}; expected at least 2 classes")
        if self.seed < 0:
            raise DatasetError(f"seed is {self.seed}; expected a non-negative integer")
