"""Every model as PyTorch Geometric has it, called with the weights of hpcgnn's. Gradients go to those weights."""

from __future__ import annotations

import numpy as np
import torch
import torch_geometric.nn as pyg
from reference import DROPOUT, draws_of, stream_of
from torch.func import functional_call
from torch.nn import functional
from torch_geometric.nn.conv.gcn_conv import gcn_norm


class Masks:
    """The dropouts of one pass in the order in which a model calls them, from the oracle's draws."""

    def __init__(self, probability, seed, epoch, of_input=None):
        self.probability, self.seed, self.epoch, self.num_calls = probability, seed, epoch, 0
        self.of_input = probability if of_input is None else of_input

    def __call__(self, h):
        threshold = round((self.probability if self.num_calls else self.of_input) * 2**16)
        stream = stream_of(DROPOUT, self.num_calls)
        self.num_calls += 1
        draws = draws_of(np.arange(len(h)), h.shape[1], self.seed, self.epoch, stream)
        return h * torch.from_numpy(draws >= threshold) * (2**16 / (2**16 - threshold))


def edge_index_of(dataset):
    """(2, num_edges) int64: source and destination."""
    target = np.repeat(np.arange(dataset.num_nodes), dataset.in_degree())
    return torch.from_numpy(np.stack([dataset.indices.astype(np.int64), target]))


def weighed_sum(h, edges):
    """Sum of w[e] h[source] at every target, by index."""
    (source, target), weight = edges
    return torch.zeros_like(h).index_add(0, target, weight[:, None] * h[source])


def gcn(layer, h, edges):
    peer = pyg.GCNConv(layer.in_dim, layer.out_dim).double()
    return functional_call(peer, {"lin.weight": layer.weight_neighbor, "bias": layer.bias}, (h, *edges))


def sage(layer, h, edges):
    edges, weight = edges
    if weight is not None:      # which PyG's SAGEConv does not take
        total = torch.zeros(len(h), dtype=h.dtype).index_add(0, edges[1], weight)
        mean = weighed_sum(h, (edges, weight)) / total.where(total > 0, 1)[:, None]
        return mean @ layer.weight_neighbor.t() + h @ layer.weight_self.t() + layer.bias
    weights = {"lin_l.weight": layer.weight_neighbor, "lin_l.bias": layer.bias, "lin_r.weight": layer.weight_self}
    return functional_call(pyg.SAGEConv(layer.in_dim, layer.out_dim).double(), weights, (h, edges))


def sage_max(layer, h, edges):
    weights = {"lin_l.weight": layer.neighbor.weight, "lin_l.bias": layer.neighbor.bias,
               "lin_r.weight": layer.own.weight}
    return functional_call(pyg.SAGEConv(layer.in_dim, layer.out_dim, aggr="max").double(), weights, (h, edges[0]))


def gat(layer, h, edges):
    is_concatenated = layer.combine == "concatenate"
    head_dim = layer.out_dim // layer.heads if is_concatenated else layer.out_dim
    target, source = layer.attention.view(2, 1, layer.heads, head_dim)
    peer = pyg.GATConv(layer.in_dim, head_dim, layer.heads, concat=is_concatenated).double()
    weights = {"att_dst": target, "att_src": source, "lin.weight": layer.weight, "bias": layer.bias}
    if edges[1] is None:
        return functional_call(peer, weights, (h, edges[0]))
    _, ((source, to), alpha) = functional_call(peer, weights, (h, edges[0]), {"return_attention_weights": True})
    # PyG appends the self-loops, which weigh 1.
    alpha = alpha * torch.cat([edges[1], torch.ones(len(h), dtype=h.dtype)])[:, None]
    mapped = (h @ layer.weight.t()).view(len(h), layer.heads, head_dim)
    out = torch.zeros_like(mapped).index_add(0, to, alpha[:, :, None] * mapped[source])
    return (out.flatten(1) if is_concatenated else out.mean(dim=1)) + layer.bias


