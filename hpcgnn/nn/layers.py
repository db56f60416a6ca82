"""What a linear convolution computes, without torch: `hpcgnn.nn.neighborhood` does these steps, `plan` counts them.

Example: a hidden layer of 256 to 41 columns. `maps_first` says that the forward pass maps rows, then sends and sums
them, so 41 columns travel. `backward_reads` says that the layer keeps nothing: the backward pass makes the activated
rows again. `forward` and `backward` list the products, sums and tensors of both passes, in the order in which they run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Kind(NamedTuple):
    reduction: str      # how neighbors are summed, see `LocalGraph.aggregate`
    has_self: bool      # whether the row itself has a weight


LINEAR = {"sage": Kind("mean", has_self=True), "gcn": Kind("gcn", has_self=False)}
IN, OUT, HALO = "in", "out", "halo"      # rows that a layer reads, that it computes, and that other ranks own


@dataclass(frozen=True)
class Step:
    """One operation over rows, the tensor that it makes, and the tensors that are no longer needed after it.

    `map` is a product with a weight, `weigh` the gradient of a weight. `aggregate` sends rows and sums them with halo
    rows. `aggregate_back` sends the gradients of halo rows to their owners and sums the gradients of inner rows;
    `arrive` adds the gradients that other ranks sent. The first layer sends nothing. `hold` only makes a tensor, and
    `rename` gives one the name `makes`.
    """

    kind: str       # "map", "weigh", "mask", "activate", "activate_back", "aggregate", "aggregate_back", "arrive", ..
    rows: str = OUT
    dim: int = 0            # columns that come out
    makes: str = ""         # without a name, the result is written to rows that are there
    from_dim: int = 0       # columns that a product reads
    frees: tuple[str, ...] = ()
    by_block: bool = False  # the tensor has a block of the rows at a time


def of_input(input_dropout: float, dropout: float) -> float:
    """Dropout probability of the input rows: `dropout` if `input_dropout` is negative."""
    return dropout if input_dropout < 0 else input_dropout


def maps_first(in_dim: int, out_dim: int) -> bool:
    """Whether A(xW) is computed instead of (Ax)W, to send and sum fewer columns."""
    return out_dim < in_dim


def backward_reads(maps_first: bool, has_self: bool, is_input: bool, makes_again: bool = True) -> set[str]:
    """Tensors of the forward pass that the backward pass reads, of `near` and `far` rows and their `sums`.

    With `makes_again` it makes the rows that went in again, from the inputs of the activation before.
    """
    if maps_first:
        return {"near", "far"} if is_input else set() if makes_again else {"near"}
    return {"sums", "near"} if has_self and not (is_input or makes_again) else {"sums"}


@dataclass(frozen=True)
class LinearLayer:
    """out = A(x) W_neighbor + x W_self + b, with a linear aggregation A before or after the map."""

    in_dim: int
    out_dim: int
    reduction: str      # A; this and the next see `Kind`
    has_self: bool
    is_input: bool = False
    reads_history: bool = False      # in an epoch of several steps, which sends rows before they are mapped

    @property
    def maps_first(self) -> bool:
        return not self.reads_history and maps_first(self.in_dim, self.out_dim)

    @property
    def sent_dim(self) -> int:
        return self.out_dim if self.maps_first else self.in_dim

    @property
    def num_weights(self) -> int:
        return (1 + self.has_self) * self.in_dim * self.out_dim + self.out_dim

    @property
    def has_loops(self) -> bool:
        """Whether A sums the row itself too."""
        return self.reduction == "gcn"

    def forward(self, has_dropout: bool, is_training: bool = True) -> list[Step]:
        """The steps from `below` to `rows`. An evaluation has no masks, computes all rows and keeps none."""
        has_mask, into, out, is_hidden = has_dropout and is_training, self.in_dim, self.out_dim, not self.is_input
        reads = backward_reads(self.maps_first, self.has_self, self.is_input) if is_training else set()
        done = tuple(name for name in ("sums", "near", "far") if name not in reads)
        by_block = is_hidden and is_training and self.maps_first
        near = [
            *_if(is_hidden, Step("activate", IN, into, "near", frees=() if is_training else ("below",),
                                 by_block=by_block)),
            *_if(self.is_input and has_mask, Step("mask", IN, into, "near"), Step("mask", HALO, into, "far"))]
        if self.maps_first:
            return [
                *near, Step("map", IN, out, "mapped", into),
                *_if(self.is_input, Step("map", HALO, out, "mapped far", into)),
                *_if(self.has_self and is_hidden, Step("map", OUT, out, "own", into)),
                *_if(by_block, Step("hold", IN, out, "block", frees=("near", "block"), by_block=True)),
                Step("aggregate", OUT, out, "rows", frees=("mapped", "mapped far", "own")),
                *_if(self.has_self and self.is_input, Step("map", OUT, out, "", into)),
                Step("free", frees=done)]
        in_place = not is_training and is_hidden and into == out      # nothing reads the sums again
        return [
            *near, *_if(has_mask and is_hidden, Step("mask", IN, into), Step("mask", HALO, into)),
            # Without dropout the sums of the input are the same in every epoch, and there.
            *_if(is_hidden or has_dropout, Step("aggregate", OUT, into, "sums", frees=("far",))),
            Step("map", OUT, out, "" if in_place else "rows", into),
            *_if(self.has_self, Step("map", OUT, out, "", into)),
            *_if(in_place, Step("rename", makes="rows", frees=("sums",))),
            Step("free", frees=done)]

    def backward(self, has_dropout: bool) -> list[Step]:
        """The steps from the `gradient` of `rows` to the gradient of `below`; they free what `forward` kept."""
        into, out, has_self = self.in_dim, self.out_dim, self.has_self
        weigh, weigh_self = Step("weigh", OUT, out, "", into), Step("weigh", OUT, out, "", into, frees=("again",))
        if self.maps_first and self.is_input:
            return [Step("aggregate_back", IN, out, "of mapped"),
                    Step("weigh", IN, out, "", into, frees=("of mapped",)),
                    Step("hold", HALO, out, "of far"),
                    Step("weigh", HALO, out, "", into, frees=("of far",)),
                    *_if(has_self, weigh),
                    Step("free", frees=("near", "far", "gradient"))]
        if self.is_input:
            return [Step("weigh", OUT, out, "", into, frees=("sums",)),
                    *_if(has_self and has_dropout, Step("mask", OUT, into, "again", by_block=True)),
                    *_if(has_self, weigh_self),
                    Step("free", frees=("gradient",))]
        again = Step("activate", OUT, into, "again", by_block=True)
        if self.maps_first:
            return [Step("aggregate_back", IN, out, "of mapped"),
                    *_if(has_self, again, weigh_self),
                    Step("arrive"),
                    Step("activate", IN, into, "again", by_block=True),
                    Step("weigh", IN, out, "", into),
                    Step("map", IN, into, "", out),
                    *_if(has_self, Step("map", OUT, into, "", out)),
                    # Each block of gradients overwrites the rows below.
                    Step("activate_back", IN, into, frees=("again", "of mapped", "gradient")),
                    Step("rename", makes="gradient", frees=("below",))]
        return [Step("weigh", OUT, out, "", into, frees=("sums",)),
                Step("map", OUT, into, "of sums", out),
                Step("aggregate_back", IN, into, "of rows", frees=("of sums",)),
                *_if(has_self, Step("map", OUT, into, "", out), again),
                *_if(has_self and has_dropout, Step("mask", OUT, into)),
                *_if(has_self, weigh_self),
                Step("arrive"),
                *_if(has_dropout, Step("mask", IN, into), Step("mask", HALO, into)),
                Step("activate_back", IN, into, frees=("gradient", "below")),
                Step("rename", makes="gradient", frees=("of rows",))]


def _if(condition: bool, *steps: Step) -> tuple[Step, ...]:
    return steps if condition else ()
