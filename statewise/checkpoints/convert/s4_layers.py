"""The layers of the S4 repository's backbone: found among the tensors of any version, and as entries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, affine, same
from statewise.checkpoints.convert.fields import count_layers
from statewise.checkpoints.convert.formats import Tensors
from statewise.checkpoints.convert.s4_config import EPS, MODES, OUTPUTS, LayerSettings, Settings
from statewise.checkpoints.convert.s4_kernel import Kernel
from statewise.checkpoints.convert.s4d import minimal_kernel, minimal_layer, minimal_mixer
from statewise.errors import CheckpointError
from statewise.mixers.s4 import INITIALIZATIONS, S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.encoder import SequenceModelConfig
from statewise.models.mlp import MLPConfig
from statewise.models.regressor import SequenceRegressorConfig

_WHERE = "the S4 checkpoint"
# How each version calls the tensors of a layer's systems, after the name of the layer.
_LAST = {name: f"layer.layer.kernel.{name}" for name in ("inv_dt", "A_real", "A_imag", "B", "C", "P", "l_kernel")}
_LAST["D"] = "layer.layer.D"
_THIRD = {
    **{"inv_dt": "log_dt", "A_real": "inv_w_real", "A_imag": "w_imag", "B": "B", "C": "C", "P": "P", "l_kernel": "L"}
}
_THIRD_DIAGONAL = {"inv_dt": "log_dt", "A_real": "inv_A_real", "A_imag": "A_imag", "B": "B", "C": "C"}


@dataclass(frozen=True)
class Layer:
    """One of our blocks, and theirs that it was: ``prefix`` of the S4 or S4D layer, ``mlp`` of an MLP layer after it.

    unused: a tensor of version 3 that its code stores and does not read
    """

    prefix: str
    kernel: Kernel
    block: BlockConfig
    mlp: str | None = None
    minimal: bool = False
    unused: str | None = None

    def entries(self, ours: str) -> list[Entry]:
        """``ours`` is the name of our block, with its dot."""
        if self.minimal:
            table = minimal_layer(self.kernel, f"{self.prefix}layer.", f"{ours}mixer.")
        else:
            table = [
                self.kernel.entry(f"{ours}mixer."),
                _columns(
                    f"{self.prefix}layer.output_linear.0.weight", f"{ours}mixer.output.linear.weight", self.kernel
                ),
                same(f"{self.prefix}layer.output_linear.0.bias", f"{ours}mixer.output.linear.bias"),
            ]
        table += _norm(self.prefix, f"{ours}mixer_norm", self.block.norm)
        if self.mlp is not None:
            for theirs, target in (("ff.0.0", "in_proj"), ("ff.2", "out_proj")):
                table += affine(f"{self.mlp}layer.{theirs}", f"{ours}mlp.{target}")
            table += _norm(self.mlp, f"{ours}mlp_norm", self.block.norm)
        if self.unused is not None:
            table.append(Entry((self.unused,), (), optional=True))
        return table


def _norm(theirs: str, ours: str, kind: str) -> list[Entry]:
    table = affine(f"{theirs}norm.norm", ours)
    if kind == "batch":
        table.append(same(f"{theirs}norm.norm.running_mean", f"{ours}.running_mean"))
        table.append(same(f"{theirs}norm.norm.running_var", f"{ours}.running_variance"))
        table.append(Entry((f"{theirs}norm.norm.num_batches_tracked",), (), optional=True))
    return table


def _columns(theirs: str, ours: str, kernel: Kernel) -> Entry:
    """The output's matrix: its columns are theirs output by output, ours channel by channel. Older files have it as
    the kernel of a convolution of width 1."""
    n_heads, d_model = kernel.n_heads, kernel.d_model

    def to_ours(weight: Tensor) -> Tensor:
        if weight.ndim not in (2, 3) or weight.shape[1:].numel() != n_heads * d_model:
            raise CheckpointError(f"{theirs} has shape {tuple(weight.shape)}, expected (…, {n_heads * d_model})")
        return weight.reshape(-1, n_heads, d_model).transpose(1, 2).flatten(1).contiguous()

    def to_theirs(weight: Tensor) -> Tensor:
        return weight.reshape(-1, d_model, n_heads).transpose(1, 2).flatten(1).contiguous()

    return Entry((theirs,), (ours,), to_ours, to_theirs)


def find_layers(tensors: Tensors, settings: Settings, prefix: str) -> list[Layer]:
    """Our blocks: each S4 layer, with the MLP layer after it if there is one."""
    n_layers = count_layers(tensors, prefix, _WHERE)
    if n_layers < 1:
        raise CheckpointError(f"{_WHERE}: no tensor begins with {prefix}0.")
    pre = f"{prefix.removesuffix('layers.')}norm.norm.weight" in tensors
    found: list[Layer] = []
    for i in range(n_layers):
        here = f"{prefix}{i}."
        if any(name.startswith(f"{here}layer.ff.") for name in tensors):
            if not found or found[-1].mlp is not None:
                raise CheckpointError(
                    f"{_WHERE}: {here}layer is an MLP that does not follow an S4 layer, which cannot be read"
                )
            mlp = MLPConfig(expand=_expand(tensors, here, settings.layer(i)), activation=settings.layer(i).activation)
            found[-1] = replace(found[-1], mlp=here, block=replace(found[-1].block, mlp=mlp))
            continue
        norm = _norm_kind(tensors, here)
        settings.check_norm(here, norm)
        around: dict[str, Any] = {"norm": norm, "norm_eps": settings.norm_eps, "dropout": settings.dropout}
        found.append(_find(tensors, here, settings.layer(i), around | {"placement": "pre" if pre else "post"}))
    return found


def _expand(tensors: Tensors, here: str, settings: LayerSettings) -> float:
    """How much an MLP expands; any number for a tensor that is wrong: reading it reports it."""
    up = tensors.get(f"{here}layer.ff.0.0.weight")
    if up is None or up.ndim != 2 or not up.numel():
        return 4.0
    settings.check_mlp(here, up.shape[1], up.shape[0])
    return up.shape[0] / up.shape[1]


def _find(tensors: Tensors, here: str, settings: LayerSettings, around: dict[str, Any]) -> Layer:
    """around: the fields of the block but its mixer"""
    if any(
        name.startswith(f"{here}layer.kernel.") and not name.startswith(f"{here}layer.kernel.kernel.")
        for name in tensors
    ):
        kernel = minimal_kernel(f"{here}layer.", tensors)
        _check_said(settings, here, kernel, tensors, gated=True)
        mixer: S4DConfig | S4Config = minimal_mixer(kernel, settings.dropout)
        return Layer(here, kernel, BlockConfig(mixer=mixer, **around), minimal=True)
    kernel, unused = _kernel(tensors, here, settings)
    rows = tensors.get(f"{here}layer.output_linear.0.weight")
    gated = rows is None or not rows.ndim or rows.shape[0] != kernel.d_model
    _check_said(settings, here, kernel, tensors, gated=gated)
    fields: dict[str, Any] = {
        "d_state": 2 * kernel.n,
        "n_heads": kernel.n_heads,
        "bidirectional": kernel.bidirectional,
        "n_systems": None if kernel.n_systems == kernel.d_model else kernel.n_systems,
        "activation": settings.activation,
        "dropout": settings.dropout,
        "gated_output": gated,
    }
    if kernel.rank:
        start = next(name for name, rank in INITIALIZATIONS.items() if rank <= kernel.rank)
        mixer = S4Config(rank=kernel.rank, initialization=start, **fields)
    else:
        mixer = S4DConfig(initialization="lin", method=kernel.method, **fields)
    return Layer(here, kernel, BlockConfig(mixer=mixer, **around), unused=unused)


def _check_said(settings: LayerSettings, here: str, kernel: Kernel, tensors: Tensors, *, gated: bool) -> None:
    """That the config says of an S4 or S4D layer what its tensors say. Where one is not as it should be, they say
    nothing: reading it names it. A rank is in S4 alone."""
    settings.check_no_mlp(here)
    output = f"{here}layer.output_linear.0.weight"
    shapes = {kernel.names[name]: shape for name, shape in kernel.shapes.items()}
    if output not in tensors or any(n not in tensors or tensors[n].shape != shape for n, shape in shapes.items()):
        return
    outputs = OUTPUTS["glu" if gated else "id"]
    settings.check(
        here,
        d_state=(2 * kernel.n,),
        channels=(kernel.n_heads,),
        n_ssm=(kernel.n_systems,),
        bidirectional=(kernel.bidirectional,),
        mode=MODES["nplr" if kernel.rank else "diag"],
        final_act=outputs,
        postact=outputs,
        **({"rank": (kernel.rank,)} if kernel.rank else {}),
    )


def _norm_kind(tensors: Tensors, here: str) -> str:
    for name in ("m", "s", "ln.weight"):
        if f"{here}norm.norm.{name}" in tensors:
            raise CheckpointError(
                f"{_WHERE}: {here}norm.norm.{name} belongs to a norm of one scale and shift over transposed inputs "
                "(transposed=true), which Statewise does not have"
            )
    return "batch" if f"{here}norm.norm.running_mean" in tensors else "layer"


def _kernel(tensors: Tensors, here: str, settings: LayerSettings) -> tuple[Kernel, str | None]:
    """The systems of a layer of version 3 or 4, by the names that are there."""
    inner = f"{here}layer.kernel.kernel."
    third = any(name.startswith(inner) for name in tensors)
    of_s4 = (_LAST["P"], _LAST["l_kernel"], *(f"layer.kernel.kernel.{_THIRD[name]}" for name in ("P", "l_kernel")))
    diagonal = not any(f"{here}{name}" in tensors for name in of_s4)
    if third:
        table = dict(_THIRD_DIAGONAL if diagonal else _THIRD)
        if f"{inner}log_w_real" in tensors:
            table["A_real"] = "log_w_real"
        names = {name: inner + theirs for name, theirs in table.items()} | {"D": f"{here}layer.D"}
    else:
        names = {n: here + t for n, t in _LAST.items() if not (diagonal and n in ("P", "l_kernel"))}
    shapes = {name: tuple(tensors[full].shape) for name, full in names.items() if full in tensors}

    def size(name: str, axis: int, default: int) -> int:
        shape = shapes.get(name, ())
        return shape[axis] if len(shape) > axis else default

    n_heads, d_model = size("D", 0, 1), size("D", 1, 1)
    if third and not diagonal and settings.real_transform == "relu":
        raise CheckpointError(
            f"{_WHERE}: real_type='relu' of version 3 is not supported, as its systems may stop decaying"
        )
    kernel = Kernel(
        names=names,
        d_model=d_model,
        n_heads=n_heads,
        n_systems=size("A_real", 0, 1),
        n=size("A_real", 1, 1),
        rank=0 if diagonal else size("P", 0, 1),
        bidirectional=size("C", 0, n_heads) == 2 * n_heads,
        dt_transform=settings.dt_transform,
        real_transform=settings.real_transform,
        imag_transform=settings.imag_transform,
        imag_sign=1 if third else -1,
        dt_axis=not third,
        shared_B=not (third and diagonal),
        method=settings.disc or ("bilinear" if third or not diagonal else "zoh"),
    )
    return kernel, f"{inner}A" if third and diagonal else None


def written_layers(config: ModelConfig) -> tuple[list[Layer], dict[str, Any]]:
    """The layers of version 4 that our model is, and the groups of the config that say what no tensor does.

    Errors:  CheckpointError for a model that the published code does not have.
    """

    def refuse(what: str) -> CheckpointError:
        return CheckpointError(f"this model cannot be written as s4: {what}; use another format")

    if not isinstance(config, (SequenceClassifierConfig, SequenceRegressorConfig)):
        raise refuse(f"it is a {type(config).__name__}; published: a classifier or a regressor of sequences")
    if config.pooling not in ("mean", "last", None) or config.d_input is None or config.frame_length != 1:
        raise refuse("published: it reads numbers, and pools by their mean, the last step or not at all")
    placement = config.blocks[0].placement
    if config.final_norm != ("layer" if placement == "pre" else None):
        raise refuse(f"norm={config.final_norm!r} after the last layer with placement={placement!r}")
    first = config.blocks[0]
    if placement == "pre" and config.norm_eps != first.norm_eps:
        raise refuse(f"norm_eps={config.norm_eps} after the last layer, {first.norm_eps} in it (published: the same)")
    layers = []
    for i, block in enumerate(config.blocks):
        mixer = block.mixer
        if not isinstance(mixer, (S4Config, S4DConfig)) or block != first:
            raise refuse("published: S4 or S4D layers, all the same")
        if placement == "pre" and block.norm != "layer":
            raise refuse(f"layer {i} has norm={block.norm!r}, and the norm after the last layer is another")
        if block.mlp is not None or block.norm == "rms" or mixer.tied_dt or mixer.activation == "gelu_tanh":
            raise refuse(f"layer {i} has an MLP, RMSNorm, one dt for all channels or gelu_tanh")
        if isinstance(mixer, S4DConfig) and (not mixer.is_complex or not (mixer.learn_B or mixer.B == "normal")):
            raise refuse(f"layer {i} has {mixer}; published: complex A, and B")
        if isinstance(mixer, S4DConfig) and mixer.softmax_length is not None:
            raise refuse(f"layer {i} has softmax_length={mixer.softmax_length}, which this format cannot say")
        layers.append(_written(config, mixer, f"model.layers.{i}.", block))
    assert isinstance(first.mixer, (S4Config, S4DConfig))
    layer = {
        "_name_": "s4",
        "mode": "nplr" if isinstance(first.mixer, S4Config) else "diag",
        "activation": first.mixer.activation,
        "final_act": "glu" if first.mixer.gated_output else "id",
        "bidirectional": first.mixer.bidirectional,
        "dropout": first.mixer.dropout,
        "dt_transform": "exp",
    }
    if isinstance(first.mixer, S4DConfig):
        layer["disc"] = first.mixer.method
    model = {"_name_": "model", "d_model": config.d_model, "n_layers": len(layers), "prenorm": placement == "pre"}
    norm = first.norm if first.norm_eps == EPS else {"_name_": first.norm, "eps": first.norm_eps}
    model |= {"residual": "R", "norm": norm, "dropout": first.dropout, "layer": layer}
    mode: dict[str, Any] = {"mode": {"mean": "pool", "last": "last", None: "last"}[config.pooling]}
    if config.pooling is None:
        mode["l_output"] = None
    loss = "mse" if isinstance(config, SequenceRegressorConfig) else "cross_entropy"
    return layers, {"model": model, "decoder": {"_name_": "sequence", **mode}, "task": {"loss": loss}}


def _written(config: SequenceModelConfig, mixer: S4Config | S4DConfig, here: str, block: BlockConfig) -> Layer:
    diagonal = isinstance(mixer, S4DConfig)
    names = {n: here + t for n, t in _LAST.items() if not (diagonal and n in ("P", "l_kernel"))}
    kernel = Kernel(
        names=names,
        d_model=config.d_model,
        n_heads=mixer.n_heads,
        n_systems=mixer.n_systems or config.d_model,
        n=mixer.d_state // 2,
        rank=0 if isinstance(mixer, S4DConfig) else mixer.rank,
        bidirectional=mixer.bidirectional,
        method=mixer.method if isinstance(mixer, S4DConfig) else "bilinear",
    )
    return Layer(here, kernel, block)
