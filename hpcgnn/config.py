"""Settings of a training run, from four layers: defaults < data/registry.toml < --config FILE < flags.

An unknown key is an error, and so is a setting that has no effect together with the others.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection
from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any

from hpcgnn.errors import ConfigError
from hpcgnn.methods import METHODS, find_method, name_of, users_of
from hpcgnn.methods.method import DIFFERENCES, NARROW_SUMS, Method
from hpcgnn.methods.stored import Vanilla
from hpcgnn.nn.layers import ROW_BY_ROW
from hpcgnn.nn.names import MODEL_PATHS
from hpcgnn.registry import read_registry
from hpcgnn.settings import Clash, check_values, hint_of, setting, type_name

MODELS = tuple(MODEL_PATHS)
# Schemes of quantization-aware training: in LEARNED ones steps are parameters, in SIZED ones widths too.
SCHEMES = ("none", "degree-aware", "layer-aware", "degree-steps", "uniform", "degree-quant")
QUANTIZED, LEARNED, SIZED = SCHEMES[1:], SCHEMES[1:5], SCHEMES[1:3]
AS_DROPOUT = -1.0      # of input_dropout
# Models whose input may change from epoch to epoch.
LABEL_MODELS = tuple(model for model in MODELS if model != "sgc")      # sgc keeps its propagated input
SKIPPING = ("sancus",)      # methods that leave rows out which have hardly moved
RESIDUAL_MODELS = ("gcn", "sage", "sage-max", "gat", "gin", "rgcn")
QUANTIZED_MODELS = ("gcn", "sage", "gin", "gat")

OWN = "own"      # a loss or a score that a user's program gave to hpcgnn.fit
LOSSES = ("auto", "cross_entropy", "binary_cross_entropy", "mse", "mae", "soft_cross_entropy", OWN)
SCORES = ("auto", "accuracy", "macro_f1", "micro_f1", "roc_auc", "r2", "mae", "rmse", "soft_accuracy", OWN)
NODES, LINKS = "nodes", "links"      # values of `task`
LINK_DECODER = "link_decoder"      # the submodule of a model that scores links, if they have relations
LINK_SCORES = ("mrr", "auc", *(f"{kind}@{most}" for kind in ("hits", "recall", "ndcg")
                               for most in (1, 3, 10, 20, 50, 100)))
SCHEDULES = ("constant", "cosine", "linear")
SLOWEST_LINK = 0.001
AS_THEY_ARE = 32          # bits of rows that are stored unchanged, without codes
AUTO, BY_ROW, MOST_STEPS = "auto", "rows:", 4096      # values of `steps`
NO_LIMIT = "0"            # of memory
CLUSTERS_A_BATCH = 16                  # in inference
DEFAULT_AVERAGE = 0.25                 # share of an epoch's steps
# Headings of help.
MODEL, TRAINING, MESSAGES, RUN, GPU = "Model", "Training", "Messages", "Run", "GPU"
LINK_TRAINING = "Links"
QUANTIZATION = "Quantization-aware training"

# Directions with rotated messages, by the value of `code`.
ROTATED = {"affine": (), "rotated": ("forward", "backward"), "rotated-forward": ("forward",),
           "rotated-backward": ("backward",)}
LEAST_ROTATED = 8    # methods rotate rows from this number of columns on: fewer columns leave more bias

STEPS_CLASHES = (
    Clash("rematerialize", True, "rematerialize saves the memory of rows that steps keep anyway; choose one"),
    Clash("nodes_aware", "on", "ranks of a node share the rows of whole layers; choose one"),
    Clash("pre_aggregation", "on", "a step computes only some of the rows in a sum; choose one"))
# Settings that edge_dropout refuses, and why.
FITTED_TO_EDGES = {"pre_aggregation": "sums before sending are fitted to all edges",
                   "quantize": "steps and widths are fitted to all edges"}
# Settings that node_embedding refuses, and why.
NO_LEARNED_INPUT = {"pre_aggregation": "sums before sending leave out rows, and every learned row is computed",
                    "quantize": "integers are fitted to features that stay as they are"}
EARLIER_DEFAULTS = {"candidates": "all", "negatives": 1024}      # which folders of earlier runs name, of any task
# Settings that task links refuses, and why.
NOT_FOR_LINKS = {"quantize": "integers are trained for classes; leave quantize out",
                 "clusters": "links between clusters would not be learned; leave clusters out",
                 "label_inputs": "inputs would be labels of nodes, and none are learned; leave label_inputs out",
                 "pre_aggregation": "the loss reads rows of other ranks one by one, and a sum has none; use "
                                    "pre_aggregation=off",
                 "loss": "link_loss is its loss; leave loss out"}
# Settings that step_graph refuses, and why: a replayed step does only what the device did.
NOT_IN_A_STEP_GRAPH = {"steps": "a step is captured whose graph is the same in every epoch",
                       "clip_norm": "the host reads the gradients' norm in each step",
                       "edge_dropout": "the host draws the edges of each epoch",
                       "label_inputs": "the host draws the labels that each epoch hides",
                       "task": "the host draws the links of each epoch",
                       "quantize": "the host moves widths and ranges in each step",
                       "store_activations": "its rows are rounded by draws of the captured epoch"}
NO_BATCHES = f"hpcgnn infer answers in batches with {', '.join(QUANTIZED_MODELS)} only; choose one of them"
CLUSTERS_CLASHES = tuple(Clash("model", model, NO_BATCHES) for model in MODELS if model not in QUANTIZED_MODELS)
NO_INTEGERS = f"integer convolutions exist for {', '.join(QUANTIZED_MODELS)} only; choose one of them"
# Values of other settings that a setting's value can't be combined with; methods declare their own clashes.
CLASHES: dict[tuple[str, Any], tuple[Clash, ...]] = {
    ("rematerialize", True): (
        Clash("predict", DIFFERENCES, "every row is kept at its receiver; choose one"),
        Clash("exchange", "alltoallv", "alltoallv brings the rows of all peers at once; use --set exchange=ring"),
        *(Clash("precision", precision, "sums would be rounded to 16 bits after every peer; use fp32")
          for precision in ("bf16", "fp16"))),
    **{("store_activations", bits): tuple(
        Clash("quantize", scheme, "quantized layers keep rows in their own way; choose one") for scheme in QUANTIZED)
       for bits in (2, 4, 8)},
    ("nodes_aware", "on"): (
        Clash("rematerialize", True, "rows that are shared do not come peer by peer; choose one"),
        Clash("device", "cuda", "rows are shared in the memory of the host; use nodes_aware=off")),
    ("pre_aggregation", "on"): (
        *(Clash("model", model, "its layers read rows of other ranks one by one; use pre_aggregation=off")
          for model in ROW_BY_ROW),
        Clash("rematerialize", True, "sums do not come peer by peer; choose one"),
        Clash("predict", DIFFERENCES, "a sum is of masked rows, and masks change with every epoch; choose one"),
        *(Clash("quantize", scheme, "quantized layers round rows one by one; choose one") for scheme in QUANTIZED)),
    ("residual", True): tuple(
        Clash("quantize", scheme, "integers have no residual sums; leave residual out") for scheme in QUANTIZED),
    ("norm", "batch"): (
        Clash("model", "sgc", "it has no hidden layers; leave norm out"),
        Clash("pre_aggregation", "on", "statistics are over all rows, and these sums leave rows out; choose one"),
        *(Clash("quantize", scheme, "integers have no batch norm; use norm=layer or none") for scheme in QUANTIZED)),
    ("sums", "half"): (Clash("precision", "fp32", "it sums 16-bit rows; use bf16 or fp16"),),
    **{("quantize", scheme): (
        *(Clash("model", model, NO_INTEGERS) for model in MODELS if model not in QUANTIZED_MODELS),
        *(Clash("precision", precision, "integers are trained as float32 values, and 16 bits would round them once "
                "more; use fp32") for precision in ("bf16", "fp16")),
        Clash("rematerialize", True, "quantized layers can't be run again in the backward pass; choose one"))
       for scheme in QUANTIZED},
}


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a training run computes.

    Raises
    ------
    ConfigError      a value of the wrong type, outside its range or its choices, or that can't be combined with others
    """

    model: str = setting("sage", f"Model. One of {', '.join(MODELS)}, or your own as MODULE:CLASS.", group=MODEL,
                         flag="common")
    model_args: str = setting("", "What your own model's constructor takes besides the usual sizes, as a JSON object: "
                              "'{\"heads\": 8}'.", group=MODEL, flag="none")
    layers: int = setting(3, "Number of convolutions; of propagation steps for dagnn, sgc and appnp.", low=1,
                          high=1024, group=MODEL, flag="common")
    hidden: int = setting(256, "Columns of the hidden layers' rows.", low=1, high=1 << 20, group=MODEL, flag="common")
    heads: int = setting(4, "Attention heads of gat, which share the hidden width.", low=1, high=1024, group=MODEL,
                         flag="none")
    num_bases: int = setting(8, "Basis matrices of a layer; each relation's matrix is a weighted sum of them. 0, or as "
                             "many as there are relations, gives each relation a matrix of its own.", low=0,
                             high=1 << 16, models=("rgcn",), group=MODEL, flag="none")
    num_blocks: int = setting(0, "Blocks of a relation's matrix, which is zero elsewhere, instead of bases; they "
                              "divide the columns of every layer. 0: num_bases.", low=0, high=1 << 16, models=("rgcn",),
                              group=MODEL, flag="none")
    alpha: float = setting(0.1, "Share of the initial rows in the result of every layer or step.", low=0.0, high=1.0,
                           models=("gcnii", "appnp"), group=MODEL, flag="none")
    theta: float = setting(0.5, "Layer l weighs its linear map by log(theta / l + 1), and the identity by the rest.",
                           low=0.0, models=("gcnii",), group=MODEL, flag="none")
    jump: str = setting("concat", "How the rows of all layers are joined before the last map: side by side, or by the "
                        "maximum of each column.", ("concat", "max"), models=("jknet",), group=MODEL, flag="none")
    task: str = setting(NODES, "What the model learns: the labels of nodes, or links, by rows whose product is large "
                        "for the two ends of an edge.", (NODES, LINKS), group=LINK_TRAINING, flag="common")
    negatives: int = setting(0, "Nodes drawn in each step of an epoch, as many of each type if candidates are of one "
                             "type; an edge's product must exceed the products with their rows. 0 takes 1024, or 32 "
                             "with decoder=mlp, whose scores cost more.", low=0, high=1 << 16, tasks=(LINKS,),
                             group=LINK_TRAINING, flag="none")
    link_loss: str = setting("softmax", "Loss of an edge: cross-entropy of its product among those with the drawn "
                             "nodes (softmax), or of edge and drawn nodes one by one (bce), or the Bayesian "
                             "personalized ranking loss against one drawn node (bpr).",
                             ("softmax", "bce", "bpr"), tasks=(LINKS,), group=LINK_TRAINING, flag="none")
    adversarial_temperature: float = setting(0.0, "Hard negatives for link_loss=bce, such as 1: a drawn node counts by "
                                             "the softmax of this times its score, not as all others. 0 is the mean.",
                                             low=0.0, high=1e4, tasks=(LINKS,), group=LINK_TRAINING, flag="none")
    decoder: str = setting("auto", "Score of a link from the rows of its ends: their product (dot), or, with a row of "
                           "weights for each relation, the product of three (distmult), of complex numbers in complex; "
                           "or a network of two layers on the product of their columns (mlp). auto is distmult if "
                           "edges have relations, else dot.",
                           ("auto", "dot", "distmult", "complex", "mlp"), tasks=(LINKS,), group=LINK_TRAINING,
                           flag="none")
    n3: float = setting(0.0, "Weight of the regularizer N3, such as 0.01: this times the cubes of the values in the "
                        "rows of an edge's ends and relation are added to its loss.", low=0.0, tasks=(LINKS,),
                        group=LINK_TRAINING, flag="none")
    link_share: float = setting(1.0, "Share of the questions, a node with a relation, that an epoch draws and learns. "
                                "With a smaller share the weights move as often in less time, if the model itself is "
                                "cheap.", low=1e-6, high=1.0, tasks=(LINKS,), group=LINK_TRAINING, flag="none")
    ask: str = setting("both", "End of a held-out link that is searched for in evaluations: its target, its source, "
                       "or both, one after the other.", ("both", "targets", "sources"), tasks=(LINKS,),
                       group=LINK_TRAINING, flag="none")
    asked_label: int = setting(-1, "Label of the nodes that a training asks for their links' other ends, such as users "
                               "that are asked for items; -1 asks all nodes.", low=-1, tasks=(LINKS,),
                               group=LINK_TRAINING, flag="none")
    asked_relation: str = setting("", "Relation, such as user__rates__item, whose links alone a training learns and "
                                  "scores, while edges of all relations carry messages. With --symmetrize its reverse "
                                  "is asked, too. Without a name all relations are.", tasks=(LINKS,),
                                  group=LINK_TRAINING, flag="none")
    candidates: str = setting("auto", "Nodes among which a link's end is searched for, and drawn: all, those of its "
                              "own type (type), or those with its own label (label), such as the items of a shop's "
                              "users. auto is type in a graph with types of nodes, else all.",
                              ("auto", "all", "type", "label"), tasks=(LINKS,), group=LINK_TRAINING, flag="none")
    epochs: int = setting(200, "Epochs to train; 0 scores and saves a model as it is.", low=0, group=TRAINING,
                          flag="common")
    steps: str = setting("1", "Optimizer steps per epoch: each computes the rows of some clusters, or with rows:N some "
                         "rows drawn one by one, and reads all other rows as they last were. 1 is the whole graph in "
                         "one step; auto begins with many and ends with 1.",
                         group=TRAINING, flag="common")
    history: str = setting("stored", "How epochs of several steps keep the last values of all rows: as they are "
                           "stored, as bfloat16, or as codes of 8 or 4 bits.", ("stored", "bf16", "8", "4"),
                           group=TRAINING, flag="none")
    average: float = setting(DEFAULT_AVERAGE, "Share of an epoch's steps over which weights are averaged, for scores "
                             "and predictions; over the last tenth of all steps if that is more. 0 never averages.",
                             low=0.0, high=1000.0, group=TRAINING, flag="none")
    ema: float = setting(0.0, "Decay per step of an exponential average of the weights over all epochs, such as 0.99, "
                         "for scores and predictions; 0 averages as `average` says.", low=0.0, high=0.9999,
                         group=TRAINING, flag="none")
    clusters: int = setting(0, "Cut the graph into this many METIS clusters, and train and score without the edges "
                            "between clusters, as hpcgnn infer --clusters. 0 is the whole graph.",
                            low=0, group=TRAINING, flag="none")
    between_clusters: bool = setting(False, "Keep the edges between clusters of one batch, as infer can.",
                                     group=TRAINING, flag="none")
    batch_size: int = setting(CLUSTERS_A_BATCH, "Clusters per batch of infer, if edges between them are kept.", low=1,
                              group=TRAINING, flag="none")
    optimizer: str = setting("adam", "Adam with weight decay in the gradients (adam), or with weights that shrink by "
                             "lr times weight_decay in each step (adamw).", ("adam", "adamw"), group=TRAINING,
                             flag="none")
    lr: float = setting(0.01, "Learning rate of Adam.", low=0.0, group=TRAINING, flag="common")
    clip_norm: float = setting(0.0, "Largest norm of a step's gradient of all weights; a longer one is scaled to it. "
                               "0 clips nothing.", low=0.0, group=TRAINING, flag="none")
    schedule: str = setting("constant", "How the learning rate changes after every epoch: it stays, or falls from lr "
                            "to 0 over the epochs, along half a cosine or a line.", SCHEDULES, group=TRAINING,
                            flag="none")
    warmup: int = setting(0, "Epochs at the start in which the learning rate rises from lr/N to lr.", low=0,
                          group=TRAINING, flag="none")
    dropout: float = setting(0.5, "Dropout probability on the input of every layer. Links have 0 unless it is given.",
                             low=0.0, high=0.999, group=TRAINING, flag="common")
    input_dropout: float = setting(AS_DROPOUT, "Dropout probability on the input rows; -1 takes the value of dropout. "
                                   "0 is as in PyTorch Geometric's models, which have none there.", low=AS_DROPOUT,
                                   high=0.999, models=MODELS, group=TRAINING, flag="none")
    edge_dropout: float = setting(0.0, "Share of the edges that are left out, drawn anew in every epoch, and for "
                                  "each step; sums are over the thinned graph. Evaluation has all edges.",
                                  low=0.0, high=0.999, models=MODELS, group=TRAINING, flag="none")
    weight_decay: float = setting(0.0, "L2 penalty added to the gradients, or AdamW's decay.", low=0.0, group=TRAINING)
    weight_decay_layers: str = setting("all", "Layers with weight decay.", ("all", "first"), group=TRAINING,
                                       flag="none")
    norm: str = setting("layer", "Normalization after every hidden layer: of each row over its columns (layer), or of "
                        "each column over the rows of all ranks, with running statistics for evaluation (batch).",
                        ("none", "layer", "batch"), group=MODEL)
    residual: bool = setting(False, "Add each hidden layer's input to its output, from the second layer on, after "
                             "normalization and ReLU.", models=RESIDUAL_MODELS, group=MODEL, flag="none")
    label_inputs: float = setting(0.0, "Share of the training labels that an epoch takes as input, in a column per "
                                  "class behind the features; the loss is over the other training nodes, and "
                                  "evaluation and predictions take all training labels. 0 takes none.", low=0.0,
                                  high=0.99, models=LABEL_MODELS, group=MODEL, flag="none")
    node_embedding: int = setting(0, "Columns of a learned row of each node, behind the features; each rank trains "
                                  "the rows of its own nodes. 0 learns none.", low=0, high=1 << 16,
                                  models=LABEL_MODELS, group=MODEL, flag="none")
    method: Method = field(default_factory=Vanilla)
    overlap: bool = setting(True, "Aggregate rows that need no halo row while messages travel.", group=MESSAGES,
                            flag="none")
    predict: str = setting("none", "What messages hold: rows (none), their difference from what the receiver has "
                           "(previous), or the difference in exchanges with rows or gradients that were measured to "
                           "change by less than they are (auto).", ("none", *DIFFERENCES), group=MESSAGES, flag="none")
    send_share: float = setting(1.0, "Share of a message's rows that are sent, with predict=previous: those that "
                                "differ most from what the receiver has. It keeps its other rows, and what they lack "
                                "is sent later.", low=0.001, high=1.0, group=MESSAGES, flag="none")
    code: str = setting("auto", "How rows of 1 to 8 bits per value are coded. affine: in steps between the least and "
                        "the largest value. rotated: in steps about zero, after a random rotation that the receiver "
                        "undoes, with half the parameters and a smaller error at 1 bit, mostly also at 2. "
                        "rotated-forward rotates rows only, rotated-backward gradients only. auto is the method's "
                        "choice for rows of 8 columns or more, and affine for narrower rows.", ("auto", *ROTATED),
                        group=MESSAGES, flag="none")
    rematerialize: bool = setting(False, "Hold one peer's halo rows in memory at a time, and fetch rows again that the "
                                  "backward pass needs.", group=MESSAGES, flag="none")
    pipeline: str = setting("thread", "How messages of asynchronous epochs travel: in pieces that a thread carries "
                            "while the rank computes, where MPI lets threads call it (thread), in pieces that move "
                            "between blocks of rows (polling), or each in one go (whole).",
                            ("thread", "polling", "whole"), group=MESSAGES, flag="none")
    nodes_aware: str = setting("auto", "Ranks of a node share one copy of each row of another node, which is sent "
                               "once, and read each other's rows in their memory (on); or rows travel to each rank "
                               "that reads them (off). auto shares if there are several nodes, and several ranks "
                               "in one.",
                               ("auto", "on", "off"), group=MESSAGES, flag="none")
    ranks_per_node: int = setting(0, "Consecutive ranks that count as a node, such as the ranks of a socket; 0 is all "
                                  "that share a memory.", low=0, group=MESSAGES, flag="none")
    pre_aggregation: str = setting("off", "If several rows of a rank go to few rows of another, send their sums "
                                   "instead, so that the fewest rows are sent (on). Exact except for rounding; only "
                                   "for models with layers that are linear in their neighbors' rows.", ("off", "on"),
                                   group=MESSAGES, flag="none")
    sum_bits: int = setting(0, "Bits per value in messages that sum gradients over the ranks: 32 sends float32, fewer "
                            "send codes that are rounded at random, and what a code lacks is added to the next sum. 0 "
                            f"takes the method's own: {NARROW_SUMS} with uniform of up to 8 bits, sylvie and joint, "
                            "else 32.", (0, 1, 2, 4, 8, 16, 32), group=MESSAGES, flag="none")
    link_mbps: float = setting(0.0, "Slow messages and sums down to a link of this many MB/s per rank, at least "
                               f"{SLOWEST_LINK}; 0 sends them at full speed.", low=0.0, high=1e9, group=MESSAGES,
                               flag="none")
    precision: str = setting("fp32", "Storage and products of rows; sums, weights and the loss stay float32. auto is "
                             "bf16 if a sample of the model's work is faster in it, else fp32.",
                             ("fp32", "bf16", "fp16", "auto"), group=TRAINING, flag="common")
    store_activations: int = setting(AS_THEY_ARE, "Bits per value that layers keep for the backward pass: 32 keeps "
                                     "rows as they are, fewer bits keep codes that are rounded at random.",
                                     (2, 4, 8, AS_THEY_ARE), group=TRAINING, flag="none")
    sums: str = setting("float32", "Sums of 16-bit rows on a GPU: float32 throughout, or 16 products at a time in the "
                        "rows' own type (half), as in HalfGNN: faster, and rounded once per product.",
                        ("float32", "half"), devices=("cuda",), group=GPU, flag="none")
    quantize: str = setting("none", "Train weights and rows as small integers: widths and steps learned by in-degree "
                            "(degree-aware) or by layer (layer-aware); one width, with steps learned by in-degree "
                            "(degree-steps) or one step for all rows of a layer (uniform); or tracked ranges, with "
                            "nodes protected at random (degree-quant).", SCHEMES, group=QUANTIZATION, flag="common")
    quantize_bits: int = setting(4, "Bits of weights and of mapped rows; also of rows if no width is learned.", low=2,
                                 high=8, schemes=QUANTIZED, group=QUANTIZATION, flag="none")
    target_kb: float = setting(0.0, "Target size in KB of all layers' rows, to which widths are pulled; 0 is 2 bits "
                                    "per value.", low=0.0,
                               schemes=SIZED, group=QUANTIZATION, flag="none")
    size_weight: float = setting(1.0, "Weight of the squared relative excess over target_kb in the loss.", low=0.0,
                                 schemes=SIZED, group=QUANTIZATION, flag="none")
    quantize_lr: float = setting(0.05, "Adam's learning rate for logarithms of steps; a fifth of it for widths.",
                                 low=0.0, schemes=LEARNED, group=QUANTIZATION, flag="none")
    quantize_gradient: str = setting("local", "What steps and widths of rows, and steps of mapped rows, learn from: "
                                     "their own rounding error (local), which every node has, or the loss "
                                     "(straight-through), whose gradient reaches few nodes if few are labeled.",
                                     ("local", "straight-through"), schemes=LEARNED, group=QUANTIZATION, flag="none")
    protect: str = setting("0,0.2", "Probabilities that a training pass leaves the rows of a node unquantized, at the "
                           "lowest and at the highest in-degree.", schemes=("degree-quant",), group=QUANTIZATION,
                           flag="none")
    epoch_rows: str = setting("reachable", "Rows that a training epoch computes: those that the loss depends on, or "
                              "all. Gradients are the same.", ("reachable", "all"), group=TRAINING,
                              flag="none")
    exchange: str = setting("ring", "How messages are posted: peer by peer around a ring, or all in one MPI_Alltoallv.",
                            ("ring", "alltoallv"), group=MESSAGES,
                            flag="none")
    loss: str = setting("auto", "Loss to train with; auto is cross_entropy for classes, binary_cross_entropy for "
                        "several labels per node, and mse for targets of a regression; soft_cross_entropy is for "
                        "targets that are the probabilities of classes.", LOSSES, group=TRAINING,
                        flag="none")
    score: str = setting("auto", "Score to report; auto is accuracy for classes, micro_f1 for several labels per node, "
                         "and r2 for targets of a regression. For links mrr, which is auto, auc, and hits@K, recall@K "
                         "or ndcg@K with K 1, 3, 10, 20, 50 or 100.", (*SCORES, *LINK_SCORES), group=TRAINING,
                         flag="none")
    eval_every: int = setting(5, "Epochs between evaluations.", low=1, group=TRAINING, flag="common")
    early_stop: int = setting(0, "Evaluations without a better validation score before stopping; 0 never stops.",
                              low=0, group=TRAINING, flag="common")
    seed: int = setting(0, "Seed of initialization, dropout and rounding.", low=0, high=2**31,
                        group=TRAINING, flag="common")
    repeat: int = setting(1, "Trainings with consecutive seeds.", low=1, group=TRAINING, flag="common")
    checkpoint_every: int = setting(50, "Epochs between checkpoints; 0 writes one at the end and at a signal only.",
                                    low=0, group=RUN, flag="common")
    hours: float = setting(0.0, "Hours from the start of the process by which a run ends, with a checkpoint and "
                           "status 75, as at a signal; it ends before, if another epoch would not fit. 0 is the end "
                           "of the job if Slurm names one, else no limit.", low=0.0,
                           group=RUN, flag="common")
    memory: str = setting(NO_LIMIT, "Memory that all ranks of a machine may use together, such as 12G (G is 1024**3 "
                          "bytes): tables that exceed it lie on a disk. 0 sets no limit.", group=RUN)
    scratch: str = setting("", "Folder on a local disk for tables that exceed `memory`; nothing is left in it. By "
                           "default $SLURM_TMPDIR, $TMPDIR, else /var/tmp.", group=RUN, flag="none")
    track: str = setting("none", "Where else the run is recorded while it trains; TensorBoard's files are in the run "
                         "folder.", ("none", "tensorboard", "mlflow", "wandb"), group=RUN, flag="none")
    timeout: float = setting(1800.0, "Seconds without progress after which the job ends and names the rank that "
                             "stopped; 0 waits for ever.", low=0.0, group=RUN)
    transport: str = setting("auto", "How messages leave a GPU: MPI reads the GPU's memory (cuda-aware), or a copy in "
                             "pinned memory of the host (staged); auto is cuda-aware if an exchange at the start "
                             "proves that it works.",
                             ("auto", "cuda-aware", "staged"), devices=("cuda",), group=GPU, flag="none")
    step_graph: str = setting("off", "Capture a step of training once as a CUDA graph, and replay it in every epoch "
                              "(on), so that the GPU does not wait for Python to start its kernels: for small graphs, "
                              "on one rank. Losses are the same.", ("off", "on"), devices=("cuda",), group=GPU,
                              flag="none")
    device: str = setting("cpu", "Device that computes; with cuda, the ranks of a node divide its GPUs among them.",
                          ("cpu", "cuda"), group=GPU, flag="common")

    def __post_init__(self):
        check_values(self)
        if self.model not in MODELS and ":" not in self.model:
            raise ConfigError(f"model must be one of {', '.join(MODELS)}, or MODULE:CLASS, found {self.model!r}"
                              + hint_of(self.model, MODELS))
        parse_arguments(self.model_args)
        if self.scratch and not parse_memory(self.memory):
            raise ConfigError(f"scratch {self.scratch} has no effect without a limit; set --memory too, or leave "
                              "it out, after a run that had it by --set scratch=")
        if parse_memory(self.memory) and self.device == "cuda":
            raise ConfigError(f"memory {self.memory} can't be used with device cuda: tables of a GPU can't lie on a "
                              "disk; leave one of them out")
        others = {own.name: getattr(self, own.name) for own in fields(self)}
        self._check_steps(others)
        self._check_clusters()
        if self.model_args and ":" not in self.model:
            raise ConfigError(f"model_args has no effect on model {self.model}, only on your own as MODULE:CLASS; "
                              "leave it out, or change --model")
        if self.step_graph == "on":
            self._check_step_graph(others)
        if self.norm == "batch" and ":" in self.model:
            raise ConfigError(f"norm batch has no effect on model {self.model}, only on built-in ones; leave it out, "
                              "or change --model")
        for own in fields(self):
            self._check_use(own)
        self._check_clashes(others)
        if self.task == LINKS:
            self._check_links(others)
        elif self.score in LINK_SCORES:
            raise ConfigError(f"score {self.score} is for links; add --task links, or choose a score of nodes")
        if self.edge_dropout:
            _refuse("edge_dropout", FITTED_TO_EDGES, others)
        if self.label_inputs:
            self._check_label_inputs()
        if self.node_embedding:
            _refuse("node_embedding", NO_LEARNED_INPUT, others)
        if self.num_blocks and self.num_bases != default_of("num_bases"):
            raise ConfigError(f"num_blocks {self.num_blocks} can't be used with num_bases {self.num_bases}: a "
                              "relation's matrix is made of blocks or of bases; leave one out")
        if self.send_share < 1.0 and self.predict != "previous":
            raise ConfigError(f"send_share {self.send_share} can't be used with predict {self.predict}: rows that are "
                              "not sent stay as their receiver has them, so it must have got differences from the "
                              "first epoch on; use predict=previous, or leave send_share out")
        if self.residual and self.layers < 3:
            raise ConfigError(f"residual has no effect on {self.layers} layers, only on 3 or more; leave it out, or "
                              "change --layers")
        if self.optimizer == "adamw" and not self.weight_decay:
            raise ConfigError("optimizer adamw is adam if weight_decay is 0; set --weight-decay too, such as 0.01")
        if self.ema and self.average != DEFAULT_AVERAGE:
            raise ConfigError(f"average {self.average} has no effect with ema; leave one out")
        if self.warmup and self.warmup >= self.epochs > 0:
            raise ConfigError(f"warmup must be less than the {self.epochs} epochs, found {self.warmup}; change one of "
                              "them")
        if AS_DROPOUT < self.input_dropout < 0:
            raise ConfigError(f"input_dropout must be -1 or a probability, found {self.input_dropout}")
        if 0 < self.link_mbps < SLOWEST_LINK:
            raise ConfigError(f"link_mbps must be 0 or at least {SLOWEST_LINK}, found {self.link_mbps}; an epoch would "
                              "take years")
        if self.quantize != "none":
            if ":" in self.model:
                raise ConfigError(f"quantize {self.quantize} can't be used with model {self.model}: {NO_INTEGERS}")
            parse_protection(self.protect)
        if self.model == "gat" and self.layers > 1 and self.hidden % self.heads:
            raise ConfigError(f"hidden must be a multiple of the {self.heads} attention heads, found {self.hidden}; "
                              "change hidden or heads")

    def _check_clashes(self, others: dict[str, Any]) -> None:
        self.method.check(others)
        for (name, value), clashes in CLASHES.items():
            if others[name] == value:
                for clash in clashes:
                    clash.check(others, name if value is True else f"{name} {value}")

    def _check_links(self, others: dict[str, Any]) -> None:
        _refuse("task links", NOT_FOR_LINKS, others, advice="")
        if self.adversarial_temperature and self.link_loss != "bce":
            reason = "already weighs drawn nodes by the softmax of their scores" if self.link_loss == "softmax" else \
                "has one drawn node for each edge"
            raise ConfigError(f"adversarial_temperature has no effect with link_loss {self.link_loss}, which {reason}; "
                              "leave it out, or use link_loss=bce")

    def _check_step_graph(self, others: dict[str, Any]) -> None:
        _refuse("step_graph", NOT_IN_A_STEP_GRAPH, others)
        if self.precision == "fp16":
            raise ConfigError("step_graph can't be used with precision fp16: the host reads after each step whether "
                              "gradients have overflowed; use bf16")
        if ":" in self.model:
            raise ConfigError(f"step_graph can't be used with model {self.model}: its Python would not run again; "
                              "use step_graph=off")

    def _check_label_inputs(self) -> None:
        if self.quantize != "none":
            raise ConfigError(f"label_inputs can't be used with quantize {self.quantize}: integers are fitted to "
                              "features that stay as they are; choose one")
        keeps = f"steps {self.steps}" if self.steps != "1" else f"method {self.method.name}"
        if self.steps != "1" or self.method.rule() != "never" or self.method.name in SKIPPING:
            raise ConfigError(f"label_inputs can't be used with {keeps}: it reads rows of earlier epochs, which were "
                              "computed from labels that are in the loss now; choose "
                              + ("one" if self.steps != "1" else "vanilla, uniform, random, bns or adaqp"))

    def _check_steps(self, others: dict[str, Any]) -> None:
        number = self.steps.removeprefix(BY_ROW)
        if self.steps != AUTO and not (number.isascii() and number.isdigit() and 1 <= int(number) <= MOST_STEPS):
            raise ConfigError(f"steps must be a number from 1 to {MOST_STEPS}, {BY_ROW} and such a number, or {AUTO}, "
                              f"found {self.steps!r}")
        if self.steps == "1":
            for name, default in (("history", "stored"), ("average", DEFAULT_AVERAGE)):
                if getattr(self, name) != default:
                    raise ConfigError(f"{name} {getattr(self, name)} has no effect on an epoch of one step; leave it "
                                      "out, or change --steps")
            return
        for clash in STEPS_CLASHES:
            clash.check(others, f"steps {self.steps}")

    def _check_clusters(self) -> None:
        if not self.clusters and self.between_clusters:
            raise ConfigError("between_clusters has no effect on the whole graph; leave it out, or set clusters too")
        if not self.between_clusters and self.batch_size != CLUSTERS_A_BATCH:
            raise ConfigError(f"batch_size {self.batch_size} has no effect if edges between clusters are left out; "
                              "leave it out, or set clusters and between_clusters too")
        if not self.clusters:
            return
        others, owner = {own.name: getattr(self, own.name) for own in fields(self)}, f"clusters {self.clusters}"
        for clash in CLUSTERS_CLASHES:
            clash.check(others, owner)
        if ":" in self.model:
            raise ConfigError(f"{owner} can't be used with model {self.model}: {NO_BATCHES}")
        if self.steps != "1":
            raise ConfigError(f"{owner} can't be used with steps {self.steps}: a step reads rows of other steps as "
                              "they last were, and a batch reads only its own rows; choose one")

    @property
    def fixed_steps(self) -> tuple[int | None, bool]:
        """Steps per epoch (None if the number changes), and whether rows are always dealt out one by one."""
        number = None if self.steps == AUTO else int(self.steps.removeprefix(BY_ROW))
        return number, self.steps.startswith(BY_ROW)

    @property
    def num_drawn(self) -> int:
        """Number of nodes that a step of links draws."""
        return self.negatives or (32 if self.decoder == "mlp" else 1024)

    @property
    def in_clusters(self) -> bool:
        """Whether an epoch may have steps of whole clusters."""
        number, by_row = self.fixed_steps
        return number != 1 and not by_row

    @property
    def may_share_rows(self) -> bool:
        """Whether ranks of a node may share rows."""
        if self.nodes_aware != "auto":
            return self.nodes_aware == "on"
        shared = {own.name: getattr(self, own.name) for own in fields(self)} | {"nodes_aware": "on"}
        try:
            self._check_steps(shared)
            self._check_clashes(shared)
        except ConfigError:
            return False
        return True

    @property
    def bits_of_sums(self) -> int:
        """Bits per value in sums of gradients."""
        return self.sum_bits or self.method.own_sum_bits()

    @property
    def stored_bits(self) -> int | None:
        """Bits of the rows that layers keep for the backward pass; None keeps them as they are."""
        return None if self.store_activations == AS_THEY_ARE else self.store_activations

    @classmethod
    def of(cls, **settings: Any) -> TrainConfig:
        """A configuration from settings by name, including the method's settings; steps=4 is steps="4".

        Links have no dropout unless it is given, as in three of four link examples of OGB: it slows their learning.

        Raises ConfigError: an unknown setting; a changed setting of another method; and as `TrainConfig`.
        """
        method = find_method(settings.pop("method", Vanilla.name))
        if settings.get("task") == LINKS:
            settings = {"dropout": 0.0, **settings}
        own = {known.name for known in fields(method)}
        common = {known.name: type_name(known) for known in fields(cls)}
        of_method = {name: value for name, value in settings.items() if name in own}
        of_run: dict[str, Any] = {
            name: str(value) if type(value) is int and common[name] == "str" else value
            for name, value in settings.items() if name in common}
        foreign = {name: value for name, value in settings.items() if name not in own | common.keys()}
        for name, value in check_keys(foreign, "the settings").items():
            users = users_of(name)
            if value != default_of(name):
                raise ConfigError(f"{name} = {value} has no effect on method {method.name}, only on "
                                  f"{', '.join(users)}; leave it out or change --method")
        return cls(method=method(**of_method), **of_run)

    def _check_use(self, own: Field) -> None:
        """Refuse a changed setting that the model, scheme or device does not use: the user expects an effect."""
        value = getattr(self, own.name)
        chosen = {"models": ("model", self.model), "schemes": ("quantize", self.quantize),
                  "devices": ("device", self.device), "tasks": ("task", self.task)}
        for kind, users in own.metadata.get("users", {}).items():
            flag, choice = chosen[kind]
            if choice not in users and value not in (own.default, EARLIER_DEFAULTS.get(own.name, own.default)):
                raise ConfigError(f"{own.name} = {value} has no effect on {flag} {choice}, only on "
                                  f"{', '.join(users)}; leave it out or change --{flag}")


