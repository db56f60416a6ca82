"""TOML files of designs and DRAMs: those that come with hpcgnn by their names, and any other by its path. What their
numbers mean is not known here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hpcgnn.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def names_in(folder: Path) -> list[str]:
    """Return the names of the files in a folder."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def read_named(kind: str, name: str | Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path of a file, and what it says.

    Parameters
    ----------
    kind : str       what the file describes, for messages

    Raises
    ------
    ConfigError      there is no such file, or it can't be read
    """
    path = folder / f"{name}.toml" if str(name) in names_in(folder) else Path(name)
    try:
        with path.open("rb") as file:
            return path, tomllib.load(file)
    except FileNotFoundError:
        known = ", ".join(names_in(folder))
        raise ConfigError(f"there is no {kind} {name}; choose a file, or one of {known}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read as a {kind}: {error}") from error
