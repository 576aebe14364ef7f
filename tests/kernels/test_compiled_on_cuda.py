"""torch.compile of a hybrid whose kernels are Triton's: one graph, the loss and the gradients of the plain call."""

from __future__ import annotations

import pytest
import torch
from hybrid_steps import assert_near, hybrid, loss_and_gradients, text

from statewise import kernels

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}  # a compiler keeps more digits of bfloat16 between operations


def check(device: str, dtype: torch.dtype, path: str, compiler: str) -> None:
    model, tokens = hybrid(device, dtype), text(device)
    torch._dynamo.reset()
    with kernels.use(path):
        want = loss_and_gradients(model, tokens)
        compiled = torch.compile(lambda ids: model(ids)[0], fullgraph=True, backend=compiler)
        assert_near(loss_and_gradients(model, tokens, compiled), want, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_on_the_cpu(dtype: torch.dtype) -> None:
    """The same test without a GPU."""
    check("cpu", dtype, "torch", "aot_eager")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_hybrid_is_one_graph(dtype: torch.dtype) -> None:
    check("cuda", dtype, "triton", "inductor")
