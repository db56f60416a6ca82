"""Training methods, by name; your own by its import path, as in `mypackage.mymodule:MyMethod`."""

from __future__ import annotations

from dataclasses import fields

from hpcgnn.errors import ConfigError
from hpcgnn.methods.adaqp import AdaQP, Joint
from hpcgnn.methods.bns import BNS
from hpcgnn.methods.method import Method
from hpcgnn.methods.pipegcn import PipeGCN
from hpcgnn.methods.sancus import Sancus
from hpcgnn.methods.sylvie import Sylvie, SylviePaper
from hpcgnn.methods.uniform import Random, Uniform
from hpcgnn.methods.vanilla import Vanilla
from hpcgnn.settings import import_class

METHODS: dict[str, type[Method]] = {method.name: method for method in (
    Vanilla, Uniform, Random, Sylvie, SylviePaper, AdaQP, Joint, PipeGCN, BNS, Sancus)}


def find_method(name: str) -> type[Method]:
    """Return the class of a method, by a name of `METHODS` or by MODULE:CLASS; ConfigError if there is none."""
    if ":" not in name:
        if name not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, or MODULE:CLASS, found {name!r}")
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