def gin(layer, h, edges):
    if edges[1] is not None:    # which PyG's GINConv does not take
        combined = (1 + layer.epsilon) * h + weighed_sum(h, edges)
        return layer.second(torch.relu(layer.first(combined)))
    parts = torch.nn.Sequential(torch.nn.Linear(layer.in_dim, layer.out_dim), torch.nn.ReLU(),
                                torch.nn.Linear(layer.out_dim, layer.out_dim))
    weights = {f"nn.{i}.{name}": value for i, part in ((0, layer.first), (2, layer.second))
               for name, value in part.named_parameters()}
    return functional_call(pyg.GINConv(parts, train_eps=True).double(), weights | {"eps": layer.epsilon}, (h, edges[0]))


def rgcn(layer, h, edges):
    peer = pyg.RGCNConv(layer.in_dim, layer.out_dim, layer.num_relations,
                        None if layer.coefficient is None else len(layer.basis),
                        None if layer.blocks is None else layer.blocks.shape[1]).double()
    weight = layer.basis if layer.blocks is None else layer.blocks
    weights = {"weight": weight.transpose(-1, -2).contiguous(), "root": layer.weight_self.t(), "bias": layer.bias}
    if layer.coefficient is not None:
        weights["comp"] = layer.coefficient
    return functional_call(peer, weights, (h, *edges))


CONVOLUTIONS = {"gcn": gcn, "sage": sage, "sage-max": sage_max, "gat": gat, "gin": gin, "rgcn": rgcn}


def stack(model, shape, x, edges, drop):
    h = x
    for i, layer in enumerate(model.convolutions):
        z = CONVOLUTIONS[shape.model](layer, drop(h), edges)
        if i == len(model.norms):
            return z
        out = torch.relu(model.norms[i](z))
        h = out + h if shape.residual and i else out


def gcnii(model, shape, x, edges, drop):
    h = first = torch.relu(model.first(drop(x)))
    for i, weight in enumerate(model.weights):
        peer = pyg.GCN2Conv(shape.hidden_dim, shape.alpha, shape.theta, i + 1).double()
        h = torch.relu(model.norms[i](functional_call(peer, {"weight1": weight.t()}, (drop(h), first, *edges))))
    return model.last(drop(h))


def perceptron(part, x, drop):
    return part.second(drop(torch.relu(part.norm(part.first(drop(x))))))


def dagnn(model, shape, x, edges, drop):
    """PyTorch Geometric has no DAGNN: its normalization, and sums by index."""
    edges = gcn_norm(*edges, len(x), dtype=x.dtype)
    h = perceptron(model.perceptron, x, drop)
    logits = torch.sigmoid(model.gate(h)) * h
    for _ in range(shape.num_layers):
        h = weighed_sum(h, edges)
        logits = logits + torch.sigmoid(model.gate(h)) * h
    return logits


def sgc(model, shape, x, edges, drop):
    peer = pyg.SGConv(shape.in_dim, shape.out_dim, shape.num_layers).double()
    weights = {"lin.weight": model.linear.weight, "lin.bias": model.linear.bias}
    return functional_call(peer, weights, (drop(x), *edges))


def jknet(model, shape, x, edges, drop):
    h, depths = x, []
    for layer, norm in zip(model.convolutions, model.norms, strict=True):
        h = torch.relu(norm(gcn(layer, drop(h), edges)))
        depths.append(h)
    joined = pyg.JumpingKnowledge({"concat": "cat", "max": "max"}[shape.jump])(depths)
    return model.last(drop(joined))


def appnp(model, shape, x, edges, drop):
    return pyg.APPNP(shape.num_layers, shape.alpha)(perceptron(model.perceptron, x, drop), *edges)


PEERS = {**dict.fromkeys(CONVOLUTIONS, stack), "gcnii": gcnii, "dagnn": dagnn, "sgc": sgc, "jknet": jknet,
         "appnp": appnp}


def peer_logits(model, shape, dataset, drop=lambda h: h, edge_weight=None):
    """(num_nodes, out_dim) float64 logits of `model`, whose weights are float64; edge_weight lies beside indices."""
    x = torch.from_numpy(dataset.features).double()
    weight = None if edge_weight is None else torch.from_numpy(edge_weight).double()
    edges = edge_index_of(dataset), torch.from_numpy(dataset.edge_type).long() if shape.model == "rgcn" else weight
    return PEERS[shape.model](model, shape, x, edges, drop)


def mean_loss(logits, labels, mask, num_train):
    """Cross-entropy over the masked rows, divided by the training nodes of all ranks."""
    return functional.cross_entropy(logits[mask], labels[mask], reduction="sum") / num_train
