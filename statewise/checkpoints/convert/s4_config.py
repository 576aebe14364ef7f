"""What the S4 repository's config says about a model and no tensor does.

From the group "model" (and for each layer of "model.layer", which may be a list that repeats): ``activation`` ("gelu"),
``dt_transform`` and ``real_transform`` (before version 4 ``real_type``; "exp"), ``imag_transform`` ("none"), ``disc``
of S4D ("zoh"; before version 4 "bilinear"), ``dropout`` (0.0); ``residual`` ("R"), and of ``norm`` the ``eps`` (1e-5).
In "decoder": ``mode`` ("pool": the mean over time; "last"); with ``l_output: null`` an output for every step.
In "task": ``loss`` ("mse" or "mae" make a regressor of it, all else a classifier), and ``rescale`` of a language
model's embedding (true).

In brackets are the defaults where there is no config, or the field is not in it. They are those of the published
classes, except for the decoder, which all published classifiers set to "pool", and for the residual branch, which the
class does not have and the published config adds to every model: where no config says so, it is taken to be there. The
published configs of version 4 set dt_transform to "softplus", which its own stored config then says; of a bare state
dict say it in a config.json.

A field that is null is not one that is left out: null means no residual branch, no norm, no activation, no output
matrix. What the tensors say too (``d_state``, ``channels``, ``mode``, …) has to agree with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from statewise.checkpoints.convert.fields import dropout_of, number, refers, refuse_unknown, require, section
from statewise.checkpoints.convert.s4_kernel import POSITIVE
from statewise.errors import CheckpointError, excerpt
from statewise.mixers.activations import ACTIVATIONS

WHERE = "the S4 checkpoint's config"
GROUPS = ("model", "encoder", "decoder", "task")
REGRESSION_LOSSES = ("mse", "mae", "mse_no_reduce")
EPS = 1e-5  # of the published norms, where nothing is said

# Fields with one supported value.
_MODEL_FIXED = {"_name_": "model", "bidirectional": False, "n_repeat": 1, "encoder": None, "decoder": None}
_MODEL_KNOWN = ("d_model", "n_layers", "prenorm", "transposed", "dropout", "tie_dropout", "layer", "residual", "norm")
_MODEL_NO_EFFECT = ("pool", "track_norms", "dropinp")
_LAYER_FIXED = {
    **{"gate": None, "bottleneck": None, "mult_act": None, "hyper_act": None, "weight_norm": False, "linear": False},
    **{"swap_channels": False, "shift": False, "layer": "fftconv", "bandlimit": None, "dt_fast": False},
    **{"is_real": False, "gate_act": None, "kernel": None},
}
_LAYER_KNOWN = (
    *("_name_", "activation", "final_act", "postact", "dt_transform", "real_transform", "real_type"),
    *("imag_transform", "disc", "mode", "dropout", "bidirectional", "expand"),
)
# What the tensors say.
_LAYER_SIZES = ("d_state", "channels", "n_ssm", "rank")
# What only matters at the beginning or in training, and l_max: a filter cut off there is the same up to that length.
_LAYER_NO_EFFECT = (
    *("init", "measure", "init_args", "measure_args", "dt_min", "dt_max", "dt_tie", "lr"),
    *("wd", "drop_kernel", "deterministic", "l_max", "verbose", "tie_dropout", "initializer", "transposed"),
    *("backend", "trainable", "cache", "weight_decay", "hurwitz", "tie_state"),
)
# What a layer may be called whose tensors are of this kind: each field's names that mean the same.
MODES = {"nplr": ("nplr", "dplr", "s4"), "diag": ("diag", "s4d")}
OUTPUTS = {"glu": ("glu",), "id": ("id", "identity", "linear")}
MLP = "ffn"
# Fields of the published norms: supported values, and those that change no output.
_NORMS: dict[str, dict[str, Any]] = {
    "layer": {"elementwise_affine": True, "bias": True},
    "batch": {"affine": True, "track_running_stats": True},
}
_NORM_NO_EFFECT = ("momentum",)
ACTIVATION_NAMES = {**{name: name for name in ACTIVATIONS if name != "gelu_tanh"}, "swish": "silu"}


@dataclass(frozen=True)
class LayerSettings:
    """One entry of "model.layer", checked, and all that it said. disc None: it is left out, and the default of the
    version holds."""

    activation: str = "gelu"
    dropout: float = 0.0
    dt_transform: str = "exp"
    real_transform: str = "exp"
    imag_transform: str = "none"
    disc: str | None = None
    said: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Mapping[str, Any], dropout: float) -> LayerSettings:
        where = f"{WHERE}: model.layer"
        refuse_unknown(config, (*_LAYER_FIXED, *_LAYER_KNOWN, *_LAYER_SIZES, *_LAYER_NO_EFFECT), where)
        if config.get("gate") is None:
            config = {name: value for name, value in config.items() if name != "gate_act"}
        require(config, _LAYER_FIXED, where)
        found = {
            "activation": _one_of(config, "activation", "gelu", ACTIVATION_NAMES),
            "dt_transform": _one_of(config, "dt_transform", "exp", POSITIVE),
            "real_transform": _one_of(
                config, "real_transform", _one_of(config, "real_type", "exp", POSITIVE), POSITIVE
            ),
            "imag_transform": _one_of(config, "imag_transform", "none", POSITIVE),
        }
        _one_of(config, "mode", "nplr", [name for names in MODES.values() for name in names])
        outputs = [name for names in OUTPUTS.values() for name in names]
        if config.get("postact") is None:  # the old name, null in the configs that have the new one
            _one_of(config, "final_act", "glu", outputs)
        else:
            _one_of(config, "postact", "glu", outputs)
        disc = _one_of(config, "disc", "zoh", ("zoh", "bilinear")) if "disc" in config else None
        return cls(**found, disc=disc, dropout=dropout_of(config, dropout, where), said=config)

    def check(self, here: str, **of_the_file: tuple[Any, ...]) -> None:
        """CheckpointError for a field that has none of the values that the tensors of the layer ``here`` mean. One that
        is null, or only refers to another one, does not count."""
        for name, meant in of_the_file.items():
            given = self.said.get(name)
            if given is not None and not refers(given) and given not in meant:
                raise CheckpointError(
                    f"{WHERE}: model.layer.{name}={excerpt(given)}, but the file's tensors {here}* say {meant[0]!r}"
                )

    def check_no_mlp(self, here: str) -> None:
        for name in ("_name_", "expand"):
            given = self.said.get(name)
            if given is not None and (name == "expand" or given == MLP):
                raise CheckpointError(
                    f"{WHERE}: model.layer.{name}={excerpt(given)} is of an MLP layer, but the file's "
                    f"tensors {here}* are none"
                )

    def check_mlp(self, here: str, d_model: int, d_inner: int) -> None:
        """The same of an MLP layer, whose expand is rounded down to features."""
        self.check(here, _name_=(MLP,))
        expand = self.said.get("expand")
        if expand is None or refers(expand):
            return
        if int(number(self.said, "expand", 1.0, f"{WHERE}: model.layer") * d_model) != d_inner:
            raise CheckpointError(
                f"{WHERE}: model.layer.expand={excerpt(expand)}, but {here}layer.ff.0.0.weight has "
                f"{d_inner} features of "
                f"d_model={d_model}"
            )


@dataclass(frozen=True)
class Settings:
    """The config of a whole model, checked."""

    model: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[LayerSettings, ...] = (LayerSettings(),)
    pooling: str | None = "mean"
    is_regression: bool = False
    rescale: bool = True
    dropout: float = 0.0
    norm_eps: float = EPS

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Settings:
        """From what is beside a file and what Lightning stored in it; the first has precedence, group by group."""
        stored = section(config, "hyper_parameters", WHERE)
        beside = {k: v for k, v in config.items() if k not in ("hyper_parameters", "pytorch-lightning_version")}
        refuse_unknown(beside, GROUPS, WHERE)
        groups = {name: beside.get(name, stored.get(name)) for name in GROUPS}
        model, task = section(groups, "model", WHERE), section(groups, "task", WHERE)
        where = f"{WHERE}: model"
        refuse_unknown(model, (*_MODEL_FIXED, *_MODEL_KNOWN, *_MODEL_NO_EFFECT), where)
        require(model, _MODEL_FIXED, where)
        _require_plain_residual(model.get("residual", "R"))
        _require_no_pool(model.get("pool"))
        dropout = dropout_of(model, 0.0, where)
        layer = model.get("layer")
        layers = list(layer) if isinstance(layer, (list, tuple)) else [layer or {}]
        if not layers or not all(isinstance(each, Mapping) for each in layers):
            raise CheckpointError(f"{where}: layer={excerpt(layer)}; expected a group of fields, or a list of groups")
        return cls(
            model,
            tuple(LayerSettings.of(each, dropout) for each in layers),
            _pooling(groups["decoder"]),
            task.get("loss") in REGRESSION_LOSSES,
            task.get("rescale", True) is not False,
            dropout,
            number(_norm(model)[1], "eps", EPS, f"{WHERE}: model.norm"),
        )

    def layer(self, i: int) -> LayerSettings:
        """The settings of layer i, counted from 0: their list repeats."""
        return self.layers[i % len(self.layers)]

    def check_sizes(self, *, d_model: int, n_layers: int) -> None:
        """n_layers counts how often the list of layers is repeated."""
        for name, found in (("d_model", d_model), ("n_layers", n_layers // len(self.layers))):
            if self.model.get(name, found) != found:
                raise CheckpointError(
                    f"{WHERE}: model.{name}={excerpt(self.model[name])}, but the file's tensors say {found}"
                )

    def check_norm(self, here: str, kind: str) -> None:
        said, _ = _norm(self.model)
        if said not in (None, kind):
            raise CheckpointError(
                f"{WHERE}: model.norm={excerpt(self.model['norm'])}, but the file's tensors "
                f"{here}norm.* are of {kind!r}"
            )

    def check_prenorm(self, prenorm: bool) -> None:
        if self.model.get("prenorm", prenorm) != prenorm:
            raise CheckpointError(
                f"{WHERE}: model.prenorm={excerpt(self.model['prenorm'])}, but the file has "
                f"{'a' if prenorm else 'no'} norm after the last layer"
            )


def _one_of(config: Mapping[str, Any], name: str, default: str, known: Any) -> str:
    """The default where the field is left out; null is a value, and none of those known."""
    value = config.get(name, default)
    if not isinstance(value, str) or value not in known:
        raise CheckpointError(
            f"{WHERE}: model.layer.{name}={excerpt(value)} is not supported; expected one of {list(known)}"
        )
    return known[value] if known is ACTIVATION_NAMES else str(value)


def _norm(model: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """The name of the norms, None where the config leaves it to the tensors, and their fields."""
    if "norm" not in model:
        return None, {}
    where, given = f"{WHERE}: model.norm", model["norm"]
    fields = given if isinstance(given, Mapping) else {}
    name = fields.get("_name_", "layer") if isinstance(given, Mapping) else given
    if not isinstance(name, str) or name not in _NORMS:
        raise CheckpointError(f"{where}={excerpt(given)} is not supported; expected one of {list(_NORMS)}")
    refuse_unknown(fields, ("_name_", "eps", *_NORMS[name], *_NORM_NO_EFFECT), where)
    require(fields, _NORMS[name], where)
    return name, fields


def _require_plain_residual(residual: Any) -> None:
    given = residual
    if isinstance(residual, Mapping):
        plain = {"_name_": "R", "alpha": 1.0, "beta": 1.0}
        refuse_unknown(residual, plain, f"{WHERE}: model.residual")
        require(residual, {name: plain[name] for name in ("alpha", "beta")}, f"{WHERE}: model.residual")
        residual = residual.get("_name_")
    if residual not in ("R", "residual"):
        raise CheckpointError(f"{WHERE}: model.residual={excerpt(given)} is not supported; expected 'R'")


def _require_no_pool(pool: Any) -> None:
    if isinstance(pool, Mapping) and pool.get("stride", 1) == 1 and pool.get("expand") in (None, 1):
        return
    if pool is not None:
        raise CheckpointError(f"{WHERE}: model.pool={excerpt(pool)} is not supported; expected a stride of 1")


def _pooling(decoder: Any) -> str | None:
    name = decoder.get("_name_", "sequence") if isinstance(decoder, Mapping) else decoder
    if name not in (None, "sequence"):
        raise CheckpointError(f"{WHERE}: decoder={excerpt(decoder)} is not supported; expected 'sequence'")
    if not isinstance(decoder, Mapping):
        return "mean"
    where = f"{WHERE}: decoder"
    refuse_unknown(decoder, ("_name_", "mode", "l_output", "use_lengths", "d_output", "d_model"), where)
    if "l_output" in decoder and decoder["l_output"] is None:
        return None
    require(decoder, {"l_output": 0}, where)
    poolings = {"pool": "mean", "last": "last"}
    mode = decoder.get("mode", "last")
    if not isinstance(mode, str) or mode not in poolings:
        raise CheckpointError(f"{where}: mode={excerpt(mode)} is not supported; expected one of {list(poolings)}")
    return poolings[mode]
