"""What a model computes, sends and keeps, without torch, so that `plan` can count it.

`LinearLayer` has the steps of a linear convolution, which `hpcgnn.nn.neighborhood` does by hand. `operations` has those
of all other models, which torch's autograd goes back through.

Example: a hidden layer of 256 to 41 columns. `maps_first` says that the forward pass maps rows, then sends and sums
them, so 41 columns travel. `backward_reads` says that the layer keeps nothing: the backward pass makes the activated
rows again. `forward` and `backward` list the products, sums and tensors of both passes, in the order in which they run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from hpcgnn.errors import ConfigError


class Kind(NamedTuple):
    reduction: str      # how neighbors are summed, see `LocalGraph.aggregate`
    has_self: bool      # whether the row itself has a weight


LINEAR = {"sage": Kind("mean", has_self=True), "gcn": Kind("gcn", has_self=False)}
IN, OUT, HALO = "in", "out", "halo"      # rows that a layer reads, that it computes, and that other ranks own
# Models that sum neighbors row by row: a training pass computes all rows, since none of them says how far it reaches.
ROW_BY_ROW = ("gin", "sage-max", "gat", "rgcn")


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
    makes: str = ""         # name of the tensor; "": the result overwrites an existing tensor
    from_dim: int = 0       # columns that a product reads
    frees: tuple[str, ...] = ()
    by_block: bool = False  # the tensor has a block of the rows at a time


def of_input(input_dropout: float, dropout: float) -> float:
    """Dropout probability of the input rows: `dropout` if `input_dropout` is negative."""
    return dropout if input_dropout < 0 else input_dropout


def maps_first(in_dim: int, out_dim: int) -> bool:
    """Whether A(xW) is computed instead of (Ax)W, to send and sum fewer columns."""
    return out_dim < in_dim


def bases_of(num_relations: int, num_bases: int) -> int:
    """Matrices of an R-GCN layer: `num_bases` that all relations share, or one for each relation if these are fewer."""
    return num_bases if 0 < num_bases < num_relations else num_relations


def check_blocks(in_dim: int, out_dim: int, num_blocks: int) -> None:
    """Raise ConfigError unless `num_blocks` divide the columns of an R-GCN layer."""
    if in_dim % num_blocks or out_dim % num_blocks:
        raise ConfigError(f"num_blocks {num_blocks} must divide the columns that a layer maps, and one maps {in_dim} "
                          f"columns to {out_dim}; choose a number that divides those of all layers, or use num_bases")


def maps_bases_first(in_dim: int, out_dim: int, num_bases: int) -> bool:
    """Whether an R-GCN layer maps rows by all bases before it sends and sums them, since these are fewer columns."""
    return num_bases * out_dim < in_dim


def backward_reads(maps_first: bool, has_self: bool, is_input: bool, makes_again: bool = True) -> set[str]:
    """Tensors of the forward pass that the backward pass reads, of `near` and `far` rows and their `sums`.

    With `makes_again` it recomputes the layer's input rows, from the inputs of the activation before.
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
    is_learned: bool = False         # rows come from a table that is learned, without an activation before

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
        return self.reduction == "gcn"

    def forward(self, has_dropout: bool, is_training: bool = True) -> list[Step]:
        """The steps from `below` to `rows`. An evaluation has no masks, computes all rows and keeps none."""
        has_mask, into, out, is_hidden = has_dropout and is_training, self.in_dim, self.out_dim, not self.is_input
        reads = (backward_reads(self.maps_first, self.has_self, self.is_input, not self.is_learned) if is_training
                 else set())
        done = tuple(name for name in ("sums", "near", "far") if name not in reads)
        by_block = is_hidden and is_training and self.maps_first and not self.is_learned
        near = [
            *_if(is_hidden, Step("mask" if self.is_learned else "activate", IN, into, "near",
                                 frees=() if is_training else ("below",), by_block=by_block)),
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
        if self.is_learned and self.maps_first:
            return [Step("aggregate_back", IN, out, "of mapped"), *_if(has_self, weigh), Step("arrive"),
                    Step("weigh", IN, out, "", into, frees=("near",)),
                    Step("map", IN, into, "of rows", out, frees=("of mapped", "gradient")),
                    *_if(has_self, Step("map", OUT, into, "", out)),
                    Step("free", frees=("of rows",))]
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
                *_if(has_self, Step("map", OUT, into, "", out), *_if(not self.is_learned, again)),
                *_if(has_self and has_dropout, Step("mask", OUT, into)),
                *_if(has_self, weigh_self),
                Step("arrive"),
                *_if(has_dropout, Step("mask", IN, into), Step("mask", HALO, into)),
                *([Step("free", frees=("gradient", "near", "of rows"))] if self.is_learned else
                  [Step("activate_back", IN, into, frees=("gradient", "below")),
                   Step("rename", makes="gradient", frees=("of rows",))])]


