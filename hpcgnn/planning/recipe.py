"""Settings of `hpcgnn train` as a plan takes them: checked as a training checks them, then counted or refused."""

from __future__ import annotations

from typing import Any

from hpcgnn.config import LINKS, NODES, TrainConfig, default_of, parse_memory
from hpcgnn.errors import ConfigError
from hpcgnn.nn.layers import LINEAR, of_input
from hpcgnn.nn.names import NEEDS_RELATIONS, RELATIONAL
from hpcgnn.planning.model import ModelSize, check_model

# Settings that a plan counts: those of the model and the method, and these.
COUNTED = ("model", "layers", "hidden", "dropout", "precision", "norm", "method", "bits", "share", "steps", "history",
           "average", "ema", "input_dropout", "epoch_rows", "code", "nodes_aware", "ranks_per_node", "heads", "jump",
           "residual", "widths", "smoothing", "asynchrony", "predict", "send_share", "overlap", "rematerialize",
           "pre_aggregation", "sum_bits", "store_activations", "edge_dropout", "label_inputs", "clusters", "batch_size",
           "between_clusters", "quantize", "num_bases", "num_blocks",
           "node_embedding", "task", "decoder", "negatives", "link_share", "candidates", "memory")
# Settings that a plan needs not know: they change nothing of an epoch, or too little of its seconds to be planned.
WITHOUT_COST = ("epochs", "lr", "optimizer", "clip_norm", "schedule", "warmup", "weight_decay", "weight_decay_layers",
                "loss", "score", "eval_every", "early_stop", "seed", "repeat", "checkpoint_every", "hours", "track",
                "timeout", "deterministic", "alpha", "theta", "percentiles", "most_motion", "descent_test",
                "descent_window", "descent_smoothing", "period", "group_size", "solver", "lam", "solver_seconds",
                "staleness", "skip_change", "pipeline", "exchange", "quantize_bits", "target_kb", "size_weight",
                "quantize_lr", "quantize_gradient", "protect", "link_loss", "adversarial_temperature", "n3", "ask",
                "asked_label", "asked_relation", "scratch")
# What a model may have within a limit of memory: other models make tables in an order that a plan does not replay.
WITHIN_A_LIMIT = {"model": tuple(LINEAR), "steps": ("1",), "quantize": ("none",), "store_activations": (32,),
                  "residual": (False,), "rematerialize": (False,), "node_embedding": (0,), "task": (NODES,)}
HISTORY_BITS = {"bf16": 16, "8": 8, "4": 4}


def check_settings(settings: dict[str, Any]) -> TrainConfig:
    """The configuration of a training with these settings.

    Raises
    ------
    ConfigError      settings that a training refuses, or whose costs a plan does not know
    """
    check_model(settings.get("model", "sage"))
    config = TrainConfig.of(**settings)
    for name, value in settings.items():
        if (name not in COUNTED + WITHOUT_COST and value != default_of(name)) or (name, value) == ("decoder", "mlp"):
            raise ConfigError(f"hpcgnn plan does not know what {name} = {value} costs; run mpirun -n P hpcgnn train "
                              f"SHARDS --set {name}={value} --dry-run, which forecasts any setting from a few epochs")
    if config.task == LINKS and config.steps != "1":
        raise ConfigError(f"hpcgnn plan does not know what steps = {config.steps} costs a training of links, which "
                          "reads the rows of other steps; run hpcgnn train --dry-run, or plan with --set steps=1")
    if config.steps == "auto":
        raise ConfigError("hpcgnn plan does not know how many steps auto takes, which the loss decides; plan with "
                          "--set steps=K, or run hpcgnn train --dry-run")
    for name, values in WITHIN_A_LIMIT.items():
        if parse_memory(config.memory) and getattr(config, name) not in values:
            raise ConfigError(f"hpcgnn plan does not know which tables memory = {config.memory} keeps on a disk with "
                              f"{name} = {getattr(config, name)}; run mpirun -n P hpcgnn train SHARDS --memory "
                              f"{config.memory} --dry-run, which counts them in a few epochs")
    return config


def size_of(config: TrainConfig, in_dim: int, out_dim: int, num_relations: int = 0,
            num_edge_features: int = 0) -> ModelSize:
    """The model and its epochs as the settings say, for a graph with these numbers of features, classes, relations and
    attributes of an edge.

    Raises ConfigError: a model that needs relations, and a graph without.
    """
    if config.model in RELATIONAL and not num_relations:
        raise ConfigError(NEEDS_RELATIONS.format(config.model))
    steps, _ = config.fixed_steps
    is_of_links = config.task == LINKS
    has_decoder = is_of_links and config.decoder != "dot" and (config.decoder != "auto" or num_relations > 0)
    draws_classes = is_of_links and config.candidates == "label" and out_dim > 1
    out_dim = config.hidden if is_of_links else out_dim
    has_average = config.ema > 0 or (config.average > 0 and steps > 1)
    stored = {"fp32": 32, "bf16": 16, "fp16": 16}[config.precision]
    return ModelSize(
        config.model, in_dim + out_dim * (config.label_inputs > 0), config.hidden, out_dim, config.layers,
        norm=config.norm, has_dropout=config.dropout > 0,
        has_input_dropout=of_input(config.input_dropout, config.dropout) > 0, heads=config.heads,
        joins_columns=config.jump == "concat", residual=config.residual,
        is_quantized=config.quantize != "none", num_steps=steps, precision=config.precision,
        has_average=has_average, has_clusters=config.in_clusters,
        history_bits=HISTORY_BITS.get(config.history, stored), stored_bits=config.store_activations,
        sum_bits=config.bits_of_sums, edge_dropout=config.edge_dropout, rematerializes=config.rematerialize,
        num_relations=num_relations, num_bases=config.num_bases,
        num_blocks=config.num_blocks, embedding_dim=config.node_embedding,
        num_edge_features=num_edge_features, num_drawn=config.num_drawn * is_of_links,
        decoder_weights=max(1, num_relations) * config.hidden * has_decoder, link_share=config.link_share,
        draws_classes=draws_classes)
