"""Kalman: the laws, the equations by a loop, missing inputs, its options, rate and groups of parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws import check_mixer_laws, gradients, prepared, same
from torch import Tensor

import statewise as sw
from statewise.errors import ConfigError, InputError
from statewise.estimation.isotropic import isotropic_reference
from statewise.mixers.kalman import Kalman, KalmanConfig
from statewise.mixers.rate import set_rate
from statewise.models.language_model import LanguageModelConfig
from statewise.operators.masks import NO_MASKS, Masks
from statewise.training.config import OptimizerConfig
from statewise.training.optimizer import parameter_groups

OPTIONS = [
    {},
    {"adaptive": False},
    {"output": "innovation"},
    {"adaptive": False, "output": "innovation", "expand": 1, "d_head": 2, "d_state": 1, "activation": "tanh"},
]


def build(d_model: int = 4, **options: Any) -> Kalman:
    torch.manual_seed(0)
    return KalmanConfig(**{"d_state": 3, "d_head": 4, **options}).build(d_model)


def by_hand(mixer: Kalman, x: Tensor, observed: Tensor, state: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """The layer from its parameters, with the textbook's filter."""
    config, d = mixer.config, mixer.dynamics
    batch, length, _ = x.shape
    heads, n = mixer.n_heads, config.d_state
    v = x @ mixer.in_proj.weight.T + mixer.in_proj.bias
    y = torch.view_as_complex(v[..., : mixer.d_inner].reshape(batch, length, heads, -1, 2).contiguous())
    share = torch.sigmoid(v[..., mixer.d_inner :]) if config.adaptive else torch.ones(batch, length, heads).to(x)
    precision = share.unsqueeze(-1) * d.log_precision.exp() * observed[..., None, None]
    dt = mixer.rate * d.log_dt.exp()
    mean = torch.zeros(batch, heads, n, config.d_head // 2, dtype=torch.complex128)
    information = torch.zeros(batch, heads, n, dtype=torch.float64)
    if state is not None:
        mean, information = torch.view_as_complex(state.mean.contiguous()), state.information
    found = isotropic_reference(y, precision, -d.log_decay.exp() * dt, d.frequency * dt, mean, information)
    told = found.mean
    if config.output == "innovation":
        told = (y.unsqueeze(3) - found.forecast) * observed[..., None, None, None]
    C = torch.view_as_complex(mixer.readout.C)[:, 0].reshape(heads, -1, n)
    out = torch.einsum("hdn,blhnd->blhd", C, told)
    out = out + y * observed[..., None, None] * mixer.readout.D.reshape(heads, -1)
    out = mixer.output.activation(torch.view_as_real(out).flatten(2)) @ mixer.output.linear.weight.T
    return F.glu(out + mixer.output.linear.bias), found.mean[:, -1], found.information[:, -1]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("gaps", [False, True])
def test_equal_to_the_equations(options: dict, gaps: bool) -> None:
    """Outputs, the state and all gradients, from rest and from a state; NaN in x is a step without an observation."""
    mixer = prepared(build(**options))
    x = torch.randn(3, 25, 4, dtype=torch.float64)
    observed = torch.rand(3, 25) > 0.3 if gaps else torch.ones(3, 25, dtype=torch.bool)
    x = x.where(observed[..., None], 0).requires_grad_()
    given = x.where(observed[..., None], torch.nan)
    y, state = mixer(given, mixer.initial_state(3))
    z, last = mixer(given, state)
    expected, *begin = by_hand(mixer, x, observed)
    held = type(state)(torch.view_as_real(begin[0]), begin[1])
    following, mean, information = by_hand(mixer, x, observed, held)
    ours = torch.cat([m.flatten() for m in (y, z, mixer(given)[0], last.mean, last.information)])
    theirs = [expected, following, expected, torch.view_as_real(mean), information]
    theirs = torch.cat([m.flatten() for m in theirs])
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)
    same(gradients(mixer, ours, x), gradients(mixer, theirs, x), 1e-9, "gradients")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("length", [7, 19])
def test_laws(options: dict, length: int) -> None:
    check_mixer_laws(build(**options), length=length)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_model_may_say_what_was_not_observed(options: dict) -> None:
    """``masks.observed`` is NaN in x, whatever stands in x there; in pieces as well."""
    mixer = prepared(build(**options))
    x, observed = torch.randn(2, 30, 4, dtype=torch.float64), torch.rand(2, 30) > 0.4
    expected, _ = mixer(x.where(observed[..., None], torch.nan))
    told, _ = mixer(x, masks=Masks(observed=observed))
    torch.testing.assert_close(told, expected, atol=0, rtol=0)
    state, pieces = mixer.initial_state(2), []
    for t in range(0, 30, 7):
        y, state = mixer(x[:, t : t + 7], state, masks=Masks(observed=observed[:, t : t + 7]))
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), expected)


