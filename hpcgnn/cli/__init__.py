"""One file a command, and what they share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class GivenPath(click.Path):
    """A path that is not empty; Python would take an empty one, from an unset variable of a shell, for this folder.

    A shell leaves the ~ of --out=~/runs, which means the home folder.
    """

    def __init__(self, **settings: Any):
        super().__init__(path_type=Path, **settings)

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None):
        if not os.fspath(value):
            self.fail("the path is empty, as if by an unset variable of the shell; write . for this folder", param, ctx)
        return super().convert(os.path.expanduser(value), param, ctx)
