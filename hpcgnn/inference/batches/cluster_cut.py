"""ClusterCut: the batches of clusters that a graph is cut into, as settings of a run or flags of infer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpcgnn.config import CLUSTERS_A_BATCH
from hpcgnn.errors import ConfigError

NAMES = ("clusters", "batch_size", "between_clusters")


@dataclass(frozen=True)
class ClusterCut:
    """Hold what decides which arcs batches keep.

    Attributes
    ----------
    clusters, batch_size : int       of the whole graph, and of a batch
    between_clusters : bool          arcs between clusters of one batch are kept

    Raises
    ------
    ConfigError      numbers below 1, or another type
    """

    clusters: int
    batch_size: int = CLUSTERS_A_BATCH
    between_clusters: bool = False

    def __post_init__(self):
        counts = (self.clusters, self.batch_size)
        if not all(type(count) is int and count >= 1 for count in counts) or type(self.between_clusters) is not bool:
            raise ConfigError(f"{self} is no cut of a graph; clusters and batch_size must be 1 or more")

    @classmethod
    def of(cls, settings: dict[str, Any]) -> ClusterCut | None:
        """Return the cut that a run was trained in, None where that was the whole graph.

        Parameters
        ----------
        settings : dict      of a run, by name; those of an earlier version name no clusters
        """
        return cls(**{name: settings[name] for name in NAMES}) if settings.get("clusters") else None

    @property
    def flags(self) -> str:
        """Return the flags of `hpcgnn infer` that answer from the same arcs."""
        words = [f"--clusters {self.clusters}"]
        if self.between_clusters:
            words += [f"--batch-size {self.batch_size}"] if self.batch_size != CLUSTERS_A_BATCH else []
            words += ["--between-clusters"]
        return " ".join(words)

    def remark(self, source: str, answered: ClusterCut | None) -> str | None:
        """Return a sentence where a model answers from other arcs than it was trained on, else None.

        Parameters
        ----------
        source : str                         the model, as users call it
        answered : ClusterCut or None        None is the whole graph
        """
        # Without arcs between clusters, a batch's size changes no arc.
        if answered is not None and answered.flags == self.flags:
            return None
        here = "the whole graph" if answered is None else f"other arcs, those of {answered.flags}"
        return (f"{source} was trained in {self.clusters} clusters and answers here from {here}; {self.flags} answers "
                "as it was trained")
