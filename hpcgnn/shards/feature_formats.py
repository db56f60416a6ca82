"""How shards store features, by name. Commands read it, so nothing is imported here."""

from __future__ import annotations

PACKAGE = "package"
FEATURE_FORMATS = ("float32", "float16", PACKAGE)
