"""Which peers there are and whether they are installed, without importing them."""

from __future__ import annotations

import importlib.util

from hpcgnn.errors import ConfigError

# Package to import, and what pip calls it.
PEERS = {"torch": ("torch", "torch"), "scipy": ("scipy", "scipy"), "pyg": ("torch_geometric", "torch-geometric"),
         "dgl": ("dgl", "dgl")}


def parse_peers(text: str, allowed: tuple[str, ...] = tuple(PEERS)) -> tuple[str, ...]:
    """Read a list of names with commas, each once.

    Raises ConfigError: an unknown name, or a peer that is not installed.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in allowed:
            raise ConfigError(f"--peer has {name!r}; expected a list of {', '.join(allowed)}")
        package, project = PEERS[name.split("-")[0]]      # pyg-compiled is pyg in another form
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"--peer has {name}, but {package} is not installed; run pip install {project}, "
                              f"or leave {name} out")
    return names
