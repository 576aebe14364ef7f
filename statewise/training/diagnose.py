"""Where a number that is not finite came from: the first layer that made one out of finite ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


def is_finite(tree: Any) -> bool:
    """Whether every tensor in a tree is finite; what is not a floating tensor counts as finite."""
    return all(
        bool(torch.isfinite(leaf).all())
        for leaf in tree_leaves(tree)
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    )


def non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that is not finite."""
    return next((name for name, tensor in tensors.items() if not is_finite(tensor)), None)


def first_non_finite(model: nn.Module, loss: Callable[[], Tensor]) -> str | None:
    """Runs ``loss()`` and its backward pass under hooks; names the culprit as a phrase for an error, or None.

    ``loss`` must do again what went wrong: the same batch, the same state, the same random numbers. In order
    of execution, the culprit is a parameter that is not finite already; else the first module whose output is
    not finite though what it was given is (children end before their parents, so it is the smallest such
    part); else, if there is one, the first module whose output is not finite as what it was given, the data
    perhaps, was not; else the loss; else, in backward order, the first module whose parameters' or inputs' gradient is
    not finite though the gradient of its output is.

    Cost: one forward and one backward pass, and a look at every tensor between the layers. Gradients are
    left as the backward pass made them; hooks are removed.
    """
    # Not of buffers: what went wrong has gone into a batch norm's running mean
    name = next((name for name, parameter in model.named_parameters() if not is_finite(parameter)), None)
    if name is not None:
        return f"the parameter {name} was not finite before the step"
    found: list[str] = []
    passed_on: list[str] = []
    owners = {
        id(parameter): (f"{prefix}.{name}" if prefix else name, module)
        for prefix, module in model.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
    }
    handles: list[Any] = []

    def after_forward(label: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if found or is_finite(output):
                return
            if is_finite((args, kwargs)):
                found.append(f"the first layer whose output is not finite is {label}; its input and parameters are")
            else:
                passed_on.append(
                    f"the first layer whose output is not finite is {label}; its input was not finite either"
                )

        return hook

    def after_backward(label: str) -> Callable[..., None]:
        def hook(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
            if not found and not is_finite(grad_input) and is_finite(grad_output):
                found.append(
                    f"the first layer in backward order whose gradient is not finite is {label}; "
                    "the gradient of its output is"
                )

        return hook

    def after_accumulate(parameter: Tensor) -> None:
        if not found and not is_finite(parameter.grad):
            name, module = owners[id(parameter)]
            found.append(
                f"the first parameter in backward order whose gradient is not finite is {name} "
                f"({type(module).__name__})"
            )

    try:
        for prefix, module in model.named_modules():
            label = f"{prefix or 'the model'} ({type(module).__name__})"
            handles.append(module.register_forward_hook(after_forward(label), with_kwargs=True))
            handles.append(module.register_full_backward_hook(after_backward(label)))
        handles += [
            parameter.register_post_accumulate_grad_hook(after_accumulate)
            for parameter in model.parameters()
            if parameter.requires_grad
        ]
        with warnings.catch_warnings():  # that a layer which reads tokens has no gradient to pass on
            warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
            value = loss()
            if not found and not is_finite(value):
                found.append(passed_on[0] if passed_on else "every layer's output is finite, but the loss is not")
            if not found:
                value.backward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None
