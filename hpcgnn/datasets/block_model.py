"""BlockModel: the settings of a synthetic graph and their text form. Nothing is drawn here."""

from __future__ import annotations

from dataclasses import dataclass, fields

from hpcgnn.datasets.spec import convert_setting, split_settings
from hpcgnn.errors import DatasetError


@dataclass(frozen=True)
class BlockModel:
    """Settings of a synthetic graph. On the default one, models of two layers reach a test accuracy of 0.75 to 0.9.

    Attributes
    ----------
    nodes : int
    mean_degree : float      neighbors of a node; the graph has round(nodes * mean_degree / 2) undirected edges
    classes, features : int
    homophily : float        share of the edges that join two nodes of the same class
    exponent : float         of the power law of the degrees, P(degree) ~ degree**-exponent, above 2
    signal : float           distance of a class's mean feature row from the origin, in standard deviations of the noise
    multi_label : bool       indicator rows: the node's class, often a companion class, seldom others
    seed : int

    Raises
    ------
    DatasetError             a value out of range, or more edges than the classes have room for
    """

    nodes: int = 20_000
    mean_degree: float = 20.0
    classes: int = 16
    features: int = 64
    homophily: float = 0.65
    exponent: float = 2.5
    signal: float = 0.5
    multi_label: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for setting, is_valid, expected in (
            ("classes", self.classes >= 2, "at least 2"),
            ("nodes", self.nodes >= 2 * self.classes, f"at least two for each of the {self.classes} classes"),
            ("mean_degree", 0 < self.mean_degree < self.nodes, f"a positive number below {self.nodes}"),
            ("features", self.features >= 1, "at least 1"),
            ("homophily", 0 <= self.homophily <= 1, "a number from 0 to 1"),
            ("exponent", 2 < self.exponent < float("inf"), "a number above 2"),
            ("signal", 0 <= self.signal < float("inf"), "a non-negative number"),
            ("seed", self.seed >= 0, "a non-negative integer"),
        ):
            if not is_valid:
                raise DatasetError(f"synthetic: has {setting}={getattr(self, setting)}; expected {expected}")

    @property
    def num_undirected_edges(self) -> int:
        return round(self.nodes * self.mean_degree / 2)


def parse_block_model(text: str, seed: int) -> BlockModel:
    """Read "nodes=1000,homophily=0.7"; `seed` holds where the text names none.

    Raises
    ------
    DatasetError      an unknown setting, a value of the wrong type or out of range
    """
    kinds = {field.name: type(field.default) for field in fields(BlockModel)}
    settings = split_settings(text, tuple(kinds), "synthetic:")
    values = {key: convert_setting(key, value, kinds[key], "synthetic:") for key, value in settings.items()}
    return BlockModel(**{"seed": seed, **values})
