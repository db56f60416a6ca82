"""Settings of a training run: defaults < data/registry.toml < --config FILE < flags, and an unknown key is an error.

Frozen dataclasses and their resolution live here; nothing here knows MPI, torch or a file format but TOML.
"""

from __future__ import annotations

import difflib
import importlib.resources
import math
import sys
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hpcgnn.checked_text import check_toml
from hpcgnn.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


METHODS = ("vanilla", "uniform", "random", "sylvie", "adaqp", "joint", "pipegcn", "bns", "sancus")
SOLVED, TIMED = ("adaqp", "joint"), ("sylvie", "joint")    # methods by how they choose widths
MODELS = ("gcn", "sage", "sage-max", "gat", "gin", "gcnii", "dagnn", "sgc", "jknet", "appnp")
SCHEMES = ("none", "degree-aware", "degree-steps", "uniform", "degree-quant")    # of quantization-aware training
QUANTIZED, LEARNED = SCHEMES[1:], SCHEMES[1:4]
QUANTIZED_MODELS = ("gcn", "sage", "gin", "gat")

HIGHEST = {"int": 2 ** 31 - 1, "float": 1e38}    # of settings without a limit of their own: what int32 and float32 hold
SLOWEST_LINK = 0.001


def _setting(default: Any, description: str, choices: tuple | None = None, low: float | None = None,
             high: float | None = None, methods: tuple[str, ...] = (), models: tuple[str, ...] = (),
             schemes: tuple[str, ...] = (), devices: tuple[str, ...] = ()):
    """A field; `methods`, `models`, `schemes` or `devices` are the only ones it means something for, empty for all."""
    return field(default=default, metadata={"description": description, "choices": choices, "low": low, "high": high,
                                            "methods": methods, "models": models, "schemes": schemes,
                                            "devices": devices})


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what a training run computes.

    Raises
    ------
    ConfigError      a value of the wrong type, outside its range or its choices
    """

    model: str = _setting("sage", "Model.", MODELS)
    layers: int = _setting(3, "Number of convolutions; of propagation steps for dagnn, sgc and appnp.", low=1,
                           high=1024)
    hidden: int = _setting(256, "Width of the hidden layers.", low=1, high=1 << 20)
    heads: int = _setting(4, "Attention heads of gat, which share the hidden width.", low=1, high=1024)
    alpha: float = _setting(0.1, "Share of the first rows in every propagation step.", low=0.0, high=1.0,
                            models=("gcnii", "appnp"))
    theta: float = _setting(0.5, "Layer l weighs its map by log(theta / l + 1).", low=0.0, models=("gcnii",))
    jump: str = _setting("concat", "How the layers' rows are joined.", ("concat", "max"), models=("jknet",))
    epochs: int = _setting(200, "Epochs to train.", low=1)
    lr: float = _setting(0.01, "Learning rate of Adam.", low=0.0)
    dropout: float = _setting(0.5, "Dropout probability on the input of every layer.", low=0.0, high=0.999)
    weight_decay: float = _setting(0.0, "L2 penalty added to the gradients.", low=0.0)
    weight_decay_layers: str = _setting("all", "Layers that are decayed.", ("all", "first"))
    norm: str = _setting("layer", "Normalization after every hidden layer.", ("none", "layer"))
    method: str = _setting("vanilla", "Training method.", METHODS)
    bits: int = _setting(32, "Bits a message value.", (1, 2, 4, 8, 16, 32), methods=("uniform",))
    widths: str = _setting("auto", "Bit-widths to choose from, joined by commas; auto is 2,4,8 for adaqp and random, "
                           "1,2,4,8 for sylvie and joint, and with gat a base width of 4 or 8.",
                           methods=("random", *SOLVED, *TIMED))
    percentiles: str = _setting("85,95,99", "Percentiles of importance at which a boundary node's width doubles.",
                                methods=("sylvie",))
    descent_test: str = _setting("relative", "When the loss counts as slowing: its rate of descent is below that of "
                                 "descent_window epochs ago (plain), or falls throughout the window (monotone); or it "
                                 "fell, as a share of itself, by less than half of what it did over the window before "
                                 "(relative).", ("plain", "monotone", "relative"), methods=TIMED)
    descent_window: int = _setting(10, "Epochs between the two rates that are compared; 5 for quality, 20 for speed.",
                                   low=1, high=10000, methods=TIMED)
    descent_smoothing: float = _setting(0.9, "Weight of the past in the running mean of the loss.", low=0.0, high=0.999,
                                        methods=TIMED)
    most_rises: float = _setting(0.15, "Rises of the loss over half a descent window, as a share of its falls, past "
                                 "which epochs are synchronous for a while.", low=0.0, methods=TIMED)
    most_drift: float = _setting(0.02, "Change of the loss over as many epochs as the model has layers, as a share of "
                                 "the first loss, past which epochs are synchronous.", low=0.0, methods=TIMED)
    period: int = _setting(50, "Epochs between assignments of widths.", low=1, methods=SOLVED)
    group_size: int = _setting(500, "Messages of a pair of ranks that share a width.", low=1, methods=SOLVED)
    lam: float = _setting(0.5, "Weight of variance against time when widths are assigned.", low=0.0, high=1.0,
                          methods=("adaqp",))
    solver: str = _setting("highs", "How widths are assigned.", ("highs", "greedy"), methods=("adaqp",))
    solver_seconds: float = _setting(5.0, "Limit of one assignment by highs; past it the greedy one serves.", low=0.01,
                                     methods=("adaqp",))
    overlap: bool = _setting(True, "Aggregate central rows while messages travel.")
    staleness: int = _setting(4, "Epochs that a halo row may be old.", low=1, high=1000, methods=("sancus",))
    smoothing: float = _setting(0.0, "Weight of the past in the running mean of stale rows and gradients; 0 takes the "
                                "newest.", low=0.0, high=0.999, methods=("pipegcn",))
    share: float = _setting(0.1, "Share of the boundary rows that an epoch keeps.", low=0.01, high=1.0,
                            methods=("bns",))
    skip_change: float = _setting(0.05, "Relative change of its rows below which a rank does not send them.", low=0.0,
                                  methods=("sancus",))
    predict: str = _setting("none", "What messages hold: rows (none), or their difference from what the receiver has "
                            "(previous).", ("none", "previous"))
    rematerialize: bool = _setting(False, "Have one peer's halo rows in memory at a time, and fetch again those that "
                                   "the backward pass needs.")
    deterministic: bool = _setting(False, "Decide by modeled seconds instead of measured ones, so that two runs agree.",
                                   methods=(*SOLVED, *TIMED))
    link_mbps: float = _setting(0.0, "Pace messages as a link of so many MB/s a rank would, at least "
                                f"{SLOWEST_LINK}; 0 as fast as they go.", low=0.0, high=1e9)
    precision: str = _setting("fp32", "Storage and products of rows; sums, weights and the loss stay float32. auto is "
                              "bf16 where a sample of the model's work is faster so, else fp32.",
                              ("fp32", "bf16", "fp16", "auto"))
    sums: str = _setting("float32", "Sums of 16-bit rows on a GPU: float32 throughout, or 16 products at a time in the "
                         "rows' own type (half), as HalfGNN has them: faster, and rounded once a product.",
                         ("float32", "half"), devices=("cuda",))
    quantize: str = _setting("none", "Train weights and rows as small integers: widths and steps learned by in-degree "
                             "(degree-aware), at one width steps learned by in-degree (degree-steps) or one for all "
                             "rows of a layer (uniform), or ranges tracked while nodes are protected at random "
                             "(degree-quant).", SCHEMES)
    quantize_bits: int = _setting(4, "Bits of weights and of mapped rows; of rows too but for degree-aware.", low=2,
                                  high=8, schemes=QUANTIZED)
    target_kb: float = _setting(0.0, "KB of all layers' rows that widths are pulled to; 0 is 2 bits a value.", low=0.0,
                                schemes=("degree-aware",))
    size_weight: float = _setting(1.0, "Weight of the squared relative excess over target_kb in the loss.", low=0.0,
                                  schemes=("degree-aware",))
    quantize_lr: float = _setting(0.05, "Learning rate of Adam for logarithms of steps; a fifth of it for widths.",
                                  low=0.0, schemes=LEARNED)
    quantize_gradient: str = _setting("local", "Gradient of steps and widths of rows and of steps of mapped rows: that "
                                      "of their own error (local), which every node has, or of the loss "
                                      "(straight-through), which few have where few are labeled.",
                                      ("local", "straight-through"), schemes=LEARNED)
    protect: str = _setting("0,0.2", "Probabilities that a training pass leaves the rows of a node unquantized, at the "
                            "lowest and at the highest in-degree.", schemes=("degree-quant",))
    epoch_rows: str = _setting("reachable", "Rows that a training epoch computes: those within reach of the loss, "
                               "which changes no gradient, or all.", ("reachable", "all"))
    exchange: str = _setting("ring", "How messages travel.", ("ring", "alltoallv"))
    score: str = _setting("auto", "Score to report; auto is micro_f1 for multi-label data, else accuracy.",
                          ("auto", "accuracy", "micro_f1", "roc_auc"))
    eval_every: int = _setting(5, "Epochs between evaluations.", low=1)
    early_stop: int = _setting(0, "Evaluations without a better validation score before stopping; 0 never stops.",
                               low=0)
    seed: int = _setting(0, "Seed of initialization, dropout and rounding.", low=0, high=2**31)
    repeat: int = _setting(1, "Trainings with consecutive seeds.", low=1)
    checkpoint_every: int = _setting(50, "Epochs between checkpoints; 0 writes one at the end and at a signal only.",
                                     low=0)
    timeout: float = _setting(1800.0, "Seconds without progress after which the job ends and the rank that stands "
                              "still is named; 0 waits for ever.", low=0.0)
    transport: str = _setting("auto", "How messages leave a GPU: MPI takes its pointers (cuda-aware), or pinned memory "
                              "of the host (staged); auto is cuda-aware where an exchange at the start proves it.",
                              ("auto", "cuda-aware", "staged"), devices=("cuda",))
    device: str = _setting("cpu", "Where to compute; with cuda, ranks of a node share its GPUs out among them.",
                           ("cpu", "cuda"))

    def __post_init__(self):
        for setting in fields(self):
            _check_value(setting, getattr(self, setting.name))
            self._check_use(setting)
        self._check_companions()
        if self.model == "gat" and self.layers > 1 and self.hidden % self.heads:
            raise ConfigError(f"hidden must be a multiple of the {self.heads} attention heads, found {self.hidden}; "
                              "change --hidden or --heads")

    def _check_companions(self) -> None:
        """Settings that can't work together."""
        is_pipelined = self.method in ("sylvie", "joint", "pipegcn")
        clashes = [
            (is_pipelined and self.exchange == "alltoallv", "exchange alltoallv", "it ends before it returns, and "
             "pipelined messages travel while epochs go on; use --exchange ring"),
            ((is_pipelined or self.method == "sancus") and self.precision == "fp16", "precision fp16",
             "the gradients of an earlier epoch would carry its loss scale; use bf16"),
            (self.predict != "none" and self.precision == "fp16", "predict previous with precision fp16",
             "differences would mix loss scales; use bf16"),
            (self.predict != "none" and self.method in ("bns", "sancus"), "predict previous",
             "receivers don't get every row in every epoch, so there is nothing to predict from; use another method"),
            (self.predict != "none" and self.smoothing > 0, "predict previous with smoothing",
             "both keep the rows that arrive, in different ways; choose one"),
            (self.method == "bns" and self.model == "sage-max", "model sage-max",
             "a maximum over a sample of the neighbors is biased at any scale; use sage"),
        ]
        for is_met, setting, reason in clashes:
            if is_met:
                raise ConfigError(f"{setting} can't be used with method {self.method}: {reason}")
        if self.sums == "half" and self.precision == "fp32":
            raise ConfigError("sums half can't be used with precision fp32: it sums 16-bit rows; use bf16 or fp16")
        if 0 < self.link_mbps < SLOWEST_LINK:
            raise ConfigError(f"link_mbps must be 0 or at least {SLOWEST_LINK}, found {self.link_mbps}; an epoch would "
                              "take years")
        self._check_rematerialize()
        self._check_quantize()

    def _check_rematerialize(self) -> None:
        """What has the halo rows of all peers in memory has no use for them coming peer by peer."""
        clashes = [
            (self.method in ("sylvie", "joint", "pipegcn", "sancus"), f"method {self.method}",
             "it keeps the rows of all peers from epoch to epoch; use another method"),
            (self.predict != "none", f"predict {self.predict}", "every row is kept at its receiver; choose one"),
            (self.exchange == "alltoallv", "exchange alltoallv", "it brings the rows of all peers at once; "
             "use --exchange ring"),
            (self.precision not in ("fp32", "auto"), f"precision {self.precision}", "sums would be rounded to 16 bits "
             "after every peer; use fp32"),
        ]
        for is_met, companion, reason in clashes:
            if self.rematerialize and is_met:
                raise ConfigError(f"rematerialize can't be used with {companion}: {reason}")

    def _check_quantize(self) -> None:
        """What quantization-aware training can't be joined with."""
        if self.quantize == "none":
            return
        clashes = [
            (self.model not in QUANTIZED_MODELS, f"model {self.model}", "integer convolutions exist for "
             f"{', '.join(QUANTIZED_MODELS)} only; choose one of them"),
            (self.precision not in ("fp32", "auto"), f"precision {self.precision}", "integers are trained as float32 "
             "values, which 16 bits would round once more; use fp32"),
            (self.rematerialize, "rematerialize", "its layers are no steps that could be run again; choose one"),
        ]
        for is_met, companion, reason in clashes:
            if is_met:
                raise ConfigError(f"quantize {self.quantize} can't be used with {companion}: {reason}")
        parse_protection(self.protect)

    def _check_use(self, setting) -> None:
        """A setting that the method, model, scheme or device has no use for must not be changed: its user expects an
        effect.
        """
        value = getattr(self, setting.name)
        for kind, flag, chosen in (("methods", "method", self.method), ("models", "model", self.model),
                                   ("schemes", "quantize", self.quantize), ("devices", "device", self.device)):
            users = setting.metadata[kind]
            if users and chosen not in users and value != setting.default:
                raise ConfigError(f"{setting.name} = {value} has no effect on {flag} {chosen}, only on "
                                  f"{', '.join(users)}; leave it out or change --{flag}")


