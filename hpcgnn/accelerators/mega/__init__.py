"""MEGA: Adaptive-Packages, a bit-serial Combination Engine, an Aggregation Engine and Condense-Edge, as passes."""

from hpcgnn.accelerators.mega.passes import passes

__all__ = ["passes"]
