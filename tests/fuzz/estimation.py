"""Random linear-Gaussian models in every form against ``recurrent``, and the same as functions for nonlinear filters.

A case has covariances of any rank, units far apart, coefficients that vary with time or rows, missing numbers, masks
with rubbish in the padding, a state carried over several calls, and at times gradients; or one thing that is wrong.
What is compared is told beside the standard deviations that the definition gives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from estimation_models import by_conditioning
from torch import Tensor

import statewise as sw
from fuzz.draw import Draw, Finding, expect_close, expect_refusal
from statewise.estimation import GaussianState, LinearGaussian, NonlinearGaussian, Smoothed, Unscented

D = torch.float64
FORMS = [form for form in LinearGaussian.forms if form != "recurrent"]
METHODS: list[Any] = ["extended", "iterated", "cubature", Unscented(alpha=0.5), Unscented(alpha=1.0, kappa=1.0)]
LOOSE = {torch.float64: 1e-6, torch.float32: 3e-3}


def check(draw: Draw) -> None:
    kind = draw.choice(["forms", "forms", "forms", "functions", "gradients", "wrong"], "kind")
    {"forms": forms, "functions": functions, "gradients": gradients, "wrong": wrong}[kind](draw)


def random_covariance(draw: Draw, lead: tuple[int, ...], units: Tensor, rank: int, least: float) -> Tensor:
    """With these standard deviations, about; ``least`` of them is noise of full rank."""
    root = draw.normal(*lead, len(units), rank) / max(rank, 1) ** 0.5
    P = root @ root.mT + least * torch.eye(len(units), dtype=D)
    return (P + P.mT) / 2 * torch.outer(units, units)


def random_units(draw: Draw, n: int) -> Tensor:
    spread = draw.choice([0.0, 0.0, 1.0, 3.0], "decades of units")
    return 10 ** (spread * (torch.rand(n, generator=draw.generator, dtype=D) - 0.5))


def random_model(draw: Draw, batch: int, length: int, *, correlated: bool | None = None) -> LinearGaussian:
    n, p, m = draw.integer(1, 5, "n"), draw.integer(1, 4, "p"), draw.integer(0, 2, "m")
    lead: tuple[int, ...] = draw.choice([(), (), (1, length), (batch, length), (batch, 1)], "axes of coefficients")
    varies: tuple[int, ...] = lead if draw.chance(0.5) else ()
    x, y = random_units(draw, n), random_units(draw, p)
    A = draw.choice([0.3, 0.7, 1.0], "size of A") * draw.normal(*lead, n, n) / n**0.5
    if A.numel():  # the definition's smoother subtracts what has grown, and loses its digits where A lets much grow
        A = A / torch.linalg.matrix_norm(A, 2).clamp(min=1.1)[..., None, None] * 1.1
    A = A * (x[:, None] / x)
    C = draw.normal(*varies, p, n) * (y[:, None] / x)
    rank = draw.integer(0, n, "rank of Q")
    if draw.chance(0.3, "with S") if correlated is None else correlated:
        joint = random_covariance(draw, varies, torch.cat([x, y]), n + p, 0.1)
        Q, R, S = joint[..., :n, :n], joint[..., n:, n:], joint[..., :n, n:]
    else:
        Q, R, S = (
            random_covariance(draw, varies, x, rank, 0.02 * (rank == n)),
            random_covariance(draw, lead, y, p, 0.1),
            None,
        )
    own = (batch,) if draw.chance(0.2, "a prior for each row") and batch else ()
    return LinearGaussian(
        A,
        Q,
        C,
        R,
        S=S,
        B=draw.normal(n, m) * x[:, None] if m else None,
        D=draw.normal(p, m) * y[:, None] if m and draw.chance(0.5) else None,
        b=draw.normal(*lead, n) * x if draw.chance(0.5) else None,
        d=draw.normal(p) * y if draw.chance(0.5) else None,
        mean=draw.normal(*own, n) * x,
        covariance=random_covariance(draw, own, x, draw.integer(0, n, "rank of the prior"), 0.0),
    )


def narrowed(model: LinearGaussian, dtype: torch.dtype) -> LinearGaussian:
    return replace(model, **{name: m.to(dtype) for name, m in model._given().items()})  # type: ignore[arg-type]


def random_call(draw: Draw, model: LinearGaussian, batch: int, length: int) -> tuple[Tensor, dict[str, Any]]:
    """y, of the size of what the model sees, with numbers missing, and rubbish where a row is padded."""
    p, m = model.n_observations, model.n_inputs
    scale = model.R.diagonal(dim1=-2, dim2=-1).reshape(-1, p).mean(0).sqrt() if model.R.numel() else torch.ones(p)
    y = 2 * draw.normal(batch, length, p) * scale.double()
    given: dict[str, Any] = {"u": draw.normal(batch, length, m) if m else None}
    share = draw.choice([0.0, 0.0, 0.3, 0.9, 1.0], "missing")
    hidden = torch.rand(batch, length, p, generator=draw.generator) < share
    if share and draw.chance(0.5, "by a mask"):
        given["observed"] = ~hidden
        y = torch.where(hidden & (torch.rand(hidden.shape, generator=draw.generator) < 0.1), torch.nan, y)
    else:
        y = y.masked_fill(hidden, torch.nan)
    if draw.chance(0.3, "with lengths"):
        given["lengths"] = draw.lengths(batch, length)
        padding = torch.arange(length) >= given["lengths"][:, None]
        y = y.masked_fill(padding.unsqueeze(-1), draw.choice([torch.nan, torch.inf, 1e30]))
        if m:
            given["u"] = given["u"].masked_fill(padding.unsqueeze(-1), torch.nan)
    if draw.chance(0.3, "with starts"):
        given["starts"] = draw.starts(batch, length)
    return y, given


def random_state(draw: Draw, model: LinearGaussian, batch: int) -> GaussianState:
    """Of any square root, not only a triangular one."""
    x = model._covariance.diagonal(dim1=-2, dim2=-1).reshape(-1, model.n_states).mean(0).sqrt().double()
    L = draw.normal(batch, model.n_states, model.n_states) * x[:, None]
    return GaussianState(draw.normal(batch, model.n_states) * x, L.tril() if draw.chance(0.5) else L)


def forms(draw: Draw) -> None:
    batch, length = draw.integer(0, 3, "batch"), draw.size(draw.choice([9, 20, 80]), "length")
    dtype = draw.choice([D, D, torch.float32], "dtype")
    model = narrowed(random_model(draw, batch, length), dtype)
    y, given = random_call(draw, model, batch, length)
    y, state = y.to(dtype), GaussianState(*[z.to(dtype) for z in random_state(draw, model, batch)])
    form = draw.choice([*FORMS, None], "form")
    moved = draw.notes.get("with S") == "True" or draw.notes["rank of Q"] == draw.notes["n"]
    if form == "steady" and not moved:
        return  # it may stop where a covariance that goes to zero is small beside its beginning
    cuts = sorted(draw.integer(0, length) for _ in range(draw.choice([0, 0, 1, 3])))
    draw.note("cuts", cuts)
    wide, y_64, state_64 = narrowed(model, D), y.double(), GaussianState(*[z.double() for z in state])
    want, final = wide.filter(y_64, state_64, form="recurrent", **given)
    try:
        pieces, after = in_pieces(model, y, state, form, cuts, given)
        again = model.smooth(y, state, form=form, **given)
    except sw.InputError as refused:
        if form != "steady" or "form 'steady' needs" not in str(refused):
            raise
        return
    assert final is not None
    loose = LOOSE[dtype] * (10 if form == "steady" else 1)
    mean, factor, densities, n_observed = (torch.cat(part, 1) for part in zip(*pieces))
    if not torch.equal(n_observed, want.n_observed):
        raise Finding("n_observed differs")
    like(draw, "filtered", mean, factor, want.mean, want.covariance, loose)
    held = want.log_densities.abs() < 1e30  # by float32: what A lets grow may be further off than that
    expect_close("log densities", densities[held], want.log_densities[held], loose)
    like(draw, "final", after.mean, after.factor, final.mean, final.factor @ final.factor.mT, loose)
    if moved:
        compare_smoothed(draw, again, wide.smooth(y_64, state_64, form="recurrent", **given), 3 * loose)
    elif "starts" not in given and length <= 20:
        by_rows(draw, again, wide, y_64, state_64, given, 3 * loose)


def compare_smoothed(draw: Draw, got: Smoothed, want: Smoothed, loose: float) -> None:
    length = want.mean.shape[1]
    like(draw, "smoothed", got.mean, got.factor, want.mean, want.covariance, loose)
    initial = want.initial_factor @ want.initial_factor.mT
    like(draw, "x_0", got.initial_mean, got.initial_factor, want.initial_mean, initial, loose)
    after, before = (
        deviations(want.covariance),
        deviations(torch.cat([initial[:, None], want.covariance], 1)[:, :length]),
    )
    scale = after.unsqueeze(-1) * before.unsqueeze(-2)
    expect_close("lag-one covariances", got.lag_one / scale, want.lag_one / scale, 3 * loose)


def by_rows(
    draw: Draw,
    got: Smoothed,
    model: LinearGaussian,
    y: Tensor,
    state: GaussianState,
    given: dict[str, Any],
    loose: float,
) -> None:
    """Beside one big normal distribution: where no noise moves a part of the state, the definition, which goes back by
    the inverse of A, loses its digits."""
    y = y if "observed" not in given else y.masked_fill(~given["observed"], torch.nan)
    for row in range(len(y)):
        end = int(given["lengths"][row]) if "lengths" in given else y.shape[1]
        if not end:
            continue
        L = state.factor[row]
        own = replace(model, mean=state.mean[row], covariance=L @ L.T)
        u = None if given["u"] is None else given["u"][:, :end]
        answer = by_conditioning(own, y[:, :end], u, row)
        P = torch.stack([answer.covariance[t, :, t] for t in range(1, end + 1)])
        like(draw, "smoothed", got.mean[row, :end], got.factor[row, :end], answer.mean[1:], P, loose)
        P = answer.covariance[0, :, 0]
        like(draw, "x_0", got.initial_mean[row, None], got.initial_factor[row, None], answer.mean[:1], P[None], loose)


def in_pieces(
    model: LinearGaussian, y: Tensor, state: GaussianState, form: str | None, cuts: list[int], given: dict[str, Any]
) -> tuple[list[tuple[Tensor, ...]], GaussianState]:
    pieces = []
    for begin, end in zip([0, *cuts], [*cuts, y.shape[1]]):
        part = {name: None if z is None else z[:, begin:end] for name, z in given.items() if name != "lengths"}
        if "lengths" in given:
            part["lengths"] = (given["lengths"] - begin).clamp(0, end - begin)
        found, following = model[begin:end].filter(y[:, begin:end], state, form=form, **part)
        assert following is not None
        state = following
        pieces.append((found.mean, found.factor, found.log_densities, found.n_observed))
    return pieces, state


def deviations(P: Tensor) -> Tensor:
    """Standard deviations, at least a thousandth of the largest: the definition carries covariances, and loses digits
    of what is known much better than the rest."""
    own = P.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    return own.clamp(min=1e-3 * float(own.max()) if own.numel() else 1.0).clamp(min=1e-12)


def like(draw: Draw, name: str, mean: Tensor, factor: Tensor, want: Tensor, P: Tensor, loose: float) -> None:
    """Means and covariances beside the standard deviations, and beside the numbers themselves in the dtype."""
    scale = deviations(P)
    digits = float((want.abs() / scale).max()) if want.numel() else 1.0
    expect_close(f"{name} means", mean.double() / scale, want / scale, loose, max(1.0, digits))
    got, factor = factor.double() @ factor.double().mT, factor.double()
    expect_close(
        f"{name} covariances",
        got / scale[..., None] / scale[..., None, :],
        P / scale[..., None] / scale[..., None, :],
        loose,
    )
    if bool((factor.triu(1) == 0).all()) and bool((factor.diagonal(dim1=-2, dim2=-1) < 0).any()):
        raise Finding(f"{name}: a factor has a negative diagonal")


def functions(draw: Draw) -> None:
    """Any method on linear functions is Kalman's filter."""
    batch, length = draw.integer(0, 3, "batch"), draw.size(9, "length")
    model = random_model(draw, batch, length, correlated=False)
    fixed = {name: m for name, m in model._given().items() if name not in ("Q", "R", "mean", "covariance")}
    constant = {
        name: m[0, 0] if m.ndim == 4 or (m.ndim == 3 and name in "bd") else m for name, m in fixed.items() if m.numel()
    }
    if len(constant) < len(fixed):
        return
    model = replace(model, **constant)  # type: ignore[arg-type]
    y, given = random_call(draw, model, batch, length)
    A, C, B, E = model.A, model.C, model.B, model.D

    def f(x: Tensor, *u: Tensor) -> Tensor:
        z = A @ x if model.b is None else A @ x + model.b
        return z if B is None else z + B @ u[0]

    def h(x: Tensor, *u: Tensor) -> Tensor:
        z = C @ x if model.d is None else C @ x + model.d
        return z if E is None else z + E @ u[0]

    method = draw.choice(METHODS, "method")
    other = NonlinearGaussian(f, model.Q, h, model.R, mean=model.mean, covariance=model.covariance, method=method)
    state = random_state(draw, model, batch)
    want, final = model.filter(y, state, form="recurrent", **given)
    got, after = other.filter(y, state, **given)
    assert final is not None
    assert after is not None
    # points lie as close to a mean as the deviation: where that goes to zero their differences lose digits
    loose = 1e-6 if draw.notes["rank of Q"] == draw.notes["n"] else 1e-3
    like(draw, "filtered", got.mean, got.factor, want.mean, want.covariance, loose)
    expect_close("log densities", got.log_densities, want.log_densities, 1e-6)
    like(draw, "final", after.mean, after.factor, final.mean, final.factor @ final.factor.mT, loose)
    if draw.notes["rank of Q"] == draw.notes["n"]:
        compare_smoothed(draw, other.smooth(y, state, **given), model.smooth(y, state, form="recurrent", **given), 1e-5)