def parse_protection(text: str) -> tuple[float, float]:
    """The two probabilities of --protect.

    Raises
    ------
    ConfigError      not two ascending numbers from 0 to 1
    """
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low, high = 1.0, 0.0
    if not 0.0 <= low <= high <= 1.0:
        raise ConfigError(f"protect must be two probabilities LOW,HIGH with 0 <= LOW <= HIGH <= 1, found {text!r}")
    return low, high


def _check_value(setting, value: Any) -> None:
    expected = {"int": int, "float": (int, float), "str": str, "bool": bool}[setting.type]
    if isinstance(value, bool) != (setting.type == "bool") or not isinstance(value, expected):
        raise ConfigError(f"{setting.name} must be of type {setting.type}, found {value!r}")
    limits = setting.metadata
    if limits["choices"] is not None and value not in limits["choices"]:
        raise ConfigError(f"{setting.name} must be one of {', '.join(map(str, limits['choices']))}, found {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{setting.name} must be a finite number, found {value!r}")
    if limits["low"] is not None and not value >= limits["low"]:
        raise ConfigError(f"{setting.name} must be at least {limits['low']}, found {value!r}")
    high = HIGHEST.get(setting.type) if limits["high"] is None else limits["high"]
    if high is not None and not value <= high:
        raise ConfigError(f"{setting.name} must be at most {high}, found {value!r}")


