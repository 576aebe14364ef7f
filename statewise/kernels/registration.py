"""How a kernel becomes an operator of PyTorch, so that autograd, torch.compile and torch.export know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def register(
    name: str,
    schema: str,
    implementation: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
) -> Callable[..., Any]:
    """Registers ``statewise::name`` for every device and returns it.

    ``fake`` gives empty outputs of the right shapes, ``setup_context`` and ``backward`` the derivative. The parts
    of ``torch.library`` below are used rather than its ``custom_op``, whose first call imports ``torch._dynamo``:
    almost two seconds before the first token, and more time in every call.
    """
    qualified = f"statewise::{name}"
    torch.library.define(qualified, schema)
    torch.library.impl(qualified, "default", implementation)
    torch.library.register_fake(qualified, fake)
    torch.library.register_autograd(qualified, backward, setup_context=setup_context)
    operator: Callable[..., Any] = getattr(torch.ops.statewise, name).default
    return operator
