"""WhatWasRead: how the columns of a source were understood, and what is dubious, as `preprocess` prints it.

A reader notes in `Origins` where ids, weights, features, labels and splits were and what it did not use; `describe`
adds the counts.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

DUBIOUS = "dubious"
WIDTH, INDENT = 80, 11
Line = tuple[str, str]


@dataclass(frozen=True)
class Origins:
    """Where a source holds the data that was read, in words such as "column field of papers.csv"; empty if unknown.

    feature_names : tuple of str       names of the columns of features, in order
    skipped : tuple of str             lines or rows left out and why, as "3 lines of a.csv that start with #"
    unused : tuple of str              columns, attributes and arrays that were not used
    others : tuple of str              other columns or attributes of nodes; the intended labels may be among them
    way : str                          how a user names other labels than those that were found
    place : str                        a column of coordinates next to labels called y, if the labels were not named
    dubious : tuple of str             warnings about guesses that may be wrong, with the option that changes them
    """

    ids: str = ""
    weights: str = ""
    relations: str = ""
    edge_attr: str = ""
    features: str = ""
    feature_names: tuple[str, ...] = ()
    labels: str = ""
    splits: str = ""
    skipped: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    way: str = "label=COLUMN (labels=COLUMN in Python)"
    place: str = ""
    dubious: tuple[str, ...] = ()


NOWHERE = Origins()
NO_WEIGHTS = "none, as asked"


@dataclass(frozen=True)
class WhatWasRead:
    """How a source was understood, as lines of (topic, text); as text, the screen that `hpcgnn preprocess` prints."""

    lines: tuple[Line, ...] = ()

    def of(self, topic: str) -> tuple[str, ...]:
        """Texts of one topic, such as "labels"."""
        return tuple(text for known, text in self.lines if known == topic)

    @property
    def dubious(self) -> tuple[str, ...]:
        """Warnings about guesses that may be wrong."""
        return self.of(DUBIOUS)

    def __str__(self) -> str:
        return "\n".join(text for topic, line in self.lines for text in _wrapped(topic, line))


def _wrapped(topic: str, text: str) -> list[str]:
    head = f"! {topic}" if topic == DUBIOUS else f"  {topic}"
    return textwrap.wrap(text, WIDTH, initial_indent=f"{head:<{INDENT}} ", subsequent_indent=" " * (INDENT + 1),
                         break_long_words=False, break_on_hyphens=False) or [head]


NOTHING_READ = WhatWasRead()
