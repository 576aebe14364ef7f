"""Pictures: what they show are the numbers of statewise.insight, they have titles, units and legends, and one style."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import statewise as sw
from statewise.errors import InputError

matplotlib = pytest.importorskip("matplotlib")

from statewise import insight, plots  # noqa: E402
from statewise.plots.style import COLOURS, DASHES, line, visible  # noqa: E402

TOKENS = list("the cat sat")
IDS = torch.tensor([[ord(letter) for letter in TOKENS]])


@pytest.fixture(scope="module")
def model() -> sw.LanguageModel:
    torch.manual_seed(0)
    layers = (
        sw.AttentionConfig(n_heads=2),
        sw.S4DConfig(d_state=4),
        sw.MambaConfig(d_state=4),
        sw.Mamba2Config(d_state=4, d_head=4),
        sw.Mamba3Config(d_state=4, d_head=4),
        sw.H3Config(d_state=4, d_head=2),
        sw.S5Config(d_state=4),
    )
    return sw.LanguageModelConfig(vocab_size=256, d_model=8, layers=layers).build()


def images(figure: Any) -> list[np.ndarray]:
    return [np.asarray(image.get_array().filled(np.nan)) for axes in figure.axes for image in axes.get_images()]


class TestSystems:
    def test_impulse_responses_are_the_operators(self) -> None:
        mixer = sw.S4DConfig(d_state=4).build(d_model=3)
        figure = plots.impulse_response(mixer, channels=[2], length=20)
        (drawn,) = [one for one in figure.axes[0].get_lines() if one.get_label() == "channel 2"]
        (operator,) = mixer.build_operators()
        np.testing.assert_allclose(drawn.get_ydata(), operator.impulse_response(20)[2, 0].detach(), rtol=1e-5)
        assert figure.axes[0].get_xlabel() == "lag, steps"

    def test_two_systems_are_two_panels(self, model: sw.LanguageModel) -> None:
        titles = [axes.get_title(loc="left") for axes in plots.impulse_response(model, layer=5).axes]
        assert titles == [
            "layer 5, H3, shift SSM: impulse response",
            "layer 5, H3, diagonal SSM: impulse response, lag 0 cut off",  # where its skip is
        ]

    def test_frequency_responses(self) -> None:
        spring = sw.mass_spring_damper(1.0, 4.0, 0.5)
        above, below = plots.frequency_response(spring).axes
        (drawn,) = above.get_lines()
        frequency = torch.tensor(drawn.get_xdata())
        np.testing.assert_allclose(drawn.get_ydata(), spring.frequency_response(2 * torch.pi * frequency).abs())
        assert "cycles per unit of time" in below.get_xlabel()
        assert "degrees" in below.get_ylabel()
        assert len(plots.frequency_response(sw.discretize(spring, 0.1)).axes) == 2

    def test_poles_have_the_unit_circle(self, model: sw.LanguageModel) -> None:
        figure = plots.poles(model, layer=1, channels=[0])
        continuous, discrete = figure.axes
        circle = next(one for one in discrete.get_lines() if one.get_label() == "unit circle")
        np.testing.assert_allclose(np.hypot(*circle.get_data()), 1.0)
        (poles,) = insight.poles(model.blocks[1].mixer)
        drawn = next(one for one in continuous.get_lines() if one.get_label() == "channel 0")
        np.testing.assert_allclose(drawn.get_xdata(), poles.continuous[0].real)
        np.testing.assert_allclose(drawn.get_ydata(), poles.continuous[0].imag)
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert labels == ["channel 0", "where a system grows", "unit circle"]

    @pytest.mark.parametrize(("layer", "n_panels"), [(2, 2), (3, 2), (5, 2), (6, 2)])
    def test_of_other_layers(self, model: sw.LanguageModel, layer: int, n_panels: int) -> None:
        assert len(plots.poles(model, layer=layer).axes) == n_panels

    def test_all_families_are_drawn(self) -> None:
        for config in (
            sw.S4Config(d_state=4),
            sw.LSSLConfig(d_state=4),
            sw.GSSConfig(d_state=4),
            sw.LMUConfig(d_state=4, theta=8.0),
        ):
            mixer = config.build(8)
            for draw in (plots.impulse_response, plots.frequency_response, plots.poles):
                assert draw(mixer).axes

    def test_what_is_refused(self, model: sw.LanguageModel) -> None:
        with pytest.raises(
            InputError, match=r"layer 0 is Attention, which has no poles; layers that have: 1, 2, 3, 5, 6"
        ):
            plots.poles(model, layer=0)
        with pytest.raises(InputError, match=r"no layer of this LanguageModel has poles; its layers are Attention"):
            plots.poles(
                sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(sw.AttentionConfig(n_heads=2),)).build()
            )
        with pytest.raises(InputError, match=r"channels has 7; this layer has channels 0 to 2"):
            plots.poles(sw.S4DConfig(d_state=4).build(3), channels=[7])
        with pytest.raises(InputError, match=r"layer=1 is for a model; a S4D is drawn as it is"):
            plots.poles(sw.S4DConfig(d_state=4).build(3), layer=1)


class TestMemory:
    def test_it_draws_the_reading(self) -> None:
        signal = torch.sin(torch.arange(120, dtype=torch.float64) / 9)
        figure = plots.hippo_memory(signal, "legt", 8, at=(120,))
        found = insight.hippo_memory(signal, "legt", 8, at=(120,))
        _, drawn = figure.axes[0].get_lines()
        np.testing.assert_allclose(drawn.get_ydata(), found.readings[0].values)
        assert "error" in drawn.get_label()
        assert len(figure.axes) == 4

    @pytest.mark.parametrize("measure", sw.hippo.MEASURES)
    def test_every_measure(self, measure: str) -> None:
        assert plots.hippo_memory(torch.randn(60), measure, 4).axes

    def test_all_measures(self) -> None:
        titles = [axes.get_title(loc="left") for axes in plots.hippo_measures().axes]
        assert titles == list(sw.hippo.MEASURES)
        assert len(plots.hippo_measures(["legs"]).axes) == 1
        with pytest.raises(InputError, match=r"there is no measure 'legz'"):
            plots.hippo_measures(["legz"])


class TestSelection:
    @pytest.mark.parametrize("layer", [2, 3, 4])
    def test_maps_are_the_numbers(self, model: sw.LanguageModel, layer: int) -> None:
        mixer, x = insight.layer_input(model, IDS, layer)
        figure = plots.step_sizes(model, IDS, layer=layer, tokens=TOKENS)
        dt = insight.step_sizes(mixer, x)[0]
        np.testing.assert_allclose(figure.axes[0].get_lines()[0].get_ydata(), dt.mean(1), rtol=1e-5)
        np.testing.assert_allclose(np.sort(images(figure)[0].ravel()), np.sort(dt.numpy().ravel()), rtol=1e-5)
        assert [text.get_text() for text in figure.axes[1].get_xticklabels()] == [visible(token) for token in TOKENS]
        assert plots.half_lives(model, IDS, layer=layer).axes[0].get_ylabel() == "median half-life, steps"
        drawn = images(plots.hidden_attention(model, IDS, layer=layer, heads=[1], tokens=TOKENS))[0]
        expected = insight.hidden_attention(mixer, x, [1])[0, 0].numpy()
        np.testing.assert_allclose(np.tril(np.nan_to_num(drawn)), np.tril(expected), rtol=1e-5)
        assert np.isnan(drawn[0, 1])

    def test_heads_by_themselves(self, model: sw.LanguageModel) -> None:
        figure = plots.hidden_attention(model, IDS, layer=3)
        assert len(images(figure)) == 4

    def test_what_is_refused(self, model: sw.LanguageModel) -> None:
        with pytest.raises(InputError, match=r"layer 1 is S4D, which has no selection; layers that have: 2, 3, 4"):
            plots.step_sizes(model, IDS, layer=1)
        with pytest.raises(InputError, match=r"inputs must be a tensor"):
            plots.step_sizes(model, None)  # type: ignore[arg-type]


class TestOthers:
    def test_semiseparable(self, model: sw.LanguageModel) -> None:
        mixer, x = insight.layer_input(model, IDS, 3)
        figure = plots.semiseparable(model, IDS, layer=3, head=1, chunk_length=4, tokens=TOKENS)
        form = insight.attention_form(mixer, x, head=1)
        mask, scores, matrix = images(figure)
        for drawn, expected in ((mask, form.mask), (scores, form.scores), (matrix, form.matrix)):
            np.testing.assert_allclose(np.nan_to_num(drawn), np.tril(expected.numpy()), rtol=1e-5)
        third = next(axes for axes in figure.axes if "with ranks" in axes.get_title(loc="left"))
        assert [int(text.get_text()) for text in third.texts] == [4, 4, 4, 3, 3, 3]
        assert len(images(plots.semiseparable(sw.S4DConfig(d_state=4).build(3)))) == 1
        assert len(images(plots.semiseparable(model, IDS, layer=2))) == 1
        with pytest.raises(InputError, match=r"a picture of a matrix has 2 to 256 steps, got 1"):
            plots.semiseparable(model, IDS[:, :1], layer=3)

    def test_lookup(self, model: sw.LanguageModel) -> None:
        mixer, x = insight.layer_input(model, IDS, 5)
        figure = plots.lookup(model, IDS, heads=[2, 0], tokens=TOKENS)
        K = insight.h3_trace(mixer, x).K[0].unflatten(-1, (4, 2)).norm(dim=-1).mT[[2, 0]]
        np.testing.assert_allclose(images(figure)[0], K / K.amax(1, keepdim=True), rtol=1e-5)
        assert len(images(figure)) == 7
        with pytest.raises(InputError, match=r"heads has 4; this layer has heads 0 to 3"):
            plots.lookup(model, IDS, heads=[4])

    @pytest.mark.parametrize("layer", [1, 2, 3, 4, 5, 6])
    def test_states(self, model: sw.LanguageModel, layer: int) -> None:
        mixer, x = insight.layer_input(model, IDS, layer)
        sizes, _ = images(plots.states(model, IDS, layer=layer, tokens=TOKENS))
        _, end = mixer(x, mixer.initial_state(1))
        ssm = getattr(end, "ssm", end).h[0]
        ssm = ssm[None] if layer == 6 else ssm
        np.testing.assert_allclose(sizes[:, -1], ssm.flatten(1).norm(dim=1).detach(), rtol=1e-4)

    def test_states_that_grow(self, model: sw.LanguageModel) -> None:
        with pytest.raises(InputError, match=r"layer 0 is Attention, which has no state of a constant size"):
            plots.states(model, IDS, layer=0)
        with pytest.raises(InputError, match=r"head=9 is not there"):
            plots.states(model, IDS, layer=1, head=9)


def test_lines_differ_in_colour_and_in_grey() -> None:
    looks = {str(line(number)) for number in range(len(COLOURS) * len(DASHES))}
    assert len(looks) == len(COLOURS) * len(DASHES)
    # the map of colours only gets lighter, so that it reads in grey
    grey = matplotlib.colormaps["cividis"](np.linspace(0, 1, 64))[:, :3] @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(grey) > 0).all()


def test_a_figure_has_our_style_whatever_the_users_is() -> None:
    with matplotlib.rc_context({"axes.grid": False, "axes.spines.top": True}):
        axes = plots.impulse_response(sw.S4DConfig(d_state=4).build(2)).axes[0]
    assert not axes.spines["top"].get_visible()
    assert "pyplot" not in vars(plots)


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r'plots need matplotlib.*pip install "statewise\[plot\]"'):
        plots.poles(sw.mass_spring_damper(1.0, 4.0, 0.5))


@pytest.mark.cuda
def test_a_model_on_a_gpu(model: sw.LanguageModel) -> None:
    there = model.config.build().cuda()
    for draw in (plots.step_sizes, plots.hidden_attention, plots.semiseparable, plots.states):
        assert draw(there, IDS.cuda(), layer=3).axes
    assert plots.poles(there, layer=1).axes