def gradients(draw: Draw) -> None:
    """Of the log-likelihood by everything that has full rank, and by y."""
    batch, length = draw.integer(1, 2, "batch"), draw.integer(1, 9, "length")
    model = random_model(draw, batch, length, correlated=False)
    x = model._covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0.1)
    model = replace(model, Q=model.Q + 0.1 * torch.diag_embed(x.reshape(-1, x.shape[-1])[0]))
    model = replace(model, covariance=model._covariance + 0.1 * torch.diag_embed(x))
    y, given = random_call(draw, model, batch, length)
    given.pop("lengths", None)
    y = torch.where(y.isfinite(), y, torch.nan)
    if given["u"] is not None:
        given["u"] = given["u"].nan_to_num()
    form = draw.choice([form for form in FORMS if form != "steady"], "form")
    found = []
    for each in ("recurrent", form):
        leaves = {name: m.detach().clone().requires_grad_() for name, m in model._given().items()}
        data = y.clone().requires_grad_()
        value = replace(model, **leaves).filter(data, form=each, **given)[0].log_likelihood.sum()  # type: ignore[arg-type]
        parts = torch.autograd.grad(value, [*leaves.values(), data], allow_unused=True, materialize_grads=True)
        found.append(dict(zip([*leaves, "y"], parts)))
    for name, want in found[0].items():
        got = found[1][name]
        if name in ("Q", "R", "covariance"):
            got, want = got + got.mT, want + want.mT
        expect_close(f"gradient by {name}", got, want, 1e-6)


