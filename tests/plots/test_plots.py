"""Pictures: what they show are the numbers of statewise.insight, they have titles, units and legends, and one style."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import statewise as sw
from statewise.errors import InputError

matplotlib = pytest.importorskip("matplotlib")

from families import MIXERS  # noqa: E402

from statewise import insight, plots  # noqa: E402
from statewise.mixers.attention import Attention  # noqa: E402
from statewise.mixers.channel_mix import ChannelMix  # noqa: E402
from statewise.mixers.cross_attention import MemoryReader  # noqa: E402
from statewise.mixers.gated_convolution import GatedConvolution  # noqa: E402
from statewise.mixers.temporal_convolution import TCN  # noqa: E402
from statewise.plots.states import _numbers, has_state  # noqa: E402
from statewise.plots.style import COLOURS, DASHES, line, visible  # noqa: E402

TOKENS = list("the cat sat")


def windows(state: Any) -> list[torch.Tensor]:
    """What convolutions keep."""
    if isinstance(state, torch.Tensor) or state is None:
        return []
    if hasattr(state, "inputs"):
        return [state.inputs]
    return [found for part in state for found in windows(part)]


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

    def test_no_curve_runs_through_a_legend(self) -> None:
        torch.manual_seed(0)
        figure = plots.frequency_response(sw.H3Config(d_state=16, d_shift=4).build(8))
        figure.draw_without_rendering()
        for axes in figure.axes:
            if axes.get_legend() is not None:
                assert axes.get_legend().get_window_extent().x0 >= axes.get_window_extent().x1 - 1

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

    def test_one_number(self) -> None:
        axes = plots.hippo_memory(torch.sin(torch.arange(120, dtype=torch.float64) / 9), "legs", 1).axes[0]
        assert axes.get_title(loc="left").startswith("legs with 1 number:")
        assert not any("e+" in line_.get_label() for line_ in axes.get_lines())

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

    @pytest.mark.parametrize(
        "config", [sw.S4Config(d_state=4), sw.H3Config(d_state=4), sw.LMUConfig(d_state=4, theta=8.0)]
    )
    @pytest.mark.parametrize("n", [5, 60])
    def test_a_matrix_is_as_long_as_what_is_read(self, config: Any, n: int) -> None:
        model = sw.LanguageModelConfig(vocab_size=9, d_model=4, layers=(config,)).build()
        ids, tokens = torch.arange(n)[None] % 9, [str(i) for i in range(n)]
        figure = plots.semiseparable(model, ids, tokens=tokens)
        assert images(figure)[0].shape == (n, n)
        axes = figure.axes[0]
        if n == 5:
            assert [text.get_text() for text in axes.get_xticklabels()] == tokens
        else:
            assert axes.get_xlabel() == "from step (60 tokens are too many to write)"
        assert ("head 0" if isinstance(config, sw.H3Config) else "channel 0") in figure.get_suptitle()
        assert images(plots.semiseparable(model))[0].shape == (32, 32)
        with pytest.raises(InputError, match=r"there are 5 tokens and 32 steps"):
            plots.semiseparable(model, tokens=tokens[:5])
        with pytest.raises(InputError, match=r"length=9 and the inputs have"):
            plots.semiseparable(model, ids, length=9)
        with pytest.raises(InputError, match=r"2 to 256 steps, got 300"):
            plots.semiseparable(model, torch.zeros(1, 300, dtype=torch.long))

    def test_mamba3_carries_the_input_before_too(self) -> None:
        torch.manual_seed(0)
        mixer = sw.Mamba3Config(d_state=4, d_head=4).build(8).eval()
        x = torch.randn(1, 24, 8)
        form = insight.attention_form(mixer, x)
        ranks = sw.semiseparable.block_ranks(form.matrix, tolerance=1e-5)
        assert int(ranks.max()) == form.d_state + 1 == 5
        figure = plots.semiseparable(mixer, x)
        labels = [line_.get_label() for line_ in figure.axes[1].get_lines()]
        limit = next(line_ for line_ in figure.axes[1].get_lines() if str(line_.get_label()).startswith("numbers"))
        assert float(np.asarray(limit.get_ydata())[0]) == 5
        assert "numbers carried: 4 of the state, and the input before" in labels
        assert "head 0" in figure.get_suptitle()

    def test_texts_that_are_too_long(self, model: sw.LanguageModel) -> None:
        ids = torch.zeros(1, 5400, dtype=torch.long)
        for draw, layer, most in (
            (plots.step_sizes, 2, "1,024"),
            (plots.half_lives, 2, "1,024"),
            (plots.states, 2, "1,024"),
            (plots.hidden_attention, 2, "512"),
            (plots.lookup, 5, "1,024"),
        ):
            with pytest.raises(InputError, match=rf"this picture has room for {most} steps, got 5,400"):
                draw(model, ids, layer=layer)
        figure = plots.step_sizes(model, ids[:, :1000], layer=3, tokens=["x"] * 1000)
        assert figure.get_size_inches()[0] <= 14
        assert figure.axes[1].get_xlabel() == "step (1,000 tokens are too many to write)"

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

    @pytest.mark.parametrize("name", list(MIXERS))
    def test_the_memory_of_each_layer(self, name: str) -> None:
        """Not the window of its convolution, however large that is."""
        mixer = MIXERS[name].build(8).eval()
        if not has_state(mixer):
            grows = not mixer.bounded_state
            assert grows or any(isinstance(part, (Attention, MemoryReader)) for part in mixer.parts())
            return
        at_end = mixer.initial_state(1)
        _, at_end = mixer(torch.randn(1, 3, 8), at_end)
        kept = _numbers(at_end)
        if not isinstance(mixer, (TCN, GatedConvolution, ChannelMix)):  # which have nothing but a window
            assert all(kept is not leaf for leaf in windows(at_end))
        for part in ("ssm", "memory"):
            inner = getattr(at_end, part, kept)
            assert kept is (inner if isinstance(inner, torch.Tensor) else inner[0])
        assert images(plots.states(mixer, torch.randn(1, 3, 8)))

    def test_a_state_without_a_memory(self) -> None:
        with pytest.raises(InputError, match=r"a tuple has no part that is known as a memory"):
            _numbers((torch.ones(1, 2),))

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
