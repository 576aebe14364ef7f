"""Triton's kernels under what people do on CUDA: autocast, CUDA graphs, streams, deterministic algorithms, and tensors
of more than 2^31 numbers. Each check also runs without a GPU, by PyTorch, to show that the check itself is right."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hybrid_steps import assert_near, hybrid, loss_and_gradients, loss_of, text
from torch import Tensor

import statewise as sw
from statewise import kernels
from statewise.kernels.rms_norm import rms_norm
from statewise.kernels.selective_scan import selective_scan
from statewise.kernels.ssd import ssd

# cuBLAS is deterministic with this alone, and looks for it once: with its first product
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

WHERE = [pytest.param("cpu", id="cpu"), pytest.param("cuda", marks=pytest.mark.cuda, id="cuda")]


@pytest.fixture(params=WHERE)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """ "cuda" with Triton's kernels, and "cpu" with PyTorch's."""
    with kernels.use("triton" if request.param == "cuda" else "torch"):
        yield request.param


def drawn(device: str, seed: int, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=random).to(device, dtype) for shape in shapes]


def of_ssd(device: str, seed: int) -> list[Tensor]:
    x, log_a, B, C, h0 = drawn(
        device, seed, (2, 150, 4, 32), (2, 150, 4), (2, 150, 2, 16), (2, 150, 2, 16), (2, 4, 32, 16)
    )
    return [x, -log_a.abs() / 5, B, C, h0]


def of_scan(device: str, seed: int) -> list[Tensor]:
    u, dt, A, B, C, h0 = drawn(device, seed, (2, 150, 48), (2, 150, 48), (48, 8), *[(2, 150, 1, 8)] * 2, (2, 48, 8))
    return [u, dt.abs() / 5, -A.abs(), B, C, h0]


KERNELS: dict[str, tuple[Callable[..., tuple[Tensor, Tensor]], Callable[[str, int], list[Tensor]]]] = {
    "ssd": (ssd, of_ssd),
    "selective_scan": (selective_scan, of_scan),
}


def forwards_and_backwards(run: Callable[..., tuple[Tensor, Tensor]], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Both outputs, and the gradients of a function of them."""
    outputs = run(*inputs)
    slopes = [m.detach().sin() for m in outputs]
    return [*(m.detach() for m in outputs), *torch.autograd.grad(outputs, inputs, slopes)]


def leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [m.detach().clone().requires_grad_() for m in tensors]


def recorded(call: Callable[[], list[Tensor]], device: str) -> Callable[[], list[Tensor]]:
    """A replay of the call by a CUDA graph, whose results lie in the same tensors each time; on the CPU the call."""
    if device == "cpu":
        return call
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()

    def replay() -> list[Tensor]:
        graph.replay()
        return results

    return replay


@pytest.mark.parametrize("name", KERNELS)
def test_a_graph_computes_with_new_numbers(name: str, device: str) -> None:
    run, make = KERNELS[name]
    inputs = leaves(make(device, 0))
    replay = recorded(lambda: forwards_and_backwards(run, inputs), device)
    for seed in (1, 2):
        new = make(device, seed)
        with torch.no_grad():
            for m, value in zip(inputs, new):
                m.copy_(value)
        got, want = replay(), forwards_and_backwards(run, leaves(new))
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, atol=1e-5 * max(1.0, float(b.abs().max())), rtol=1e-5)


def test_two_streams_at_once(device: str) -> None:
    cases = [(run, leaves(make(device, seed))) for run, make in KERNELS.values() for seed in (0, 1)]
    want = [forwards_and_backwards(*case) for case in cases]
    if device == "cpu":
        got = [forwards_and_backwards(*case) for _ in range(5) for case in cases]
    else:
        torch.cuda.synchronize()
        streams, got = [torch.cuda.Stream(), torch.cuda.Stream()], []
        for _ in range(5):
            for i, case in enumerate(cases):
                with torch.cuda.stream(streams[i % 2]):
                    got.append(forwards_and_backwards(*case))
        torch.cuda.synchronize()
    for i, results in enumerate(got):
        for a, b in zip(results, want[i % len(cases)]):
            torch.testing.assert_close(a, b, atol=0, rtol=0)


def test_a_training_step_under_autocast(device: str) -> None:
    tokens, found = text(device), []
    for path in ("torch", "triton" if device == "cuda" else "auto"):
        model = hybrid(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with kernels.use(path):
            with torch.autocast(device, torch.bfloat16):
                loss = loss_of(lambda ids, model=model: model(ids)[0], tokens)
            loss.backward()
            found.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
            optimizer.step()
            with torch.no_grad(), torch.autocast(device, torch.bfloat16):
                assert loss_of(lambda ids, model=model: model(ids)[0], tokens) < loss
        assert len(found[-1]) == 1 + len([*model.parameters()])
    assert_near(found[1], found[0], 0.1)


def test_deterministic_algorithms_give_the_same_bits(device: str) -> None:
    model, tokens = hybrid(device, torch.float32, sw.MambaConfig(d_state=8)), text(device)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = (loss_and_gradients(model, tokens) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(before)
    for a, b in zip(first, second):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, atol=0, rtol=0)


def small_or_skipped(device: str) -> bool:
    if device == "cuda" and torch.cuda.mem_get_info()[0] < 60e9:
        pytest.skip("needs 60 GB of the GPU's memory free")
    return device == "cpu"


def near(got: Tensor, want: Tensor) -> None:
    """bfloat16, summed in another order."""
    assert got.isfinite().all()
    assert float((got.float() - want.float()).abs().max()) <= 2e-2 * float(want.float().abs().max())


def large(device: str, *shape: int) -> Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16).requires_grad_()


def test_more_numbers_than_32_bits_count_in_ssd(device: str) -> None:
    """The first and the last sequence are what they are alone, forwards and backwards."""
    b, length, h, p, n = (3, 64, 2, 8, 4) if small_or_skipped(device) else (33, 8192, 128, 64, 16)
    torch.manual_seed(0)
    x = large(device, b, length, h, p)
    assert device == "cpu" or x.numel() > 2**31
    log_a = -torch.rand(b, length, h, device=device)
    B, C = (torch.randn(b, length, 1, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    h0 = torch.zeros(b, h, p, n, device=device)
    y, state = ssd(x, log_a, B, C, h0)
    (dx,) = torch.autograd.grad(y, [x], x.detach())
    for row in (slice(0, 1), slice(b - 1, b)):
        one = x.detach()[row].clone().requires_grad_()
        y_, state_ = ssd(one, log_a[row], B[row], C[row], h0[row])
        (dx_,) = torch.autograd.grad(y_, [one], one.detach())
        for got, want in ((y.detach()[row], y_.detach()), (state.detach()[row], state_.detach()), (dx[row], dx_)):
            near(got, want)


def test_more_numbers_than_32_bits_count_in_rms_norm(device: str) -> None:
    rows, width = (9, 40) if small_or_skipped(device) else (2**19 + 64, 4096)
    torch.manual_seed(0)
    x, weight = large(device, rows, width), torch.rand(width, device=device).requires_grad_()
    assert device == "cpu" or x.numel() > 2**31
    y = rms_norm(x, weight)
    dx, d_weight = torch.autograd.grad(y, [x, weight], x.detach().roll(1, -1))
    assert d_weight.isfinite().all()
    for part in (slice(0, 8), slice(rows - 8, rows)):
        some = x.detach()[part].clone().requires_grad_()
        y_ = rms_norm(some, weight)
        (dx_,) = torch.autograd.grad(y_, [some], some.detach().roll(1, -1))
        near(y.detach()[part], y_.detach())
        near(dx[part], dx_)
