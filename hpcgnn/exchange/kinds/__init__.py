"""Exchange kinds: rows of training exchanges are fresh, sampled, skipped, or kept from epoch to epoch.

A kind is imported when it is first used, since a run has one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcgnn.exchange.kinds.fresh import Fresh
    from hpcgnn.exchange.kinds.kept import Kept
    from hpcgnn.exchange.kinds.kind import ExchangeKind
    from hpcgnn.exchange.kinds.sampled import Sampled
    from hpcgnn.exchange.kinds.skipped import Skipped

__all__ = ["ExchangeKind", "Fresh", "Kept", "Sampled", "Skipped"]
_HOMES = {"ExchangeKind": "kind", "Fresh": "fresh", "Kept": "kept", "Sampled": "sampled", "Skipped": "skipped"}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
