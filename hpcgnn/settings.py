"""Settings, declared in the class that they change: a default, a sentence of help and the allowed values."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from hpcgnn.errors import ConfigError

# Limits of settings without their own limit, for int32 and float32.
HIGHEST: dict[str, float] = {"int": 2 ** 31 - 1, "float": 1e38}
PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "bool": bool}


def setting(default: Any, description: str, choices: tuple | None = None, low: float | None = None,
            high: float | None = None, group: str = "", flag: str = "rare", **users: tuple[str, ...]) -> Any:
    """Declare a setting as a field of a dataclass.

    Parameters
    ----------
    choices, low, high      allowed values; None allows all of the type
    group : str             heading in help; empty for a method's own
    flag : {"common", "rare", "none"}      the short help lists common ones too; a setting without a flag is set by
                            `--set NAME=VALUE` or in a file
    users : tuple of str    `models`, `schemes`, `devices` and `tasks`: the ones that the setting affects; none for all
    """
    return field(default=default, metadata={"description": description, "choices": choices, "low": low, "high": high,
                                            "group": group, "flag": flag, "users": users})


def type_name(declared: Field) -> str:
    """Name of a setting's type, whether its module reads annotations as text or as classes."""
    return declared.type if isinstance(declared.type, str) else declared.type.__name__


def check_values(owner: Any) -> None:
    """Check each setting of a dataclass on its own.

    Raises ConfigError: a value of another type, outside its range or not among its choices.
    """
    for declared in fields(owner):
        if "description" in declared.metadata:
            _check_value(declared, getattr(owner, declared.name))


def _check_value(declared: Field, value: Any) -> None:
    name, kind, limits = declared.name, type_name(declared), declared.metadata
    if kind not in PYTHON_TYPES:
        raise ConfigError(f"setting {name} is declared as {kind}; a setting is one of {', '.join(PYTHON_TYPES)}")
    if isinstance(value, bool) != (kind == "bool") or not isinstance(value, PYTHON_TYPES[kind]):
        raise ConfigError(f"{name} must be of type {kind}, found {value!r}")
    if limits["choices"] is not None and value not in limits["choices"]:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, limits['choices']))}, found {value!r}"
                          + hint_of(value, limits["choices"]))
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, found {value!r}")
    if limits["low"] is not None and not value >= limits["low"]:
        raise ConfigError(f"{name} must be at least {limits['low']}, found {value!r}")
    high: Any = HIGHEST.get(kind) if limits["high"] is None else limits["high"]
    if high is not None and not value <= high:
        raise ConfigError(f"{name} must be at most {high}, found {value!r}")


# What other libraries call a value.
OTHER_VALUES = {
    "gpu": "cuda", "graphsage": "sage", "sage-mean": "sage", "gcn2": "gcnii", "jk": "jknet",
    **dict.fromkeys(["float", "float32", "32"], "fp32"), **dict.fromkeys(["float16", "half", "16"], "fp16"),
    "bfloat16": "bf16", "layernorm": "layer", "batchnorm": "batch",
}


def hint_of(found: Any, known: Collection[Any]) -> str:
    """A clause that names the choice which a wrong text probably means, as "; did you mean sage?", or ""."""
    if not isinstance(found, str):
        return ""
    text = found.lower().replace("_", "-").removesuffix("conv")
    near = text if text in known else OTHER_VALUES.get(text)
    if near not in known:
        near = next(iter(get_close_matches(text, map(str, known), 1, 0.7)), None)
    return f"; did you mean {near}?" if near else ""


def import_named(path: str, kind: str, load: Callable[[str], ModuleType] = importlib.import_module) -> Any:
    """The object that MODULE:NAME names; `load` imports the module, which may lie in the current folder.

    Raises ConfigError: its module can't be imported, or has no such name.
    """
    module, _, name = path.partition(":")
    if not module.startswith("hpcgnn.") and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())      # a console script's path begins with the script's folder
    try:
        return getattr(load(module), name)
    except Exception as error:      # a user's module may raise anything when it is imported
        what = "" if isinstance(error, (ImportError, AttributeError, ValueError)) else f"{type(error).__name__}: "
        raise ConfigError(f"{kind} {path} can't be imported: {what}{error}") from error


def import_class(path: str, kind: str, base: type) -> Any:
    """The class that MODULE:CLASS names; ConfigError as `import_named`, or if it is no subclass of `base`."""
    found = import_named(path, kind)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{kind} {path} is no subclass of {base.__module__}.{base.__qualname__}")
    return found


class NamedClasses(Mapping[str, type]):
    """Classes by name, each imported when it is first looked up."""

    def __init__(self, paths: dict[str, str], kind: str, base: type):
        self._paths, self._kind, self._base = paths, kind, base      # MODULE:CLASS by name

    def __getitem__(self, name: str) -> type:
        return import_class(self._paths[name], self._kind, self._base)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, name: object) -> bool:
        return name in self._paths


@dataclass(frozen=True)
class Clash:
    """A value, or a tuple of values, of another setting that an owner can't work with, the reason, and what to do."""

    setting: str
    value: Any
    reason: str

    def check(self, others: Mapping[str, Any], owner: str) -> None:
        """Raise ConfigError if `others` has such a value."""
        value = others[self.setting]
        if value in (self.value if isinstance(self.value, tuple) else (self.value,)):
            found = self.setting if value is True else f"{self.setting} {value}"
            raise ConfigError(f"{owner} can't be used with {found}: {self.reason}")
