"""Forecasts beyond the end, of any number of steps, in batches; and how a direct forecaster continues.

A :class:`~statewise.models.structural.StructuralForecaster` forecasts any number of steps from its state-space model.
A :class:`~statewise.models.forecaster.Forecaster` gives the steps of its horizon at once, each by its quantiles. To
continue, it reads its own forecast as if it had been seen. But a forecast is not one future, it is many. So the model
follows ``paths`` possible futures: path i is at the quantile u_i of all steps of a block, the u_i spread evenly over
(0, 1), and shuffled again for each block. From each path it forecasts the next block. You get the quantiles of all
paths together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from statewise.data.progress import Progress
from statewise.data.series_ahead import Past
from statewise.errors import InputError, require_least
from statewise.kernels.exact import of_parameters
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.forecaster import Forecaster
from statewise.models.structural import StructuralForecaster

LEVELS = 20  # at which each path's next step is read when paths are pooled

AnyForecaster = Forecaster | StructuralForecaster


def forecast_batches(
    model: AnyForecaster,
    pasts: Sequence[Past],
    steps: int,
    *,
    batch_size: int = 64,
    paths: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Iterator[tuple[range, np.ndarray]]:
    """The numbers of some series, and their forecasts (n, steps, d_target, n_quantiles) float64.

    Cost:    of the model over each history; beyond its horizon, of a direct forecaster ``paths`` times that for each
             block of a horizon.
    Errors:  InputError for options out of range, more steps than the horizon of a model with covariates of the past,
             and forecasts that are not finite.
    """
    require_least(InputError, steps=(steps, 1), batch_size=(batch_size, 1), paths=(paths, 2))
    config = model.config
    if steps > config.horizon and config.d_past_covariates:
        raise InputError(
            f"steps={steps} is beyond the horizon, {config.horizon}, but the model reads covariates of the past, which "
            f"are unknown there; ask for at most {config.horizon}"
        )
    for begin in range(0, len(pasts), batch_size):
        numbers = range(begin, min(begin + batch_size, len(pasts)))
        generators = [np.random.default_rng([seed, i]) for i in numbers]  # whatever the batches are
        with evaluation_mode(model):
            found = _ahead(model, [pasts[i] for i in numbers], steps, paths, generators)
        finite = np.isfinite(found).all((1, 2, 3))
        if not finite.all():
            name = pasts[begin + int((~finite).argmax())].name
            raise InputError(
                f"the forecast of series {name!r} is not finite: its values lie far from those of the training, or "
                "the model's parameters hold NaN or infinity"
            )
        yield numbers, found
        if progress is not None:
            progress(numbers.stop, len(pasts))


def _ahead(
    model: AnyForecaster, pasts: list[Past], steps: int, paths: int, generators: list[np.random.Generator]
) -> np.ndarray:
    if isinstance(model, StructuralForecaster):
        return _call(model, pasts, steps)
    horizon = model.config.horizon
    found = [_call(model, pasts, min(steps, horizon))]
    if steps > horizon:
        found += _blocks(model, pasts, found[0], steps, paths, generators)
    return np.concatenate(found, 1)


def _call(model: AnyForecaster, pasts: Sequence[Past], steps: int) -> np.ndarray:
    """(n, steps, d_target, n_quantiles) from the histories."""
    parameter = next(model.parameters())
    lengths = [len(past.values) for past in pasts]
    longest = max(lengths)

    def stacked(rows: list[np.ndarray], length: int, fill: float) -> Tensor:
        padded = np.full((len(rows), length, rows[0].shape[1]), fill)
        for place, row in zip(padded, rows):
            place[: len(row)] = row
        return torch.from_numpy(padded).to(parameter.device)  # in float64: the model scales it first

    n_ahead = steps if isinstance(model, StructuralForecaster) else model.config.horizon
    more = {"steps": steps} if isinstance(model, StructuralForecaster) else {}
    with torch.no_grad():
        found, _ = model(
            stacked([past.values for past in pasts], longest, np.nan),
            covariates=stacked([past.covariates for past in pasts], longest, 0.0),
            # each step has covariates of its own, so those beyond the last that is asked for may be anything
            future_covariates=stacked([past.covariates_ahead[:steps] for past in pasts], n_ahead, 0.0),
            lengths=None if min(lengths) == longest else torch.tensor(lengths, device=parameter.device),
            **more,
        )
    return found[:, :steps].double().cpu().numpy()


def _blocks(
    model: Forecaster,
    pasts: list[Past],
    first: np.ndarray,
    steps: int,
    paths: int,
    generators: list[np.random.Generator],
) -> list[np.ndarray]:
    """The forecasts of the blocks after the first, the last one cut."""
    horizon, n = model.config.horizon, len(pasts)
    quantiles = (0.5,) if model.config.quantiles is None else model.config.quantiles
    if len(quantiles) == 1:
        paths = 1  # nothing says how far the others lie
    even = _normal((np.arange(paths) + 0.5) / paths)
    following = [past for past in pasts for _ in range(paths)]
    conditional, found = np.repeat(first, paths, 0), []
    for begin in range(horizon, steps, horizon):
        each = np.tile(even[:, None], model.config.d_target)
        level = np.concatenate([generator.permuted(each, axis=0) for generator in generators])
        taken = at_level(conditional, quantiles, level[:, None])  # one level for all steps of a path's target
        following = [_longer(past, values) for past, values in zip(following, taken)]
        length = min(horizon, steps - begin)
        own = [_call(model, following[i * paths : (i + 1) * paths], length) for i in range(n)]
        conditional = np.concatenate(own)
        found.append(np.stack([pooled(one, quantiles) if paths > 1 else one[0] for one in own]))
    return found


def _longer(past: Past, values: np.ndarray) -> Past:
    """As if these values had been seen: a history as long as before, which ends with them."""
    k, n = len(values), len(past.values)
    return past._replace(
        values=np.concatenate([past.values, values])[-n:],
        covariates=np.concatenate([past.covariates, past.covariates_ahead[:k]])[-n:],
        covariates_ahead=past.covariates_ahead[k:],
    )


def at_level(forecasts: np.ndarray, quantiles: Sequence[float], z: np.ndarray) -> np.ndarray:
    """The value at a normal score: on straight lines between the quantiles, the outer ones drawn out, as of a normal
    distribution beyond them.

    Shapes:  forecasts: (..., n_quantiles)   z: broadcast against (...)   ->   (...)

    >>> at_level(np.array([-1.2815515655, 0.0, 1.2815515655]), (0.1, 0.5, 0.9), np.array(2.0)).round(6).item()
    2.0
    """
    if len(quantiles) == 1:
        return np.broadcast_to(forecasts[..., 0], np.broadcast_shapes(forecasts.shape[:-1], z.shape))
    knots = _normal(np.array(quantiles))
    z = np.broadcast_to(z, np.broadcast_shapes(forecasts.shape[:-1], z.shape))
    segment = np.clip(np.searchsorted(knots, z) - 1, 0, len(knots) - 2)
    whole = np.broadcast_to(forecasts, (*z.shape, len(quantiles)))
    low = np.take_along_axis(whole, segment[..., None], -1)[..., 0]
    high = np.take_along_axis(whole, segment[..., None] + 1, -1)[..., 0]
    share = (z - knots[segment]) / (knots[segment + 1] - knots[segment])
    found: np.ndarray = low + share * (high - low)
    return found


def pooled(forecasts: np.ndarray, quantiles: Sequence[float]) -> np.ndarray:
    """The quantiles of a mixture: (paths, steps, d_target, n_quantiles) -> (steps, d_target, n_quantiles)."""
    z = _normal((np.arange(LEVELS) + 0.5) / LEVELS).reshape(-1, 1, 1, 1)
    values = at_level(forecasts[None], quantiles, z).reshape(-1, *forecasts.shape[1:3])
    return np.moveaxis(np.quantile(values, quantiles, axis=0), 0, -1)


def _normal(probabilities: np.ndarray) -> np.ndarray:
    """The quantiles of a standard normal distribution."""
    with of_parameters():  # of numbers that no series has a part in
        return torch.special.ndtri(torch.from_numpy(np.asarray(probabilities, np.float64))).numpy()