def _if(condition: bool, *steps: Step) -> tuple[Step, ...]:
    return steps if condition else ()


class Op(NamedTuple):
    """One operation on the tensor that the operation before it made; the first one reads the input rows."""

    kind: str             # "map", "mask", "activate", "norm", "send", "aggregate", "attend", "relate", ..
    dim: int              # columns that come out
    hops: int             # sums over neighbors from here to the loss, so rows within `hops` come out
    keeps: str = ""       # what the backward pass reads: "in", "out"; "stays": the forward pass reads the result again
    weights: int = 0
    has_halo: bool = False    # halo rows come out too
    sent_dim: int = 0         # columns of the rows that are sent; as many gradients come back
    # Per row that comes out: columns that are kept too; columns of other tensors while the operation and its way back
    # run, or its way back alone; float32 numbers that are kept. Per edge: such numbers, three times in the way back.
    kept: int = 0
    beside: int = 0
    back: int = 0
    moments: int = 0
    per_edge: int = 0
    from_dim: int = 0         # columns that sums by relation read, before they are mapped by as many `weights`
    num_matrices: int = 0     # of relations, that `weights` has and of which an edge reads one; 0: an edge reads all
    is_again: bool = False    # with rematerialization it runs again in the backward pass


@dataclass(frozen=True)
class Shape:
    """A built-in model and what of its settings decides what it computes."""

    model: str
    in_dim: int
    hidden_dim: int
    out_dim: int
    num_layers: int
    norm: str = "layer"        # after every hidden layer
    has_dropout: bool = True
    has_input_dropout: bool | None = None      # None: as has_dropout
    heads: int = 4
    joins_columns: bool = True      # jknet: side by side, not by their maximum
    residual: bool = False
    is_quantized: bool = False      # trained as integers
    num_steps: int = 1         # of an epoch; several send rows before they are mapped
    num_relations: int = 0     # of the graph's edges
    num_bases: int = 8
    num_blocks: int = 0
    embedding_dim: int = 0     # learned columns of the input rows, behind `in_dim` features

    @property
    def drops_input(self) -> bool:
        return self.has_dropout if self.has_input_dropout is None else self.has_input_dropout

    @property
    def columns(self) -> int:
        return self.in_dim + self.embedding_dim

    def drops_at(self, left: int) -> bool:
        """Whether dropout is on the input of a layer, with `left` layers behind it."""
        return self.drops_input if left == self.num_layers - 1 else self.has_dropout

    def reads_input(self, left: int) -> bool:
        """Whether a layer, with `left` layers behind it, reads rows that are constant."""
        return left == self.num_layers - 1 and not self.embedding_dim


def operations(shape: Shape) -> list[Op]:
    """The operations of a forward pass in training, from the input rows to the logits."""
    made = {"gcnii": _gcnii, "jknet": _jknet, "sgc": _sgc, "appnp": _propagated,
            "dagnn": _propagated}.get(shape.model, _stack)(shape)
    learned = shape.embedding_dim
    return [*([Op("join", shape.columns, shape.num_layers, beside=learned)] if learned else []), *made]


def _map(from_dim: int, dim: int, hops: int, has_bias: bool = True, has_halo: bool = False) -> list[Op]:
    return [Op("map", dim, hops, "in", from_dim * dim, has_halo),
            *([Op("bias", dim, hops, "", dim)] if has_bias else [])]


def _activate(shape: Shape, dim: int, hops: int, norm: str, keeps: str = "in") -> list[Op]:
    is_layer = norm == "layer"
    return [*([Op("norm", dim, hops, "in", 2 * dim, beside=2 * dim)] if norm == "batch" else []),
            Op("activate", dim, hops, keeps, 2 * dim * is_layer, moments=2 * is_layer)]


def _drop(has_dropout: bool, dim: int, hops: int, has_halo: bool = False) -> list[Op]:
    return [Op("mask", dim, hops, has_halo=has_halo)] if has_dropout else []


def _stack(shape: Shape) -> list[Op]:
    dims = [shape.columns] + [shape.hidden_dim] * (shape.num_layers - 1) + [shape.out_dim]
    made: list[Op] = []
    for number, (into, out) in enumerate(pairwise(dims)):
        left, before = shape.num_layers - 1 - number, len(made)
        made += (_quantized if shape.is_quantized else _linear if shape.model in LINEAR else _by_rows)(
            shape, into, out, left)
        made += _activate(shape, out, left, shape.norm) if left else []
        if shape.residual and number and left:      # the layer's input is added to its output
            of_layer = [op._replace(beside=op.beside + into) for op in made[before:]]
            made[before:] = [*of_layer, Op("add", out, left)]
    return made


