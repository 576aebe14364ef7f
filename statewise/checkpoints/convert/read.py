"""A published model, recognised, converted and built: from a folder or a file to a :class:`Model`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor

from statewise.checkpoints.convert.formats import Config, Format, formats
from statewise.checkpoints.convert.source import Source, find_source
from statewise.checkpoints.convert.weights import owned, read_weights
from statewise.checkpoints.empty import build_empty, fill
from statewise.checkpoints.tensor_files import GGUF, require_finite, stored_tensors
from statewise.errors import CheckpointError, ConfigError, InputError, excerpt, retold
from statewise.mixers.base import Dynamics
from statewise.models.base import Model, ModelConfig
from statewise.models.quantised import QuantisedTensor

Progress = Callable[[int, int], None]  # of tensors: how many are done, and of how many


@dataclass(frozen=True)
class Published:
    """A published model in our terms: ``theirs`` are its tensors, mapped to the files, ``ours`` what they are here.

    format: the name of what it was published in, as "mamba_ssm"
    """

    source: Source
    format: str
    config: ModelConfig
    ours: dict[str, Tensor]
    theirs: dict[str, Tensor]

    def build(
        self,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        progress: Progress | None = None,
    ) -> Model:
        """The model, in evaluation mode, with ``ours`` taken out of here one by one: to be called once.

        dtype:   of the floating parameters, but for ``Dynamics``, which are float32 or wider. None: the narrowest to
                 which all of the file's can be cast without loss, since a layer computes in one dtype.
        """
        if keeps := any(isinstance(tensor, QuantisedTensor) for tensor in self.ours.values()):
            require_kept(device, dtype)
        model = build_empty(self.config)
        dtype = _common_dtype(model, self.ours) if dtype is None else dtype
        n_tensors = len(self.ours)

        def counted() -> Iterator[tuple[str, Tensor]]:
            for i, (name, tensor) in enumerate(owned(self.ours, self.theirs)):
                if not isinstance(tensor, QuantisedTensor) or not tensor.blocks.are_finite():
                    require_finite(name, tensor, f"{self.source.path}, by our names")
                if progress is not None:
                    progress(i, n_tensors)
                yield name, tensor

        fill(model, counted(), dtype)
        self.theirs.clear()
        if progress is not None:
            progress(n_tensors, n_tensors)
        return (model if keeps else model.to(device)).eval()


def require_kept(device: torch.device | str, dtype: torch.dtype | None) -> None:
    """Errors: InputError for a device or a dtype that quantised matrices cannot have."""
    if torch.device(device).type != "cpu" or dtype is not None:
        given = f"device={str(device)!r}" if dtype is None else f"dtype={dtype}"
        raise InputError(f"keep_quantised=True is for the CPU, in the types of the file; leave {given} out")


def open_published(path: Path, *, keep_quantised: bool = False) -> Published:
    """The model at the path, converted; its tensors are not read yet where they need not be computed.

    keep_quantised: as for :func:`statewise.load`
    Errors:  CheckpointError that names a format that is not known and those that are, or what is wrong with the config
             or the tensors.
    """
    source = find_source(path)
    if source.weights.suffix == GGUF:
        from statewise.checkpoints.convert.gguf import read_gguf

        return Published(source, "gguf", *read_gguf(source.weights, keep_quantised=keep_quantised), {})
    their_config, theirs = read_weights(source)
    found = recognise(source, their_config, frozenset(theirs))
    with retold(CheckpointError, CheckpointError, ConfigError, where=f"{path}, read as {found.name}: "):
        config, ours = found.read(their_config, theirs)
    return Published(source, found.name, config, dict(ours), theirs)


def load_published(
    path: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None, keep_quantised: bool = False
) -> Model:
    """The model of a published folder or file; see :func:`statewise.checkpoints.load`."""
    return open_published(path, keep_quantised=keep_quantised).build(device=device, dtype=dtype)


def recognise(source: Source, config: Config, names: frozenset[str]) -> Format:
    """The first format that takes the model for its own.

    Errors:  CheckpointError with what was found and what is known.
    """
    known = []
    for candidate in formats():
        if candidate.recognises(config, names):
            return candidate
        known.append(candidate)
    kind = config.get("model_type") or config.get("architectures")
    if kind:
        what = f"its config says {excerpt(kind, 40)}"
    elif source.config_file is not None:
        what = f"{source.config_file} has the fields {_few(config)}"
    else:
        what = "there is no config.json beside it"
    raise CheckpointError(
        f"{source.path} has an unknown architecture: {what}, and its tensors are {_few(names)}. "
        f"Known: {', '.join(f'{one.name}{_in_brackets(one.kinds, kind)}' for one in known)}, gguf"
    )


def _in_brackets(kinds: Sequence[str], asked: object) -> str:
    """Some of them: the first, and those that are nearly what was asked."""
    if not kinds:
        return ""
    near = get_close_matches(asked, kinds) if isinstance(asked, str) else []
    shown = [*dict.fromkeys([*kinds[:6], *near])]
    rest = f" and {len(kinds) - len(shown)} more" if len(kinds) > len(shown) else ""
    return f" ({', '.join(shown)}{rest})"


def _few(names: Iterable[str]) -> str:
    names = sorted(excerpt(name, 40, quoted=False) for name in names)
    return ", ".join(names[:2]) + (f", ... ({len(names)})" if len(names) > 2 else "") if names else "none"


def _common_dtype(model: Model, tensors: Mapping[str, Tensor]) -> torch.dtype:
    inside = {id(p) for module in model.modules() if isinstance(module, Dynamics) for p in module.parameters()}
    found = [
        tensors[name].dtype
        for name, parameter in stored_tensors(model).items()
        if id(parameter) not in inside and tensors[name].is_floating_point()
    ]
    return reduce(torch.promote_types, found) if found else torch.float32
