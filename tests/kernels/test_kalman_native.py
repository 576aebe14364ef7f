"""The Kalman filter in C: beside PyTorch's operations and the definition, any sizes, masks, threads, and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from estimation_models import covariance, observations, random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from statewise import kernels, native
from statewise.errors import InputError
from statewise.estimation import GaussianState
from statewise.kernels.kalman import kalman
from statewise.kernels.kalman.triangular import lower, positive

D = torch.float64

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")
each_instruction_set = pytest.mark.parametrize("instructions", native.instruction_sets())


@pytest.fixture(autouse=True)
def _poisoned_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def case(
    batch: int, length: int, n: int, p: int, *, own: str = "", masks: str = "", seed: int = 0, dtype: torch.dtype = D
) -> list[Any]:
    """The operator's arguments; ``own``: what differs from row to row (r) or step to step (t)."""
    g = torch.Generator().manual_seed(seed)
    k = n + p

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=D).to(dtype)

    rows, steps = batch if "r" in own else 1, length if "t" in own else 1
    observed = torch.rand(batch, length, p, generator=g) < 0.6 if "m" in masks else None
    lengths = torch.randint(0, length + 1, (batch,), generator=g) if "l" in masks else None
    starts = torch.rand(batch, length, generator=g) < 0.3 if "s" in masks else None
    y = normal(batch, length, p)
    if lengths is not None:
        valid = (torch.arange(length) < lengths[:, None]).unsqueeze(-1).expand(batch, length, p)
        observed = valid if observed is None else observed & valid
    if observed is not None:
        y = y.masked_fill(~observed, 0)
    return [
        *(y, 0.6 * normal(rows, steps, k, n), normal(rows, steps, k, k + 1), normal(batch, length, k)),
        *(normal(batch, n), positive(lower(normal(rows, n, n))), normal(1, n), positive(lower(normal(rows, n, n)))),
        *(observed, lengths, starts),
    ]


def outcomes(arguments: list[Any], path: str, *, factors: bool = False) -> list[Tensor]:
    """Outputs and gradients, of all of them or of all but the factors."""
    leaves = [m.detach().requires_grad_() if m is not None and m.is_floating_point() else m for m in arguments]
    with kernels.use(path):
        found = kalman(*leaves)
        outputs = [m for i, m in enumerate(found) if factors or i in (0, 2, 4)]
        g = torch.Generator().manual_seed(1)
        weights = [torch.randn(m.shape, generator=g, dtype=D).to(m.dtype) for m in outputs]
        wanted = [m for m in leaves if m is not None and m.requires_grad]
        grads = torch.autograd.grad(outputs, wanted, weights, materialize_grads=True)
    return [*(m.detach() for m in found), *grads]


def check(arguments: list[Any], tolerance: float = 1e-9) -> None:
    for i, (got, want) in enumerate(zip(outcomes(arguments, "c"), outcomes(arguments, "torch"))):
        scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
        torch.testing.assert_close(got, want, atol=tolerance * scale, rtol=0, msg=lambda m, i=i: f"{i}: {m}")


@each_instruction_set
@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (2, 3), (5, 2)])
def test_equal_to_pytorch(sizes: tuple[int, int], instructions: str) -> None:
    """One row, a vector with lanes to spare, more than one; each size of its own code, and others."""
    with native.forced(instructions):
        for batch in (1, 3, 17):
            for masks in ("", "mls"):
                check(case(batch, 5, *sizes, own="rt" if masks else "", masks=masks))


@settings(max_examples=40)
@given(
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    batch=st.integers(1, 20),
    length=st.integers(1, 9),
    own=st.sampled_from(("", "r", "t", "rt")),
    masks=st.sampled_from(("", "m", "l", "s", "ms", "mls")),
    seed=st.integers(0, 2**16),
)
def test_random_cases(sizes: tuple[int, int], batch: int, length: int, own: str, masks: str, seed: int) -> None:
    check(case(batch, length, *sizes, own=own, masks=masks, seed=seed), 1e-7)


@settings(max_examples=15)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    varies=st.booleans(),
    missing=st.booleans(),
    lengths=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    seed=st.integers(0, 2**16),
)
def test_random_models_beside_the_definition(
    sizes: tuple[int, int], varies: bool, missing: bool, lengths: list[int], seed: int
) -> None:
    n, p = sizes
    model = random_model(n=n, p=p, length=6 if varies else None, batch=3, seed=seed)
    y, u = observations(3, 6, p, missing=missing, seed=seed)
    ends = torch.tensor(lengths)
    with kernels.use("c"):
        got, state = model.filter(y, model.initial_state(3), u=u, lengths=ends, form="square_root")
    want, final = model.filter(y, model.initial_state(3), u=u, lengths=ends, form="recurrent")
    for a, b in zip((*vars(got).values(), *state), (*vars(want).values(), *final)):  # type: ignore[misc]
        if b is not None:
            torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


def test_shared_covariances_are_computed_once() -> None:
    with kernels.use("c"):
        found = kalman(*case(9, 4, 2, 1))
        assert found.factor.shape == (1, 4, 2, 2)
        assert found.innovation_factor.shape == (1, 4, 1, 1)
        assert kalman(*case(9, 4, 2, 1, masks="m")).factor.shape == (9, 4, 2, 2)


