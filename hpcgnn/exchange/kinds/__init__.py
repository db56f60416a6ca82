"""Exchange kinds: rows of training exchanges are fresh, sampled, skipped, or kept from epoch to epoch."""

from hpcgnn.exchange.kinds.fresh import Fresh
from hpcgnn.exchange.kinds.kept import Kept
from hpcgnn.exchange.kinds.kind import ExchangeKind
from hpcgnn.exchange.kinds.sampled import Sampled
from hpcgnn.exchange.kinds.skipped import Skipped

__all__ = ["ExchangeKind", "Fresh", "Kept", "Sampled", "Skipped"]
