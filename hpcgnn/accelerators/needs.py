"""What a dataflow needs of a design, checked before any block is made. No dataflow is known here."""

from __future__ import annotations

from hpcgnn.accelerators.design import Design
from hpcgnn.accelerators.row_requests import own_dim
from hpcgnn.accelerators.workload import Workload
from hpcgnn.errors import ConfigError


def check_needs(design: Design, units: tuple[str, ...], buffers: tuple[str, ...], counts: tuple[str, ...]) -> None:
    """Refuse a design without the units, buffers and rules that its dataflow asks for.

    Parameters
    ----------
    counts : tuple of str      rules that are whole numbers from 1 on

    Raises
    ------
    ConfigError                one is missing, or a unit or a rule is not such a number, or a seed or a switch
    """
    missing = [f"{section}.{name}" for section, names in (("units", units), ("buffers", buffers), ("rules", counts))
               for name in names if name not in getattr(design, section)]
    if missing:
        raise ConfigError(f"{design.name} of the kind {design.kind} lacks {', '.join(missing)}")
    for path, value in [(f"units.{name}", design.units[name]) for name in units] + [
            (f"rules.{name}", design.rules[name]) for name in counts]:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{path} of {design.name} is {value!r}; expected a whole number from 1 on")
    for name, most in (("seed", None), ("sparse_input", 1)):
        value = design.rules.get(name, 0)
        if not isinstance(value, int) or value < 0 or (most is not None and value > most):
            said = "a whole number from 0 on" if most is None else "true or false"
            raise ConfigError(f"rules.{name} of {design.name} is {value!r}; expected {said}")
    if design.bit_width < 1:
        raise ConfigError(f"design.bit_width of {design.name} is {design.bit_width}; expected 1 at least")


def check_own_columns(design: Design, workload: Workload) -> None:
    """Refuse products that add other columns to a row than as many as they aggregate, as GraphSage does.

    Raises
    ------
    ConfigError      a product does
    """
    for product in workload.products:
        if own_dim(product) not in (0, product.aggregated_dim):
            raise ConfigError(f"{product.name} adds {own_dim(product)} columns to {product.aggregated_dim}; "
                              f"{design.kind} adds equally many")
