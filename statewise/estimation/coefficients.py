"""The coefficients of a model: what shapes they have, and what makes a covariance one."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.factors import values

FLOATS = (torch.float32, torch.float64)


def check_tensors(reader: str, given: dict[str, Tensor]) -> None:
    """Errors:  InputError unless all are real tensors of one dtype, float32 or float64, on one device, and finite."""
    first = next(iter(given.values()))
    for name, value in given.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{reader} needs {name} as a tensor, got {type(value).__name__}; use torch.as_tensor")
        if value.is_meta:
            raise InputError(f"{reader} needs {name} as a tensor with values; a tensor on meta has none")
        if value.dtype not in FLOATS or value.layout != torch.strided:
            raise InputError(f"{reader} needs {name} in float32 or float64, got {value.dtype} {tuple(value.shape)}")
        if value.dtype != first.dtype or value.device != first.device:
            raise InputError(
                f"{reader} needs all coefficients in one dtype on one device; {name} is {value.dtype} on "
                f"{value.device}, others are {first.dtype} on {first.device}"
            )
        if not bool(values(value).isfinite().all()):
            raise InputError(f"{reader}: {name} holds NaN or infinity")


def check_shape(reader: str, name: str, value: Tensor, own: tuple[int, ...], *, varies: bool = True) -> None:
    """Whether a coefficient is ``own``, or has the axes (batch, length) before it, or (batch,) if it never varies."""
    axes = "(batch, length, " if varies else "(batch, "
    lead = value.ndim - len(own)
    if lead not in (0, 2 if varies else 1) or tuple(value.shape[lead:]) != own:
        sizes = ", ".join(map(str, own))
        comma = "," if len(own) == 1 else ""
        raise InputError(f"{reader} needs {name} of shape ({sizes}{comma}) or {axes}{sizes}), got {tuple(value.shape)}")


def check_covariance(reader: str, name: str, P: Tensor) -> None:
    """Errors:  InputError unless P (..., n, n) is symmetric and positive semi-definite, but for rounding.

    Both are judged beside the standard deviations, so that units do not matter.
    """
    P = values(P).double()
    own = P.diagonal(dim1=-2, dim2=-1)
    tolerance = P.shape[-1] * 1e-5  # covariances come from files with six digits as well
    if bool((own < 0).any()):
        raise InputError(f"{reader} needs {name} positive semi-definite; it has a variance of {float(own.min()):.4g}")
    scale = torch.where(own > 0, own, 1).sqrt()
    scaled = P / (scale.unsqueeze(-1) * scale.unsqueeze(-2))
    asymmetry = (scaled - scaled.mT).abs()
    if bool((asymmetry > tolerance).any()):
        i, j = divmod(int(asymmetry.flatten(0, -3).amax(0).argmax() if P.ndim > 2 else asymmetry.argmax()), P.shape[-1])
        entries = P.reshape(-1, *P.shape[-2:])[int(asymmetry.reshape(-1, *P.shape[-2:])[:, i, j].argmax())]
        raise InputError(
            f"{reader} needs {name} symmetric; {name}[{i}, {j}] = {float(entries[i, j]):.6g}, "
            f"{name}[{j}, {i}] = {float(entries[j, i]):.6g}"
        )
    _, info = torch.linalg.cholesky_ex(scaled)
    if bool((info != 0).any()):
        lowest = float(torch.linalg.eigvalsh((scaled + scaled.mT) / 2).min())
        if lowest < -tolerance:
            raise InputError(
                f"{reader} needs {name} positive semi-definite; its correlations have an eigenvalue of {lowest:.4g}"
            )


def check_axes(reader: str, coefficients: dict[str, tuple[Tensor, int]], batch: int, length: int) -> None:
    """Whether the axes (batch, length) of coefficients, each with its own number of axes, fit the observations'."""
    for name, (value, own) in coefficients.items():
        if value.ndim == own + 2 and (value.shape[0] not in (1, batch) or value.shape[1] not in (1, length)):
            raise InputError(
                f"{reader}: {name} is {tuple(value.shape)}, for {value.shape[0]} rows and {value.shape[1]} steps; "
                f"y has {batch} and {length}"
            )


def with_axes(value: Tensor, own: int) -> Tensor:
    """With the axes (batch, length), 1 where it has none."""
    return value if value.ndim == own + 2 else value[None, None]
