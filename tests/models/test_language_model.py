"""The language model: any tuple of layers, one call for everything, initialisation, checkpointing of blocks."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import statewise as sw
from statewise.errors import ConfigError, InputError
from statewise.models.block import Block, as_block

MAMBA = sw.Mamba2Config(d_state=8, d_head=8, chunk_length=8)
WINDOWED = sw.AttentionConfig(n_heads=4, n_kv_heads=2, window=6)
GATED = sw.MLPConfig(expand=2, activation="silu", gated=True, bias=False, multiple_of=16)


def hybrid(dtype: torch.dtype = torch.float64, **options: object) -> sw.LanguageModel:
    torch.manual_seed(0)
    layers = (MAMBA, sw.BlockConfig(mixer=WINDOWED, mlp=GATED, norm="layer"), MAMBA)
    model = sw.LanguageModelConfig(vocab_size=50, d_model=32, layers=layers, **options).build().to(dtype)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def tokens(batch: int, length: int) -> Tensor:
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(1))


def test_train_prefill_resume_and_decode_are_one_call() -> None:
    model, x = hybrid(), tokens(2, 33)
    whole, none = model(x)
    assert none is None
    state, parts = model.initial_state(2), []
    for piece in x.split([14, 1, 8, 1, 1, 8], 1):
        logits, state = model(piece, state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert state is not None
    assert state.position.tolist() == [33, 33]


def test_ragged_batch_equals_single_runs() -> None:
    model, x = hybrid(), tokens(3, 20)
    lengths = torch.tensor([20, 7, 0])
    padded = x.masked_fill(torch.arange(20) >= lengths[:, None], 10**9)  # no such id, and never looked at
    logits, state = model(padded, model.initial_state(3), lengths=lengths)
    following = tokens(3, 5)
    continued, _ = model(following, state)
    for row, n in enumerate(lengths.tolist()):
        single, after = model(x[row : row + 1, :n], model.initial_state(1))
        torch.testing.assert_close(logits[row : row + 1, :n], single)
        assert state.position[row] == n
        torch.testing.assert_close(continued[row : row + 1], model(following[row : row + 1], after)[0])


def test_packed_documents_equal_single_runs() -> None:
    model, x = hybrid(), tokens(2, 24)
    starts = torch.zeros(2, 24, dtype=torch.bool)
    starts[0, [0, 9, 10]] = True
    starts[1, 5] = True
    logits, state = model(x, model.initial_state(2), starts=starts)
    for row, edges in ((0, [0, 9, 10, 24]), (1, [0, 5, 24])):
        for t0, t1 in pairwise(edges):
            torch.testing.assert_close(logits[row : row + 1, t0:t1], model(x[row : row + 1, t0:t1])[0])
    assert state.position.tolist() == [14, 19]
    lengths = torch.tensor([12, 4])
    _, state = model(x, model.initial_state(2), starts=starts, lengths=lengths)
    assert state.position.tolist() == [2, 4]


def test_a_start_on_the_first_padded_step_does_not_count() -> None:
    model, x = hybrid(), tokens(2, 8)
    starts = torch.zeros(2, 8, dtype=torch.bool)
    starts[0, 5] = True  # just beyond the row
    starts[1, 4] = True  # on its last token
    _, state = model(x, model.initial_state(2), starts=starts, lengths=torch.tensor([5, 5]))
    assert state.position.tolist() == [5, 1]


def test_empty_input_leaves_the_state() -> None:
    model = hybrid()
    _, state = model(tokens(1, 9), model.initial_state(1))
    logits, same = model(tokens(1, 0), state)
    assert logits.shape == (1, 0, 50)
    following = tokens(1, 4)
    torch.testing.assert_close(model(following, same)[0], model(following, state)[0])
    assert same.position.tolist() == [9]


def test_state_is_a_pytree_of_real_tensors() -> None:
    model = hybrid()
    _, state = model(tokens(2, 9), model.initial_state(2))
    leaves = pytree.tree_leaves(state)
    assert all(isinstance(leaf, Tensor) and not leaf.is_complex() and leaf.shape[0] == 2 for leaf in leaves)
    clone = pytree.tree_map(torch.clone, state)
    assert type(clone) is type(state)
    following = tokens(2, 3)
    torch.testing.assert_close(model(following, clone)[0], model(following, state)[0])


def test_checkpointed_blocks_give_the_same_gradients() -> None:
    model, x = hybrid(embedding_dropout=0.1), tokens(2, 30)
    other = copy.deepcopy(model)
    other.gradient_checkpointing = True
    gradients = []
    for one in (model, other):
        torch.manual_seed(3)  # the dropout masks are drawn again in the recomputation
        logits, state = one(x, one.initial_state(2))
        (logits.square().mean() + state.layers[0].ssm.h.square().mean()).backward()
        gradients.append([parameter.grad for parameter in one.parameters()])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_heads(tied: bool) -> None:
    model = hybrid(tie_embeddings=tied)
    assert (model.head.weight is model.embedding.weight) is tied
    moved = copy.deepcopy(model)
    assert (moved.head.weight is moved.embedding.weight) is tied


def test_features_then_head_is_forward() -> None:
    model, x = hybrid(), tokens(1, 12)
    h, _ = model.features(x)
    torch.testing.assert_close(model.head(h[:, -1:]), model(x)[0][:, -1:])


def test_initialisation_scales_the_residual_branches_once() -> None:
    def spread(n_layers: int, mlp: sw.MLPConfig | None) -> list[float]:
        torch.manual_seed(0)
        block = sw.BlockConfig(mixer=sw.Mamba2Config(d_state=8, d_head=16), mlp=mlp)
        model = sw.LanguageModelConfig(vocab_size=300, d_model=128, layers=(block,) * n_layers).build()
        assert 0.019 < float(model.embedding.weight.detach().std()) < 0.021
        stds = [float(layer.mixer.out_proj.weight.detach().std()) for layer in model.blocks]
        if mlp is not None:
            stds += [float(layer.mlp.out_proj.weight.detach().std()) for layer in model.blocks if layer.mlp]
        return stds

    (one,) = spread(1, None)
    assert all(std == pytest.approx(one / 2, rel=0.03) for std in spread(4, None))
    with_mlp = spread(2, sw.MLPConfig(expand=2))
    assert all(std == pytest.approx(one / 2, rel=0.03) for std in with_mlp[:2])
    assert all(std == pytest.approx(0.02 / 2, rel=0.03) for std in with_mlp[2:])


def test_reset_parameters_is_the_seed_alone() -> None:
    def draw() -> list[Tensor]:
        torch.manual_seed(5)
        return list(sw.LanguageModelConfig(vocab_size=9, d_model=16, layers=(MAMBA,)).build().parameters())

    assert all(torch.equal(a, b) for a, b in zip(draw(), draw(), strict=True))


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_mlp_is_its_formula(gated: bool, activation: str) -> None:
    torch.manual_seed(0)
    mlp = sw.MLPConfig(expand=1.5, activation=activation, gated=gated, multiple_of=8).build(16)
    assert mlp.out_proj.weight.shape == (16, 24)
    x = torch.randn(2, 3, 16)
    f = {
        "gelu": torch.nn.GELU(),
        "gelu_tanh": torch.nn.GELU("tanh"),
        "relu": torch.nn.ReLU(),
        "silu": torch.nn.SiLU(),
    }[activation]
    weight, bias = mlp.in_proj.weight, mlp.in_proj.bias
    hidden = f(x @ weight[:24].T + bias[:24])
    if gated:
        hidden = hidden * (x @ weight[24:].T + bias[24:])
    torch.testing.assert_close(mlp(x), hidden @ mlp.out_proj.weight.T + mlp.out_proj.bias)


def test_dropout_only_in_training() -> None:
    block = Block(32, sw.BlockConfig(mixer=MAMBA, dropout=0.5))
    x = torch.randn(1, 5, 32)
    assert not torch.equal(block(x)[0], block(x)[0])
    block.eval()
    assert torch.equal(block(x)[0], block(x)[0])


def test_dropout_is_on_the_branch_of_the_mlp_too() -> None:
    torch.manual_seed(0)
    block = Block(32, sw.BlockConfig(mixer=MAMBA, mlp=GATED, dropout=0.5))
    block.reset_parameters()
    block.mixer.reset_parameters(0.0)  # the mixer's branch is zero, what is left is the MLP's
    x = torch.randn(1, 40, 32)
    dropped, branch = block(x)[0] - x, block.mlp(block.mlp_norm(x))
    kept = dropped != 0
    assert 0.4 < kept.float().mean() < 0.6
    torch.testing.assert_close(dropped, torch.where(kept, 2 * branch, 0))


def test_embedding_dropout() -> None:
    model, x = hybrid(embedding_dropout=0.25), tokens(2, 30)
    seen: list[Tensor] = []
    model.blocks[0].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    model(x)
    model.eval()
    model(x)
    embedded = model.embedding(x)
    kept = seen[0] != 0
    assert 0.7 < kept.double().mean() < 0.8
    torch.testing.assert_close(seen[0], torch.where(kept, embedded / 0.75, 0))
    torch.testing.assert_close(seen[1], embedded)


@pytest.mark.parametrize(("multiple_of", "d_hidden"), [(1, 30), (16, 32), (7, 35), (10, 30)])
def test_the_hidden_width_is_rounded_up(multiple_of: int, d_hidden: int) -> None:
    plain = sw.MLPConfig(expand=1.5, multiple_of=multiple_of).build(20)
    gated = sw.MLPConfig(expand=1.5, multiple_of=multiple_of, gated=True).build(20)
    assert plain.in_proj.weight.shape == (d_hidden, 20)
    assert gated.in_proj.weight.shape == (2 * d_hidden, 20)
    assert plain.out_proj.weight.shape == gated.out_proj.weight.shape == (20, d_hidden)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_models_pickle(activation: str) -> None:
    block = sw.BlockConfig(mixer=MAMBA, mlp=sw.MLPConfig(expand=1, activation=activation))
    model = sw.LanguageModelConfig(vocab_size=50, d_model=16, layers=(block,)).build()
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(tokens(1, 5))[0], model(tokens(1, 5))[0])


def test_bare_mixer_config_is_a_block_without_an_mlp() -> None:
    assert as_block(MAMBA) == sw.BlockConfig(mixer=MAMBA)
    assert as_block(sw.BlockConfig(mixer=MAMBA)).n_branches == 1
    assert sw.BlockConfig(mixer=MAMBA, mlp=GATED).n_branches == 2


def test_compiled_model_agrees() -> None:
    model, x = hybrid(torch.float32), tokens(2, 20)
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: model(t)[0], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m(torch.zeros(2, 3)), ["integers", "float32"]),
        (lambda m: m(torch.zeros(3, dtype=torch.int64)), ["(batch, length)", "(3,)"]),
        (lambda m: m(tokens(2, 3), m.initial_state(3)), ["state.position", "(2,)", "(3,)"]),
        (lambda m: m(tokens(2, 3), lengths=torch.tensor([1])), ["(2,)", "(1,)"]),
        (lambda m: m(tokens(2, 3), starts=torch.zeros(2, 4, dtype=torch.bool)), ["(2, 3)", "(2, 4)"]),
        (lambda m: m(tokens(2, 3).fill_(50)), ["50", "vocabulary of 50", "0 to 49"]),
        (lambda m: m(torch.tensor([[0, -1]])), ["id -1", "vocabulary of 50"]),
        (lambda m: m(torch.tensor([[0, 77, 99]]), lengths=torch.tensor([2])), ["id 77"]),
        (lambda m: m([[1, 2]]), ["tokens", "tensor", "list"]),
        (lambda m: m(tokens(2, 3), lengths=[1, 2]), ["lengths", "tensor", "list"]),
        (lambda m: m(tokens(2, 3), starts=[[True] * 3] * 2), ["starts", "tensor", "list"]),
        (lambda m: m(tokens(2, 3), tuple(m.initial_state(2))), ["LanguageModelState", "tuple"]),
    ],
)
def test_bad_input_is_refused_in_one_line(call: object, words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        call(hybrid())  # type: ignore[operator]
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "build",
    [
        lambda: sw.LanguageModelConfig(vocab_size=0, d_model=8, layers=(MAMBA,)),
        lambda: sw.LanguageModelConfig(vocab_size=2.5, d_model=8, layers=(MAMBA,)),  # type: ignore[arg-type]
        lambda: sw.LanguageModelConfig(vocab_size=9, d_model=True, layers=(MAMBA,)),
        lambda: sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(MAMBA,), embedding_std=-1),
        lambda: sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=()),
        lambda: sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=("mamba2",)),  # type: ignore[arg-type]
        lambda: sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(MAMBA,), norm="batch"),
        lambda: sw.BlockConfig(mixer=MAMBA, norm="group"),
        lambda: sw.BlockConfig(mixer=3),  # type: ignore[arg-type]
        lambda: sw.BlockConfig(mixer=MAMBA, mlp=2.0),  # type: ignore[arg-type]
        lambda: sw.BlockConfig(mixer=MAMBA, mlp=WINDOWED),  # type: ignore[arg-type]
        lambda: sw.BlockConfig(mixer=MAMBA, dropout=1.0),
        lambda: sw.MLPConfig(activation="swish"),
        lambda: sw.MLPConfig(expand=0),
    ],
)
def test_bad_configurations_are_refused(build: object) -> None:
    with pytest.raises(ConfigError) as error:
        build()  # type: ignore[operator]
    assert "\n" not in str(error.value)


@pytest.mark.cuda
def test_the_same_on_cuda() -> None:
    model, x = hybrid(torch.float32), tokens(2, 100)
    want, _ = model(x)
    model, x = model.cuda(), x.cuda()
    state, parts = model.initial_state(2), []
    for piece in x.split([50, 1, 49], 1):
        logits, state = model(piece, state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1).cpu(), want, atol=2e-3, rtol=2e-3)
    torch.cat(parts, 1).square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