def _linear(shape: Shape, into: int, out: int, left: int) -> list[Op]:
    # A convolution reads activated rows, and keeps the rows that its weights mapped.
    is_input, (_, has_self) = shape.reads_input(left), LINEAR[shape.model]
    is_mapped = maps_first(into, out) and shape.num_steps == 1
    width = out if is_mapped else into
    masked = _drop(shape.drops_at(left), into, left + 1, has_halo=is_input and is_mapped)
    summed = Op("aggregate", width, left, "in" if has_self and not (is_mapped or is_input) else "",
                sent_dim=0 if is_input else width, beside=width)
    mapped = _map(into, out, left + is_mapped, False, is_input and is_mapped)
    own = [Op("map", out, left, "", into * out)] if has_self else []
    return [*masked, *([*mapped, summed] if is_mapped else [summed, *mapped]), *own, Op("bias", out, left, "", out)]


def _by_rows(shape: Shape, into: int, out: int, left: int) -> list[Op]:
    if shape.model == "rgcn":
        return _by_relation(shape, into, out, left)
    is_first, is_input, is_last = left == shape.num_layers - 1, shape.reads_input(left), not left
    width = shape.heads * out if shape.model == "gat" and is_last else out      # of mapped rows
    is_mapped = {"gin": maps_first(into, out), "gat": width <= into, "sage-max": False}[shape.model]
    sends_mapped, hops = is_mapped and not is_input and shape.num_steps == 1, left + 1
    maps = is_mapped or shape.model == "gat"      # before the sum
    drops = _drop(shape.drops_at(left), into, hops, not sends_mapped)
    sent = [] if is_input else [Op("send", into, hops, has_halo=True, sent_dim=into)]
    if shape.model == "gat" and shape.num_steps > 1:      # each head sums rows, then maps its sum
        summed, *rest = _attend(shape, width, out, left)
        sums = shape.heads * into
        return _again([*sent, *drops, summed._replace(dim=into, kept=sums, beside=sums),
                       Op("map", width, left, weights=into * width), *rest])
    if sends_mapped:      # the activation before has the dropout
        rows = [*drops * is_first, *_map(into, width, hops, False),
                Op("send", width, hops, has_halo=True, sent_dim=width)]
    else:
        rows = [*sent, *drops, *(_map(into, width, hops, False, has_halo=True) if maps else [])]
    width = width if maps else into
    if shape.model == "gat":
        return _again([*_scored(shape, rows), *_attend(shape, width, out, left)])
    if shape.model == "sage-max":
        return _again([*_sliced(rows, into), Op("aggregate", into, left, "in", moments=0 if is_input else into),
                       *_map(into, out, left), Op("map", out, left, "", into * out), Op("add", out, left)])
    return [*_again([*_sliced(rows, width), Op("aggregate", width, left, "in", 1), Op("add", width, left, beside=width),
                     *([] if maps else _map(into, out, left, False))]),
            Op("bias", out, left, "", out), Op("relu", out, left, "out"), *_map(out, out, left)]


def _by_relation(shape: Shape, into: int, out: int, left: int) -> list[Op]:
    # Sums are mapped block by block, so no tensor holds them.
    is_first, is_input, hops = left == shape.num_layers - 1, shape.reads_input(left), left + 1
    count, num_blocks = bases_of(shape.num_relations, shape.num_bases), shape.num_blocks
    is_mapped = not num_blocks and maps_bases_first(into, out, count) and shape.num_steps == 1
    wide, of_map = (count * out, 0) if is_mapped else (into, count * into * out)
    if num_blocks:
        check_blocks(into, out, num_blocks)
        count = shape.num_relations
        of_map = count * into * out // num_blocks
    masked = _drop(shape.drops_at(left), into, hops, is_input or not is_mapped)
    sent = [] if is_input else [Op("send", wide, hops, has_halo=True, sent_dim=wide)]
    if is_mapped:      # the activation before has the dropout
        rows = [*masked * is_first, *_map(into, wide, hops, False, has_halo=is_input), *sent]
    else:
        rows = [*sent, *masked]
    coefficients = count * shape.num_relations * (count < shape.num_relations)
    summed = Op("relate", out, left, "in", of_map, from_dim=wide, num_matrices=count if num_blocks else 0)
    if is_input and masked:      # the backward pass masks the input again; halo rows count as many as own ones
        if is_mapped:
            rows = [op._replace(keeps="") for op in rows]
        else:
            summed = summed._replace(keeps="", back=2 * into)
    return _again([*_sliced(rows, wide), summed,
                   Op("map", out, left, "", into * out), Op("bias", out, left, "", out + coefficients),
                   Op("add", out, left)])


