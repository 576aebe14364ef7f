"""Coefficients as free numbers: any values of these make a model, so that an optimiser may go where it likes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statewise.errors import InputError

if TYPE_CHECKING:
    from statewise.estimation.model import LinearGaussian

_OWN_AXES = {"A": 2, "Q": 2, "C": 2, "R": 2, "B": 2, "b": 1, "D": 2, "d": 1, "S": 2, "mean": 1, "covariance": 2}
COVARIANCES = ("Q", "R", "covariance")


def check_learn(model: LinearGaussian, learn: Iterable[str]) -> tuple[str, ...]:
    """Errors:  InputError for a name that is not a coefficient, is not set in the model, or varies with time."""
    names = (learn,) if isinstance(learn, str) else tuple(learn)
    if not names or any(name not in _OWN_AXES for name in names):
        raise InputError(f"learn must name coefficients from {', '.join(_OWN_AXES)}; got {names!r}")
    for name in names:
        value = getattr(model, name)
        if value is None:
            raise InputError(f"learn names {name}, which the model does not have; give it one to begin with")
        if value.ndim != _OWN_AXES[name]:
            raise InputError(f"{name} {tuple(value.shape)} varies with time or between rows; learn needs one for all")
    if "S" in names and not {"Q", "R"} <= set(names):
        raise InputError(
            "S needs Q and R learned with it, or [[Q, S], [S^T, R]] might not be a covariance; name all three"
        )
    if "S" not in names and model.S is not None and {"Q", "R"} & set(names):
        raise InputError(
            "Q or R is learned while S stays fixed, so [[Q, S], [S^T, R]] might not be a covariance; name Q, R and S"
        )
    return tuple(dict.fromkeys(names))


def free(model: LinearGaussian, names: tuple[str, ...]) -> dict[str, Tensor]:
    """The numbers that stand for these coefficients: of a covariance its Cholesky factor, with log on the diagonal."""
    numbers = {}
    for name in names:
        if name == "S" or ("S" in names and name == "R"):
            continue  # within Q's
        value = model._joint() if name == "Q" and "S" in names else getattr(model, name)
        if name in COVARIANCES:
            L, info = torch.linalg.cholesky_ex(value.detach().double())
            if bool(info):
                raise InputError(
                    f"{name} does not have full rank, and the search cannot change that; begin with full rank, or "
                    "give maximise a function that makes the model from its free numbers"
                )
            own = L.diagonal().log() - L.diagonal()
            value = (L + torch.diag(own))[*torch.tril_indices(len(L), len(L))]
        numbers[name] = value.detach().double().clone()
    return numbers


def natural(model: LinearGaussian, names: tuple[str, ...], numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    """The coefficients that the numbers stand for: what :func:`free` undoes."""
    values = {}
    for name, value in numbers.items():
        if name not in COVARIANCES:
            values[name] = value
            continue
        n = model.n_observations if name == "R" else model.n_states
        joint = name == "Q" and "S" in names
        size = n + model.n_observations if joint else n
        L = value.new_zeros(size, size).index_put(tuple(torch.tril_indices(size, size)), value)
        L = L.tril(-1) + torch.diag(L.diagonal().exp())
        P = L @ L.mT
        if joint:
            values["Q"], values["S"], values["R"] = P[:n, :n], P[:n, n:], P[n:, n:]
        else:
            values[name] = P
    return values


def to_double(model: LinearGaussian) -> LinearGaussian:
    return replace(model, **{name: m.double() for name, m in model._given().items()})  # type: ignore[arg-type]


def to_dtype(model: LinearGaussian, dtype: torch.dtype) -> LinearGaussian:
    return replace(model, **{name: m.detach().to(dtype) for name, m in model._given().items()})  # type: ignore[arg-type]
