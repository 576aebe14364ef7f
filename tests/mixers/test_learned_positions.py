"""Learned positions of a language model: one vector for each place in a document, however the calls are cut."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from training_runs import small_model, small_run

import statewise as sw
from statewise.checkpoints.files import load, save
from statewise.configuration import to_dict
from statewise.errors import ConfigError, InputError
from statewise.evaluate import evaluate_tokens
from statewise.mixers.base import MixerConfig
from statewise.mixers.linear_attention import LinearAttentionConfig
from statewise.mixers.s4d import S4DConfig
from statewise.models.registry import model_from_dict, model_to_dict
from statewise.training import train_run
from statewise.training.config import OptimizerConfig
from statewise.training.optimizer import parameter_groups

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")

MIXERS = {
    "s4d": S4DConfig(d_state=4, initialization="inv", n_systems=1, B="normal"),
    "attention": sw.AttentionConfig(n_heads=2, positions=None),
    "linear attention": LinearAttentionConfig(n_heads=2),
}


def build(mixer: str | MixerConfig = "attention", max_positions: int | None = 12) -> sw.LanguageModel:
    torch.manual_seed(0)
    layer = MIXERS[mixer] if isinstance(mixer, str) else mixer
    layers = (sw.BlockConfig(mixer=layer, mlp=sw.MLPConfig(), norm="layer"),)
    model = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=layers, max_positions=max_positions).build().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(0, 9, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MIXERS)
def test_they_are_a_sum(name: str) -> None:
    """The model with a table reads E[token] + P[position]; a table of zeros is none at all."""
    model, plain = build(name), build(name, None)
    x = tokens(2, 12)
    assert model.positions is not None
    seen: list[Tensor] = []
    model.layers[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    y, _ = model(x)
    torch.testing.assert_close(seen[0], model.embedding.weight[x] + model.positions.weight)
    assert plain.positions is None
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k != "positions.weight"})
    assert not torch.allclose(y, plain(x)[0])
    with torch.no_grad():
        model.positions.weight.zero_()
    torch.testing.assert_close(model(x)[0], plain(x)[0])


@pytest.mark.parametrize("positions", [12, None])
@pytest.mark.parametrize("name", MIXERS)
def test_cuts_padding_and_packing(name: str, positions: int | None) -> None:
    """A state goes on counting, a start counts anew, and what lies behind a row's end counts nothing; gradients too."""
    model, x = build(name, positions), tokens(3, 20)
    parameters = list(model.parameters())

    def check(actual: list[Tensor], expected: list[Tensor]) -> None:
        torch.testing.assert_close(torch.cat(actual, 1), torch.cat(expected, 1))
        ours, theirs = (
            torch.autograd.grad(torch.cat(m, 1).square().sum(), parameters, retain_graph=True)
            for m in (actual, expected)
        )
        torch.testing.assert_close(ours, theirs)

    for cut in range(13):  # cuts
        first, state = model(x[:, :cut], model.initial_state(3))
        check([first, model(x[:, cut:12], state)[0]], [model(x[:, :12])[0]])

    counts, starts = [20, 9, 0], torch.zeros(3, 20, dtype=torch.bool)
    begins = ([0, 9], [3, 4], [])
    for row, times in enumerate(begins):
        starts[row, times] = True
    starts[1, 15] = True  # in the padding, where it says nothing
    alone, state = [], model.initial_state(3)
    for row, (count, times) in enumerate(zip(counts, begins)):
        edges = sorted({0, count, *times})
        for t0, t1 in itertools.pairwise(edges):
            alone.append(model(x[row : row + 1, t0:t1])[0])
    y, after = model(x, state, lengths=torch.tensor(counts), starts=starts)
    check([y[row : row + 1, :count] for row, count in enumerate(counts)], alone)
    without, _ = model(x, lengths=torch.tensor(counts), starts=starts)
    check([without[row : row + 1, :count] for row, count in enumerate(counts)], alone)
    assert after.position.tolist() == [11, 5, 0]
    check([model(x[1:2, :7], row_of(after, 1))[0]], [model(torch.cat([x[1:2, 4:9], x[1:2, :7]], 1))[0][:, 5:]])


def row_of(state: sw.LanguageModelState, row: int) -> sw.LanguageModelState:
    return torch.utils._pytree.tree_map(lambda leaf: leaf[row : row + 1], state)