def wrong(draw: Draw) -> None:
    """One covariance, or one shape, that is none: refused in a line."""
    model = random_model(draw, 2, 4)
    names = [name for name in ("Q", "R", "covariance") if getattr(model, name) is not None]
    name = draw.choice(names, "which")
    P = getattr(model, name)
    size = float(P.diagonal(dim1=-2, dim2=-1).abs().max()) + 1.0
    how = draw.choice(
        ["negative", "asymmetric", "one row less", "one axis more", "NaN", "another dtype", "no tensor"], "how"
    )
    i = draw.integer(0, P.shape[-1] - 1)
    spoilt: Any = P.clone()
    if how == "negative":
        spoilt[..., i, i] = -size
    elif how == "asymmetric":
        if P.shape[-1] < 2:
            return
        spoilt[..., 0, 1] += size
    elif how == "NaN":
        spoilt.reshape(-1)[draw.integer(0, spoilt.numel() - 1)] = torch.nan
    elif how == "one row less":
        spoilt = P[..., 1:, :]
    elif how == "one axis more":
        spoilt = P[None, None, None]
    elif how == "another dtype":
        spoilt = P.to(draw.choice([torch.float32, torch.int64, torch.complex128, torch.bfloat16]))
    else:
        spoilt = draw.choice([P.tolist(), P.numpy(), 1.0])
    expect_refusal(f"{name}, {how}", sw.InputError, lambda: replace(model, **{name: spoilt}))
