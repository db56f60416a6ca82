"""How shards store features: the name of each format, and the class that reads and writes it.

A format is a line here and a class with three functions: `choose`, `store` and `load`, as in
`hpcgnn.shards.features.FloatFeatures`. Classes are imported on first use, so help knows the names without h5py, and
float32 shards are read without lowbit/.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PACKAGE = "package"
FORMAT_PATHS = {
    "float32": "hpcgnn.shards.features:FloatFeatures",
    "float16": "hpcgnn.shards.features:FloatFeatures",
    PACKAGE: "hpcgnn.lowbit.package_shards:PackageFeatures",
}
FEATURE_FORMATS = tuple(FORMAT_PATHS)


def feature_format(name: str) -> Any:
    """The class that reads and writes a format."""
    module, _, attribute = FORMAT_PATHS[name].partition(":")
    return getattr(import_module(module), attribute)
