"""Training methods, by name; your own by its import path, as in `mypackage.mymodule:MyMethod`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from hpcgnn.errors import ConfigError
from hpcgnn.methods.method import Method
from hpcgnn.settings import NamedClasses, hint_of, import_class

METHODS: Mapping[str, type[Method]] = NamedClasses({
    "vanilla": "hpcgnn.methods.stored:Vanilla",
    "uniform": "hpcgnn.methods.uniform:Uniform",
    "random": "hpcgnn.methods.uniform:Random",
    "sylvie": "hpcgnn.methods.sylvie:Sylvie",
    "sylvie-paper": "hpcgnn.methods.sylvie:SylviePaper",
    "adaqp": "hpcgnn.methods.adaqp:AdaQP",
    "joint": "hpcgnn.methods.adaqp:Joint",
    "pipegcn": "hpcgnn.methods.stored:PipeGCN",
    "bns": "hpcgnn.methods.stored:BNS",
    "sancus": "hpcgnn.methods.stored:Sancus",
}, "method", Method)


def find_method(name: str) -> type[Method]:
    """Return the class of a method, by a name of `METHODS` or by MODULE:CLASS; ConfigError if there is none."""
    if ":" not in name:
        if name not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, or MODULE:CLASS, found {name!r}"
                              + hint_of(name, METHODS))
        return METHODS[name]
    found = import_class(name, "method", Method)
    missing = sorted(found.__abstractmethods__ | ({"name"} - set(dir(found))))
    if missing:
        raise ConfigError(f"method {name} has no {missing[0]} of its own, so it can't be used")
    return found


def name_of(method: Method) -> str:
    cls = type(method)
    return cls.name if METHODS.get(cls.name) is cls else f"{cls.__module__}:{cls.__qualname__}"


def users_of(setting: str) -> list[str]:
    return [name for name, method in METHODS.items() if setting in {own.name for own in fields(method)}]