def _refuse(owner: str, reasons: dict[str, str], others: dict[str, Any], advice: str = "; choose one") -> None:
    for name, reason in reasons.items():
        if others[name] != default_of(name):
            raise ConfigError(f"{owner} can't be used with {name} {others[name]}: {reason}{advice}")


def parse_arguments(text: str) -> dict[str, Any]:
    """Arguments of `model_args` by name; raises ConfigError unless they are a JSON object."""
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise ConfigError(f"model_args must be a JSON object, as in '{{\"heads\": 8}}', found {text!r}")
    return arguments


def parse_memory(text: str) -> int:
    """Bytes of --memory, where K, M, G and T are powers of 1024; ConfigError for another text."""
    number, power = (text[:-1], "KMGT".find(text[-1:].upper()) + 1) if text[-1:].isalpha() else (text, 0)
    try:
        found = float(number) * 1024 ** power if number.strip() and (power or not text[-1:].isalpha()) else -1.0
    except ValueError:
        found = -1.0
    if not 0 <= found < 1 << 62:
        raise ConfigError(f"memory must be a number of bytes, such as 12G or 800M, found {text!r}")
    return int(found)


def parse_protection(text: str) -> tuple[float, float]:
    """The two probabilities of --protect; raises ConfigError unless they are two ascending numbers from 0 to 1."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not 0.0 <= low <= high <= 1.0:
        raise ConfigError(f"protect must be two probabilities LOW,HIGH with 0 <= LOW <= HIGH <= 1, found {text!r}")
    return low, high


# What other libraries call a setting.
OTHER_NAMES = {
    "learning_rate": "lr", "wd": "weight_decay", "l2": "weight_decay", "optim": "optimizer", "drop": "dropout",
    **dict.fromkeys(["num_layers", "n_layers"], "layers"), "num_heads": "heads", "num_bits": "bits",
    "weight_decay_rate": "weight_decay", **dict.fromkeys(["gpu", "gpus", "cuda"], "device"),
    **dict.fromkeys(["ranks", "num_ranks", "nparts"], "parts"), "symmetric": "symmetrize", "undirected": "symmetrize",
    **dict.fromkeys(["hidden_dim", "hidden_size", "hidden_channels", "num_hidden"], "hidden"),
    **dict.fromkeys(["num_epochs", "n_epochs", "max_epochs"], "epochs"),
}


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that `name` is probably meant to be: what hpcgnn calls it, or one that is spelt like it."""
    if OTHER_NAMES.get(name) in known:
        return OTHER_NAMES[name]
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def check_keys(settings: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return `settings` if every key is a setting of TrainConfig or of its method.

    Raises ConfigError: an unknown key, with the nearest known one.
    """
    method = settings.get("method", Vanilla.name)
    own = {known.name for owner in (TrainConfig, find_method(method)) for known in fields(owner)}
    if settings.keys() <= own:
        return settings
    known = [known.name for known in known_settings(method)]
    for key in settings:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean {near!r}?" if near else f"known settings are {', '.join(known)}"
            raise ConfigError(f"unknown setting {key!r} in {origin}; {hint}")
    return settings


def preset_settings(dataset: str, model: str | None, preset: str, registry: dict[str, Any],
                    method: str | None = None) -> dict[str, Any]:
    """A paper's hyper-parameters for a dataset: values for all models, overridden by values for `model`.

    Without `model`, the preset's own or the default model counts; likewise for `method`. Settings that the method does
    not have are left out: pipegcn does not take AdaQP's group size.

    Raises
    ------
    ConfigError      `preset` is unknown or has nothing for the dataset
    """
    offers = presets_of(dataset, registry)
    if preset not in registry["presets"]:
        raise ConfigError(f"preset must be one of {', '.join(registry['presets'])}, found {preset!r}"
                          + hint_of(preset, registry["presets"]))
    if preset not in offers:
        raise ConfigError(f"preset {preset!r} has no settings for dataset {dataset!r}; "
                          + (f"it has {', '.join(offers)}" if offers else "no preset does"))
    table = registry["presets"][preset][dataset]
    common = {key: value for key, value in table.items() if not isinstance(value, dict)}
    model = model or common.get("model", TrainConfig.model)
    settings = check_keys({**common, **table.get(model, {})}, f"preset {preset} of {dataset}")
    return _without_foreign(settings, method or settings.get("method", Vanilla.name))


def presets_of(dataset: str, registry: dict[str, Any] | None = None) -> list[str]:
    """Names of the presets that have settings for a dataset."""
    registry = read_registry() if registry is None else registry
    return [name for name, tables in registry.get("presets", {}).items() if dataset in tables]


def _without_foreign(settings: dict[str, Any], method: str) -> dict[str, Any]:
    own = {known.name for known in (*fields(TrainConfig), *fields(find_method(method)))}
    return {name: value for name, value in settings.items() if name in own}


def resolve_train_config(dataset: str, flags: dict[str, Any], file_settings: dict[str, Any] | None = None,
                         preset: str | None = None, registry: dict[str, Any] | None = None) -> TrainConfig:
    """Join the four layers of settings into one checked configuration: defaults, preset, file, flags.

    Parameters
    ----------
    dataset : str                    name stored in the shards; it only selects the preset's table
    flags : dict                     settings of the command line
    file_settings : dict or None     settings of --config, or of the run that is resumed
    preset : str or None             a preset of the registry; without it a dataset's name changes nothing

    Raises
    ------
    ConfigError      unknown or malformed settings
    """
    file_settings = check_keys(file_settings or {}, "the configuration file")
    given = {**file_settings, **check_keys(flags, "the flags")}
    if preset is None:
        return TrainConfig.of(**given)
    registry = read_registry() if registry is None else registry
    of_preset = preset_settings(dataset, given.get("model"), preset, registry, given.get("method"))
    return TrainConfig.of(**{**of_preset, **given})


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """All settings by name, in the order of their definition, the method's right after `method`. Inverse of
    `TrainConfig.of`.
    """
    settings = {}
    for known in fields(config):
        value = getattr(config, known.name)
        settings.update({"method": name_of(value), **asdict(value)} if known.name == "method" else {known.name: value})
    return settings


def known_settings(method: str = Vanilla.name) -> list[Field]:
    """Settings of a run and of all methods, and of `method` if that is an import path; each once."""
    owners = [*METHODS.values(), find_method(method)]
    own = {known.name: known for owner in owners for known in fields(owner)}
    return [*fields(TrainConfig), *own.values()]


def default_of(name: str, method: str = Vanilla.name) -> Any:
    if name == "method":
        return Vanilla.name
    return next(known.default for known in known_settings(method) if known.name == name)