def test_they_end() -> None:
    model, x = build(max_positions=6), tokens(2, 9)
    with pytest.raises(InputError, match="row 0 reaches position 8, but max_positions=6 gives positions 0 to 5;"):
        model(x)
    lengths, starts = torch.tensor([6, 9]), torch.zeros(2, 9, dtype=torch.bool)
    with pytest.raises(InputError, match="row 1 reaches position 8"):
        model(x, lengths=lengths)
    starts[1, 4] = True
    assert model(x, lengths=lengths, starts=starts)[0].shape == (2, 9, 9)
    _, state = model(x[:, :6], model.initial_state(2))
    with pytest.raises(InputError, match="row 0 reaches position 6"):
        model(x[:, :1], state)
    model(x[:, :1], state, starts=torch.ones(2, 1, dtype=torch.bool))
    model(x[:, :0], state)
    with pytest.raises(InputError, match="max_positions=6"):
        list(sw.generate(model, [1, 2, 3], max_new_tokens=5))
    assert len(list(sw.generate(model, [1, 2, 3], max_new_tokens=4))) == 4  # the last is not read


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "8"])
def test_a_table_of_no_size_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=f"max_positions={value!r}"):
        build(max_positions=value)  # type: ignore[arg-type]


def test_one_by_one_and_generated() -> None:
    model, x = build("s4d"), tokens(2, 12)
    whole, _ = model(x)
    frozen = model.freeze()
    state, steps = frozen.initial_state(2), []
    for piece in x.split(1, 1):
        y, state = frozen(piece, state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, 1), whole)


def test_they_do_not_decay() -> None:
    """As the embedding: a row that a batch of short documents does not reach has no gradient that would hold it."""
    groups = {g.name: g for g in parameter_groups(build(), OptimizerConfig(weight_decay=0.3))}
    assert {name for name, _ in groups["embeddings"].parameters} == {"embedding.weight", "positions.weight"}
    assert groups["embeddings"].weight_decay == 0.0


def test_their_scale_is_the_embeddings() -> None:
    torch.manual_seed(0)
    layers = (MIXERS["s4d"],)
    model = sw.LanguageModelConfig(vocab_size=9, d_model=64, layers=layers, max_positions=99, embedding_std=0.5).build()
    assert model.positions is not None
    assert 0.47 < model.positions.weight.std() < 0.53


def test_configs_and_checkpoints_of_before_have_none(tmp_path: Path) -> None:
    model = build()
    data = model_to_dict(model.config)
    assert data["max_positions"] == 12
    assert model_from_dict(data) == model.config
    del data["max_positions"]
    assert model_from_dict(data) == build(max_positions=None).config
    assert to_dict(model_from_dict(data))["max_positions"] is None
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    torch.testing.assert_close(again(tokens(1, 5))[0], model(tokens(1, 5))[0])


def test_they_are_evaluated_in_windows_and_trained(tmp_path: Path) -> None:
    """Layers of bounded state too: the positions end, so a text is not read on for ever."""
    model = build("linear attention").float()
    shapes: list[tuple[int, ...]] = []
    model.layers[0].register_forward_pre_hook(lambda module, inputs: shapes.append(tuple(inputs[0].shape[:2])))
    evaluate_tokens(model, [1] * 24, n_bytes=1)
    assert set(shapes) == {(1, 12)}
    config = small_model(layers=(MIXERS["linear attention"],), max_positions=16)
    result = train_run(small_run(tmp_path, model=config, steps=2), tmp_path / "run")
    assert result.validation is not None


@pytest.mark.parametrize("packed", [False, True])
def test_vmap_over_models(packed: bool) -> None:
    """vmap over models: each its own table; a document too long is still seen."""
    models = [build(), build()]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.mul_(1.3)
    named = [dict(model.named_parameters()) for model in models]
    stacked = {name: torch.stack([parameters[name] for parameters in named]) for name in named[0]}
    starts = torch.zeros(2, 2, 20, dtype=torch.bool)
    starts[:, :, 9] = True
    x = torch.stack([tokens(2, 20), tokens(4, 20)[2:]])
    if not packed:
        x, starts = x[:, :, :12], None

    def run(parameters: dict[str, Tensor], x: Tensor, starts: Tensor | None = None) -> Tensor:
        return functional_call(models[0], parameters, (x,), {"starts": starts})[0]

    given = (stacked, x) if starts is None else (stacked, x, starts)
    actual = vmap(run)(*given)
    for i, model in enumerate(models):
        torch.testing.assert_close(actual[i], model(x[i], starts=None if starts is None else starts[i])[0])
    if starts is not None:
        with pytest.raises(InputError, match="position 19"):
            vmap(run)(stacked, x, torch.zeros_like(starts))


def test_a_position_below_0_is_refused() -> None:
    """Of a state that was tampered with: PyTorch's own IndexError before."""
    model = build()
    state = model.initial_state(2)
    with pytest.raises(InputError, match="damaged: a row is at position -3"):
        model(tokens(2, 3), state._replace(position=state.position - 3))
    mixer = sw.AttentionConfig(n_heads=2, positions="learned", max_positions=8).build(8)
    history = mixer.initial_state(2)
    with pytest.raises(InputError, match="damaged: a row is at position -1"):
        mixer(torch.randn(2, 1, 8), history._replace(position=history.position - 1))