def test_all_missing_is_the_prior() -> None:
    mixer = prepared(build())
    y, state = mixer(torch.full((2, 9, 4), torch.nan, dtype=torch.float64), mixer.initial_state(2))
    assert bool(y.isfinite().all())
    assert not state.mean.any()
    assert not state.information.any()


def test_it_forgets_while_nothing_is_seen_and_then_trusts_more() -> None:
    """The information falls through a gap, and the next observation has a higher gain."""
    mixer = prepared(build(adaptive=False))
    x = torch.randn(1, 60, 4, dtype=torch.float64)
    _, sure = mixer(x, mixer.initial_state(1))
    _, unsure = mixer(torch.full_like(x[:, :20], torch.nan), sure)
    assert bool((unsure.information < sure.information).all())
    moved = [
        mixer(x[:, :1], state)[1].mean - mixer(torch.full_like(x[:, :1], torch.nan), state)[1].mean
        for state in (sure, unsure._replace(mean=sure.mean))
    ]
    assert bool((moved[1].abs() > moved[0].abs()).all())


def test_without_gaps_gains_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the input has no say in, for all rows together."""
    from statewise.mixers import kalman

    rows = []
    whole = kalman.isotropic_filter

    def watched(y: Tensor, precision: Tensor, *rest: Any) -> Any:
        rows.append(precision.shape[0])
        return whole(y, precision, *rest)

    monkeypatch.setattr(kalman, "isotropic_filter", watched)
    x = torch.randn(5, 12, 4)
    build(adaptive=False)(x)
    build(adaptive=False)(x.index_fill(1, torch.tensor([3]), torch.nan))
    build()(x)
    assert rows == [1, 5, 5]


def test_1000_steps_one_by_one() -> None:
    mixer, x = build(), torch.randn(1, 1000, 4)
    with torch.no_grad():
        state, steps = mixer.initial_state(1), []
        for piece in x.split(1, 1):
            y, state = mixer(piece, state)
            steps.append(y)
        torch.testing.assert_close(torch.cat(steps, 1), mixer(x)[0], atol=1e-5, rtol=1e-4)


def test_the_rate_is_that_of_its_clock() -> None:
    """At half the rate, steps without an observation in between change nothing: both read the same process."""
    mixer = prepared(build(d_model=2, expand=2, adaptive=False))
    x = torch.randn(2, 40, 2, dtype=torch.float64)
    x[:, 1::2] = torch.nan
    expected, state = mixer(x, mixer.initial_state(2))
    set_rate(mixer, 2.0)
    y, last = mixer(x[:, ::2], mixer.initial_state(2))
    torch.testing.assert_close(y, expected[:, ::2])
    set_rate(mixer, 1.0)
    torch.testing.assert_close(tuple(mixer(x[:, 1:2], last)[1]), tuple(state))
    with pytest.raises(InputError, match="rate=0"):
        set_rate(mixer, 0)


def test_groups_of_parameters() -> None:
    model = LanguageModelConfig(vocab_size=5, d_model=8, layers=(KalmanConfig(d_state=2),)).build()
    groups = {
        group.name: {name.removeprefix("layers.0.mixer.") for name, _ in group.parameters}
        for group in parameter_groups(model, OptimizerConfig(dt_lr_ratio=0.5))
    }
    assert groups["dynamics"] == {f"dynamics.{name}" for name in ("log_decay", "frequency", "log_precision")}
    assert groups["dt"] == {"dynamics.log_dt"}
    assert groups["maps"] == {"readout.C", "readout.D", "in_proj.weight", "output.linear.weight"}


def test_initial_values() -> None:
    mixer = build(d_model=64, d_state=4, d_head=8)
    assert mixer.in_proj.weight.shape == (128 + 16, 64)
    d = mixer.dynamics
    torch.testing.assert_close(d.log_decay.exp(), torch.full((16, 4), 0.5))
    torch.testing.assert_close(d.frequency[3], torch.pi * torch.arange(4.0))
    assert bool(((d.log_dt.exp() >= 1e-3) & (d.log_dt.exp() <= 1e-1)).all())
    assert bool(((d.log_precision.exp() >= 0.1) & (d.log_precision.exp() <= 10)).all())
    assert bool((mixer.in_proj.bias[128:] == 2).all())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_reach_every_parameter(options: dict) -> None:
    mixer = build(**options)
    mixer(torch.randn(2, 20, 4))[0].square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, name
        first = name == "dynamics.frequency" and mixer.config.d_state == 1  # a level turns nowhere, and may begin to
        assert parameter.grad.abs().max() > 0 or first, name


def test_narrow_modules_keep_their_filter_wide() -> None:
    mixer, x = build(d_model=8), torch.randn(2, 30, 8)
    expected, exact = mixer(x, mixer.initial_state(2))
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, mixer.initial_state(2))
    assert (y.dtype, state.mean.dtype, state.information.dtype) == (torch.bfloat16, torch.float32, torch.float32)
    assert (y - expected).abs().max() < 0.05 * expected.abs().max()
    mixer = mixer.to(torch.bfloat16)
    assert mixer.dynamics.log_precision.dtype == torch.float32
    y, state = mixer(x.bfloat16(), mixer.initial_state(2, dtype=torch.bfloat16))
    assert (state.mean - exact.mean).abs().max() < 0.05 * exact.mean.abs().max()


def test_in_double_beside_a_state_of_floats() -> None:
    mixer, x = prepared(build()), torch.randn(2, 5, 4, dtype=torch.float64)
    y, state = mixer(x, mixer.initial_state(2, dtype=torch.float32))
    assert (y.dtype, state.mean.dtype) == (torch.float64, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_compiles_to_one_graph(options: dict) -> None:
    mixer, x = build(**options), torch.randn(2, 20, 4)
    torch.testing.assert_close(torch.compile(mixer, fullgraph=True, backend="aot_eager")(x)[0], mixer(x)[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d_head": 6}, ["d_head=6", "expand * d_model = 8"]),
        ({"d_head": 3}, ["d_head=3", "even"]),
        ({"d_state": 0}, ["d_state=0"]),
        ({"expand": 1.5}, ["expand=1.5"]),
        ({"output": "variance"}, ["output='variance'", "mean"]),
        ({"adaptive": 1}, ["adaptive=1"]),
        ({"precision_range": (0.0, 1.0)}, ["precision_range"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        build(**options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_state_of_another_size_is_refused() -> None:
    mixer = build()
    with pytest.raises(InputError, match="KalmanState"):
        mixer(torch.randn(2, 5, 4), (torch.zeros(2),))
    with pytest.raises(InputError, match="information"):
        mixer(torch.randn(2, 5, 4), mixer.initial_state(2)._replace(information=torch.zeros(2, 1, 3)))
    assert NO_MASKS.observed is None


@pytest.mark.parametrize("part", ["mean", "information"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-3])
def test_a_state_that_no_filter_can_be_in_is_refused(part: str, value: float) -> None:
    mixer, x = build(), torch.randn(2, 5, 4)
    _, state = mixer(x, mixer.initial_state(2))
    wrong = state._replace(**{part: getattr(state, part).index_fill(0, torch.tensor(1), value)})
    if part == "mean" and value < 0:
        mixer(x, wrong)
        return
    for piece in (x, x[:, :1]):
        with pytest.raises(InputError, match=r"information is at least 0 and finite; .*initial_state\(batch\)"):
            mixer(piece, wrong)
    starts = torch.zeros(2, 5, dtype=torch.bool)
    starts[1, 0] = True  # the row begins anew, and its state counts for nothing
    torch.testing.assert_close(mixer(x, wrong, starts=starts)[0], mixer(x, state, starts=starts)[0])


def test_a_forecaster_says_where_its_gaps_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step without any value is one without an observation, in every layer, whole or in chunks."""
    layers = (KalmanConfig(d_state=2), sw.MambaConfig(d_state=4), KalmanConfig(d_state=2, output="innovation"))
    model = sw.ForecasterConfig(d_target=2, horizon=3, d_model=8, layers=layers).build().double().eval()
    history = torch.randn(2, 40, 2, dtype=torch.float64).cumsum(1)
    history[0, 11:20] = torch.nan
    history[1, 5:9, 0] = torch.nan  # the other value of these steps is there
    told = []
    whole = Kalman.mix

    def watched(mixer: Kalman, x: Tensor, state: Any, masks: Masks) -> Any:
        told.append(masks.observed)
        return whole(mixer, x, state, masks)

    monkeypatch.setattr(Kalman, "mix", watched)
    expected, _ = model(history)
    observed = torch.ones(2, 40, dtype=torch.bool)
    observed[0, 11:20] = False
    assert len(told) == 2
    assert all(torch.equal(given, observed) for given in told)
    state = model.initial_state(2)
    for piece in history.split(7, 1):
        y, state = model(piece, state)
    torch.testing.assert_close(y, expected)


def test_a_model_of_it_is_saved_and_generates(tmp_path: Path) -> None:
    layers = (KalmanConfig(d_state=2, d_head=4), sw.MambaConfig(d_state=4))
    model = sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=layers).build().eval()
    sw.save(model, tmp_path / "model")
    loaded = sw.load(tmp_path / "model")
    assert loaded.config == model.config
    tokens = torch.randint(0, 11, (2, 9))
    torch.testing.assert_close(loaded(tokens)[0], model(tokens)[0], atol=0, rtol=0)
    greedy = [int(token.ids) for token in sw.generate(loaded, [1, 2, 3], max_new_tokens=5, temperature=0.0)]
    expected = [1, 2, 3]
    with torch.no_grad():
        for _ in range(5):
            expected.append(int(model(torch.tensor([expected]))[0][0, -1].argmax()))
    assert greedy == expected[3:]
    with pytest.raises(InputError, match="Kalman"):
        sw.generate(loaded, [1], max_new_tokens=3, weights="int8")
