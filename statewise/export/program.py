"""A part of a model as a program of plain PyTorch operators on real numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from statewise.export.definitions import definitions
from statewise.export.parts import Part
from statewise.export.quiet import quiet
from statewise.export.real import Pair, RealArithmetic, pair
from statewise.mixers.prepared import PreparedOperators
from statewise.models.evaluation_mode import evaluation_mode
from statewise.operators.time_invariant import TimeInvariant


def trace(part: Part) -> ExportedProgram:
    """The program, with the parameters that it uses in the model's own memory, and as constants what a frozen model
    computes once."""
    inputs = tuple(part.inputs.values())
    with quiet(), evaluation_mode(part.module), torch.inference_mode(False), torch.no_grad():
        if part.any_length:
            keep_for_any_length(part.module)
        else:
            part.module(*inputs)  # what a prepared operator computes at its first call is then no part of the step
        named = 1 + ("lengths" in part.inputs)  # of the arguments, before those of ``*leaves``
        sizes = _sizes(part)
        of_part = (*sizes[:named], sizes[named:]) if len(sizes) > named else sizes  # those of a tuple are one of them
        program = torch.export.export(part.module, inputs, strict=False, dynamic_shapes=of_part)
        table = torch.export.default_decompositions()
        table.update(definitions(any_length=part.any_length))
        program = program.run_decompositions(table)
        if part.any_length and not _has_complex(program):
            return program
        return torch.export.export(_RealProgram(program), inputs, strict=False, dynamic_shapes=(sizes,))


def _has_complex(program: ExportedProgram) -> bool:
    """Whether any number in it is complex, also within a loop."""
    graphs = [m for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    values = (node.meta.get("val") for graph in graphs for node in graph.graph.nodes)
    return any(isinstance(value, Tensor) and value.is_complex() for value in values)


def keep_for_any_length(module: nn.Module) -> None:
    """What the prepared operators in it compute once."""
    for part in module.modules():
        for operator in part.operators if isinstance(part, PreparedOperators) else ():
            if isinstance(operator, TimeInvariant):
                operator.keep_for_any_length()


def _sizes(part: Part) -> tuple[dict[int, Any], ...]:
    """The axes of each input that may have any size. PyTorch assumes things about them, such as two rows or more; a
    written file is checked by running it on other sizes."""
    return tuple(dict.fromkeys(part.axes.get(name, {}), Dim.DYNAMIC) for name in part.inputs)


class _RealProgram(nn.Module):
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

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        own: list[Any] = []
        for names in self._inputs:
            parts = [_find(self, name) for name in names]
            own.append(None if not parts else parts[0] if len(parts) == 1 else Pair(*parts))
        out: tuple[Tensor, ...] = RealArithmetic(self._run[0]).run(*own, *inputs)
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