def _again(ops: list[Op]) -> list[Op]:
    return [op._replace(is_again=True) for op in ops]


def _sliced(rows: list[Op], dim: int) -> list[Op]:
    # The layer also reads the inner rows on their own, so there is a second gradient of all rows.
    return [*rows[:-1], *(op._replace(back=dim) for op in rows[-1:])]


def _scored(shape: Shape, rows: list[Op]) -> list[Op]:
    # Every row that is read has a score as source and one as destination for each head.
    return [*rows[:-1], rows[-1]._replace(moments=2 * shape.heads)]


def _attend(shape: Shape, width: int, out: int, left: int) -> list[Op]:
    # Every edge has a weight for each head.
    return [Op("attend", width, left, "in", 2 * width, per_edge=shape.heads),
            *([] if left else [Op("average", out, left)]), Op("bias", out, left, "", out)]


def _quantized(shape: Shape, into: int, out: int, left: int) -> list[Op]:
    # Rows, mapped rows and weights are rounded in float32, and every layer sends mapped rows.
    width = shape.heads * out if shape.model == "gat" and not left else out
    own = [Op("map", out, left, "", into * out)] if shape.model == "sage" else []
    second = [Op("relu", out, left, "out"), Op("round", out, left, "in"), *_map(out, out, left)]
    hops = left + 1
    rows = [Op("round", into, hops, "in"),
            *_drop(shape.drops_at(left), into, hops), *_map(into, width, hops, False),
            Op("round", width, hops, "in"), Op("send", width, hops, has_halo=True, sent_dim=width)]
    if shape.model == "gat":
        return [*_scored(shape, rows), *_attend(shape, width, out, left)]
    return [*rows, Op("aggregate", out, left, beside=out), *own, Op("bias", out, left, "", out),
            *(second if shape.model == "gin" else [])]


def _propagate(dim: int, hops: int, is_sent: bool = True, has_first: bool = False) -> Op:
    # The gradient is split between neighbors and first rows; the gradients of the first rows are added up.
    return Op("aggregate", dim, hops, sent_dim=dim * is_sent, beside=dim, back=3 * dim * has_first)


def _gcnii(shape: Shape) -> list[Op]:
    hidden, num = shape.hidden_dim, shape.num_layers
    made = [*_drop(shape.drops_input, shape.columns, num), *_map(shape.columns, hidden, num),
            *_activate(shape, hidden, num, "none", "in stays")]
    for left in reversed(range(num)):
        made += [_propagate(hidden, left, has_first=True), *_map(hidden, hidden, left, False),
                 *_activate(shape, hidden, left, shape.norm)]
    return [*made, *_map(hidden, shape.out_dim, 0)]


def _jknet(shape: Shape) -> list[Op]:
    hidden, num, made = shape.hidden_dim, shape.num_layers, list[Op]()
    for left in reversed(range(num)):
        layer = _linear(replace(shape, model="gcn", out_dim=hidden), shape.columns if left == num - 1 else hidden,
                        hidden, left)
        made += [*layer, *_activate(shape, hidden, left, shape.norm, "in stays")]
    columns = num * hidden if shape.joins_columns else hidden
    joined = Op("join", columns, 0, kept=0 if shape.joins_columns else num * hidden)
    return [*made, joined, *_drop(shape.has_dropout, columns, 0), *_map(columns, shape.out_dim, 0)]


def _sgc(shape: Shape) -> list[Op]:
    into, out, num = shape.in_dim, shape.out_dim, shape.num_layers
    if not shape.drops_input:      # the propagated input is there before the first epoch
        return [Op("propagated", into, num, "out"), *_map(into, out, 0)]
    if maps_first(into, out) and shape.num_steps == 1:
        return [*_drop(True, into, num), *_map(into, out, num, False),
                *(_propagate(out, left) for left in reversed(range(num))), Op("bias", out, 0, "", out)]
    return [*(_propagate(into, left, left < num - 1) for left in reversed(range(num))), *_map(into, out, 0)]


def _propagated(shape: Shape) -> list[Op]:
    hidden, out, num = shape.hidden_dim, shape.out_dim, shape.num_layers
    made = [*_drop(shape.drops_input, shape.columns, num), *_map(shape.columns, hidden, num),
            *_activate(shape, hidden, num, shape.norm), *_map(hidden, out, num)]
    made[-1] = made[-1]._replace(keeps="stays" if shape.model == "appnp" else "out")
    if shape.model == "appnp":
        return [*made, *(_propagate(out, left, has_first=True) for left in reversed(range(num)))]
    # Each depth is kept until its gate's gradient is known.
    return [*made, *(_propagate(out, left)._replace(keeps="out", moments=1) for left in reversed(range(num))),
            Op("gate", out, 0, "", out + 1, beside=out)]