@each_instruction_set
def test_float32_against_float64(instructions: str) -> None:
    for batch, masks in ((1, ""), (1, "m"), (20, ""), (20, "mls")):
        narrow = case(batch, 60, 3, 2, masks=masks, dtype=torch.float32)
        narrow[1] = narrow[1] / 2
        wide = [m.double() if m is not None and m.is_floating_point() else m for m in narrow]
        with native.forced(instructions):
            for got, want in zip(outcomes(narrow, "c"), outcomes(wide, "torch")):
                assert got.dtype == torch.float32
                assert (got - want).abs().max() < 2e-5 * max(1.0, float(want.abs().max()))


def test_gradients_of_factors_go_through_pytorch() -> None:
    arguments = case(3, 4, 2, 1, masks="m")
    for got, want in zip(outcomes(arguments, "auto", factors=True), outcomes(arguments, "torch", factors=True)):
        torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)


def test_gradients_by_finite_differences() -> None:
    *numbers, observed, lengths, starts = case(3, 4, 2, 2, masks="mls")
    leaves = [m.requires_grad_() for m in numbers]

    def run(*leaves: Tensor) -> tuple[Tensor, ...]:
        found = kalman(*leaves, observed, lengths, starts)
        return found.mean, found.innovation, found.density

    with kernels.use("c"):
        assert torch.autograd.gradcheck(run, leaves)


@pytest.mark.parametrize("masks", ["", "mls"])
def test_the_same_bits_for_any_number_of_threads(masks: str) -> None:
    arguments, found = case(70, 9, 3, 1, masks=masks), []
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        try:
            found.append(outcomes(arguments, "c"))
        finally:
            torch.set_num_threads(1)
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other))


@each_instruction_set
def test_the_logarithm(instructions: str) -> None:
    """Of a model with the innovation's deviation s alone: log p = -log s - log(2 pi) / 2 at the mean."""
    for dtype, low, high in ((torch.float32, -18, 18), (D, -150, 150)):
        s = torch.cat([torch.logspace(low, high, 4000, dtype=D), torch.linspace(0.5, 2, 4001, dtype=D)]).to(dtype)
        zero = torch.zeros(len(s), 1, 1, dtype=dtype)
        N = torch.zeros(len(s), 1, 2, 2, dtype=dtype)
        N[:, 0, 0, 0] = s
        with kernels.use("c"), native.forced(instructions):
            A = torch.zeros(1, 1, 2, 1, dtype=dtype)
            got = kalman(zero, A, N, zero.expand(-1, 1, 2), zero[:, 0], zero, zero[0], zero[:1])
        want = -got.innovation_factor[:, 0, 0, 0].double().log() - 0.9189385332046728
        assert float((got.density[:, 0].double() - want).abs().max()) < 4 * torch.finfo(dtype).eps * want.abs().max()


@each_instruction_set
def test_nothing_known_and_nothing_moved(instructions: str) -> None:
    """Variances of zero, of states and of noises, are no division by zero; NaN stays in its row."""
    arguments = case(9, 5, 3, 1, masks="m")
    arguments[2][:, :, 1:] = 0
    arguments[5] = torch.zeros(1, 3, 3, dtype=D)
    with native.forced(instructions):
        check(arguments)
        arguments[3][4, 2] = torch.nan
        with kernels.use("c"):
            found = kalman(*arguments)
    bad = found.mean.isnan().flatten(1).any(1)
    assert bad[4]
    assert bad.sum() == 1
    assert found.factor.isfinite().all()


def test_any_square_root_will_do() -> None:
    arguments = case(3, 4, 2, 1)
    square = list(arguments)
    square[5] = positive(lower(arguments[5]))
    with kernels.use("c"):
        for a, b in zip(kalman(*arguments), kalman(*square)):
            torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_no_rows_and_no_steps() -> None:
    for batch, length in ((0, 3), (2, 0), (0, 0)):
        for masks in ("", "mls"):
            check(case(batch, length, 2, 1, masks=masks))


def test_opcheck() -> None:
    torch.use_deterministic_algorithms(False)  # opcheck compares memory that an operator is free to leave as it is
    numbers = [m.requires_grad_() if m is not None and m.is_floating_point() else m for m in case(2, 3, 2, 1)]
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    operator = torch.ops.statewise.kalman.default
    assert {*torch.library.opcheck(operator, (*numbers, 1), test_utils=checks).values()} == {"SUCCESS"}
    found = [m.detach() for m in operator(*numbers, 1)]
    adjoint = torch.ops.statewise.kalman_backward.default
    given = (*numbers, *found, found[0], found[2], None, 1)
    assert {*torch.library.opcheck(adjoint, given, test_utils=checks).values()} == {"SUCCESS"}


def test_refusals() -> None:
    y, G, *rest = case(3, 4, 2, 1, masks="m")
    with pytest.raises(InputError, match=r"needs n and p above 0, and p \+ n rows"):
        kalman(y, G[:, :, :2], rest[0][:, :, :2], rest[1][..., :2], *rest[2:])
    with pytest.raises(InputError, match="covariances for 3 rows, or for 1 where no observed differs; got 1"):
        torch.ops.statewise.kalman(y, G, *rest, 1)


def test_a_state_goes_on_in_c() -> None:
    model = random_model(m=0)
    y, _ = observations(5, 12, 2, 0, missing=True)
    state = GaussianState(torch.zeros(5, 3, dtype=D), covariance(5, 3, 3, generator=torch.Generator().manual_seed(0)))
    with kernels.use("c"):
        whole, final = model.filter(y, state, form="square_root")
        first, middle = model.filter(y[:, :7], state, form="square_root")
        rest, end = model.filter(y[:, 7:], middle, form="square_root")
    torch.testing.assert_close(torch.cat([first.mean, rest.mean], 1), whole.mean, atol=1e-12, rtol=0)
    for a, b in zip(end, final):  # type: ignore[arg-type]
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
