"""A language model's decoding step as one exported program: tokens and state in, logits and state out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from statewise.errors import InputError
from statewise.export.definitions import definitions
from statewise.export.quiet import quiet
from statewise.export.real import Pair, RealArithmetic, pair
from statewise.mixers.attention import Attention
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel


def export_step(model: LanguageModel, *, batch: int = 1) -> ExportedProgram:
    """The step ``logits, *leaves = program.module()(tokens, *leaves)``, for a fixed number of rows.

    The leaves are those of ``model.initial_state(batch)`` in the order of ``torch.utils._pytree.tree_leaves``, named
    by :func:`state_names`; the state that a model returns after a prompt is as good. The program has the parameters
    that it uses, in the model's own memory, and as constants what a frozen model computes once: it belongs to this
    moment, as ``model.freeze()`` does, until ``torch.export.save`` writes it to a file. It has plain ATen operators on
    real numbers only: each kernel of this package is written out as its definition, each complex number as its two
    parts. So it runs, and is loaded, where this package is not installed. Neither ids nor positions are checked in it:
    one outside the vocabulary, or beyond ``max_positions``, is whatever the runtime makes of it.

    Shapes:  tokens: (batch,) int64 -> logits (batch, vocab_size); the leaves as they are given
    Cost:    seconds, a few for each layer.
    Numerics: the model's own definition, in its dtype; states float32 or wider.
    Errors:  InputError for a batch below 1, and for a model that :func:`refusal` has a reason for, naming the layer.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InputError(f"batch={batch!r}; expected an integer of at least 1: an exported step has a fixed one")
    reason = refusal(model)
    if reason is not None:
        raise InputError(f"this model's step cannot be exported: {reason}")
    with quiet(), evaluation_mode(model), torch.inference_mode(False), torch.no_grad():
        step = _Step(model, batch)
        inputs = (torch.zeros(batch, dtype=torch.int64, device=model.embedding.weight.device), *step.rest)
        step(*inputs)  # what a prepared operator computes at its first call is then no part of the step
        program = torch.export.export(step, inputs, strict=False)
        table = torch.export.default_decompositions()
        table.update(definitions())
        program = program.run_decompositions(table)
        return torch.export.export(_RealStep(program), inputs, strict=False)


def refusal(model: nn.Module) -> str | None:
    """Why a model's step cannot be exported, in one line; None if it can."""
    if not isinstance(model, LanguageModel):
        return f"a {type(model).__name__} writes no tokens; give a language model"
    for i, block in enumerate(model.blocks):
        if isinstance(block.mixer, Attention):
            return (
                f"layers[{i}] is attention, whose history changes its size from token to token, and an exported step "
                "has fixed shapes; use a model without attention, or sw.generate"
            )
    return None


def state_names(model: LanguageModel) -> tuple[str, ...]:
    """A name for each leaf of the model's state, in order: "position", "layers.0.convolution.inputs" ..."""
    paths, _ = tree_flatten_with_path(model.initial_state(1, device="meta"))
    return tuple(".".join(str(getattr(key, "name", getattr(key, "idx", key))) for key in path) for path, _ in paths)


class _Step(nn.Module):
    """The model's call for one token of each row, on leaves in place of the state."""

    def __init__(self, model: LanguageModel, batch: int) -> None:
        super().__init__()
        self.model = model.freeze()
        self.rest, self._structure = tree_flatten(self.model.initial_state(batch))

    def forward(self, tokens: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        logits, state = self.model(tokens.unsqueeze(1), tree_unflatten(list(leaves), self._structure))
        return logits.squeeze(1), *tree_leaves(state)


class _RealStep(nn.Module):
    """A program on real numbers, with the parameters and constants that it uses and no others."""

    def __init__(self, program: ExportedProgram) -> None:
        super().__init__()
        self._run = [program.graph_module]  # in a list, it is not one of this module's own
        self._inputs: list[tuple[str, ...]] = []  # where each input that is not the user's is kept: its parts
        nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
        for node, spec in zip(nodes, program.graph_signature.input_specs):
            if spec.kind == InputKind.USER_INPUT:
                continue
            target = str(spec.target)
            value = program.state_dict.get(target, program.constants.get(target))
            names: tuple[str, ...] = ()
            if isinstance(value, Tensor) and node.users:
                parts = {target: value}
                if value.is_complex():
                    both = pair(value)
                    parts = {f"{target}_real": both.real, f"{target}_imag": both.imag}
                for name, part in parts.items():
                    _keep(self, name, part)
                names = tuple(parts)
            self._inputs.append(names)

    def forward(self, tokens: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        own: list[Any] = []
        for names in self._inputs:
            parts = [_find(self, name) for name in names]
            own.append(None if not parts else parts[0] if len(parts) == 1 else Pair(*parts))
        out: tuple[Tensor, ...] = RealArithmetic(self._run[0]).run(*own, tokens, *leaves)
        return out


def _keep(module: nn.Module, name: str, value: Tensor) -> None:
    """Under a name with dots, as it had in the model."""
    *parents, last = name.split(".")
    for parent in parents:
        if not hasattr(module, parent):
            module.add_module(parent, nn.Module())
        module = getattr(module, parent)
    if isinstance(value, nn.Parameter):
        module.register_parameter(last, nn.Parameter(value.detach(), requires_grad=False))
    else:
        module.register_buffer(last, value.detach().clone(memory_format=torch.contiguous_format))


def _find(module: nn.Module, name: str) -> Tensor:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    assert isinstance(found, Tensor)
    return found