def read_toml(path: Path | str) -> dict[str, Any]:
    """Parse a TOML file.

    Raises
    ------
    ConfigError      the file is missing, unreadable or malformed, or has a checksum of another text
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"configuration file {path} can't be read: {error.strerror}") from error
    try:
        check_toml(content)
    except ValueError as error:
        raise ConfigError(f"configuration file {path} is not as it was written: {error}; restore it, or delete its "
                          "first line if you have edited it") from error
    try:
        tables = tomllib.loads(content.decode())
    except RecursionError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: it is nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from error
    if not tables:
        raise ConfigError(f"configuration file {path} holds no setting; restore it, or leave it out")
    return tables


def read_registry() -> dict[str, Any]:
    """The datasets and presets of data/registry.toml, installed with the package."""
    with importlib.resources.as_file(importlib.resources.files("hpcgnn") / "data" / "registry.toml") as path:
        return read_toml(path)


def check_keys(settings: dict[str, Any], origin: str) -> dict[str, Any]:
    """Return `settings` if every key is a setting of TrainConfig.

    Raises
    ------
    ConfigError      an unknown key, with the nearest known one
    """
    known = [setting.name for setting in fields(TrainConfig)]
    for key in settings:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known settings are {', '.join(known)}"
            raise ConfigError(f"unknown setting {key!r} in {origin}; {hint}")
    return settings


def preset_settings(dataset: str, model: str, preset: str | None, registry: dict[str, Any]) -> dict[str, Any]:
    """A paper's hyper-parameters of a dataset: those for all models, overridden by those of `model`.

    Without `preset`, the dataset's own default preset, or nothing where the registry does not know the dataset.

    Raises
    ------
    ConfigError      `preset` is unknown or has nothing for the dataset
    """
    name = preset or registry.get("datasets", {}).get(dataset, {}).get("preset")
    if name is None:
        return {}
    presets = registry.get("presets", {})
    if name not in presets or dataset not in presets[name]:
        offers = [key for key, tables in presets.items() if dataset in tables]
        raise ConfigError(f"preset {name!r} has no settings for dataset {dataset!r}; "
                          + (f"it has {', '.join(offers)}" if offers else "no preset does"))
    table = presets[name][dataset]
    common = {key: value for key, value in table.items() if not isinstance(value, dict)}
    return check_keys({**common, **table.get(model, {})}, f"preset {name} of {dataset}")


def resolve_train_config(dataset: str, flags: dict[str, Any], file_settings: dict[str, Any] | None = None,
                         preset: str | None = None, registry: dict[str, Any] | None = None) -> TrainConfig:
    """Join the four layers of settings into one checked configuration.

    Parameters
    ----------
    dataset : str                    name stored in the shards
    flags : dict                     settings given on the command line
    file_settings : dict or None     settings of --config, or of the run that is resumed
    preset : str or None             one of the registry's presets instead of the dataset's default

    Raises
    ------
    ConfigError      unknown or malformed settings
    """
    file_settings = check_keys(file_settings or {}, "the configuration file")
    given = {**file_settings, **check_keys(flags, "the flags")}
    registry = read_registry() if registry is None else registry
    dataset_defaults = registry.get("datasets", {}).get(dataset, {})
    base = {key: dataset_defaults[key] for key in ("model", "score") if key in dataset_defaults}
    model = given.get("model", base.get("model", TrainConfig.model))
    return TrainConfig(**{**base, **preset_settings(dataset, model, preset, registry), **given})


def as_toml(tables: dict[str, dict[str, Any]]) -> str:
    """Tables of strings, numbers, booleans and lists of those as TOML text; the table "" comes first, unnamed."""
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]"] if name else []
        lines += [f"{key} = {_toml_value(value)}" for key, value in table.items()]
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """The settings as a plain dict, in the order of their definition."""
    return asdict(config)
