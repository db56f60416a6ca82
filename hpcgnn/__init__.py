"""hpcgnn: distributed full-graph training of graph neural networks with bit-packed messages.

The rooms of the package and who may import whom are described in ARCHITECTURE.md.
"""

__version__ = "0.2.0"
