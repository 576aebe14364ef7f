"""Matrices that stay in 8 or 4 bits where a model is: the numbers are those of a model that is rounded as much."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from families import MIXERS
from written_models import ids_of

import statewise as sw
from statewise.decoding import check_weights, dequantised, narrowed, with_weights
from statewise.decoding.layers import matrices
from statewise.decoding.packing import quantise
from statewise.errors import InputError
from statewise.generation import generate, stepping
from statewise.kernels import gpu
from statewise.kernels.step.pytorch import GROUP, Norm, norm_matvec, pack
from statewise.models.quantised import QuantisedTensor, is_quantised

VOCABULARY = 11
WEIGHTS = ("int8", "int4")
MIXTURE = sw.BlockConfig(mixer=sw.Mamba2Config(d_head=8, d_state=8), mlp=sw.MoEConfig(n_experts=4, n_active=2))
LAYERS = {
    **{name: (config,) for name, config in MIXERS.items()},
    "experts": (MIXTURE, sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=2), mlp=sw.MLPConfig())),
}


def build(name: str, dtype: torch.dtype = torch.float32, **options: object) -> sw.LanguageModel:
    torch.manual_seed(0)
    config = sw.LanguageModelConfig(
        vocab_size=VOCABULARY,
        d_model=40,
        layers=LAYERS[name],
        embedding_std=1.0,
        **options,  # type: ignore[arg-type]
    )
    return config.build().to(dtype).eval()


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("columns", [1, 8, 31, 32, 33, 64, 65, 96, 130])
def test_a_packed_matrix_is_scale_times_q(columns: int, weights: str) -> None:
    torch.manual_seed(columns)
    weight = torch.randn(5, columns)
    found = quantise(weight, weights)
    matrix = pack(found.q, found.scales, int(weights[3:]))
    assert matrix.integers().equal(found.q)
    assert matrix.widened().equal(found.weight())
    ids = torch.tensor([[4, 0], [2, 2]])
    assert matrix.rows(ids).widened().equal(found.weight()[ids])
    assert matrix.rows(slice(1, 3)).data.data_ptr() == matrix.data[1:].data_ptr()
    x, bias = torch.randn(3, columns), torch.randn(5)
    plain = norm_matvec(x, None, matrix, bias, out=torch.empty(3, 5))
    torch.testing.assert_close(plain.double(), x.double() @ found.weight().double().T + bias, atol=1e-5, rtol=1e-5)
    norm = Norm(torch.randn(columns), 1e-5)
    normed = torch.nn.functional.rms_norm(x.double(), (columns,), norm.weight.double(), 1e-5)
    got = norm_matvec(x, norm, matrix, out=torch.empty(3, 5))
    torch.testing.assert_close(got.double(), normed @ found.weight().double().T, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("name", LAYERS)
@torch.inference_mode()
def test_a_narrow_model_is_the_dequantised_one(name: str, weights: str) -> None:
    model = build(name)
    narrow, want = narrowed(model, weights), dequantised(model, weights)
    assert is_quantised(narrow)
    assert not is_quantised(model)
    assert all(isinstance(m, QuantisedTensor) and m.dtype == torch.float32 for m in matrices(narrow))
    tokens = torch.randint(VOCABULARY, (2, 7))
    got, state = narrow(tokens, narrow.initial_state(2))
    expected, other = want(tokens, want.initial_state(2))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    for _ in range(3):
        step = torch.randint(VOCABULARY, (2, 1))
        got, state = narrow(step, state)
        expected, other = want(step, other)
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("weights", WEIGHTS)
@torch.inference_mode()
def test_bfloat16_models_keep_their_dtype(weights: str) -> None:
    model = build("experts", torch.bfloat16)
    narrow, want = narrowed(model, weights), dequantised(model, weights)
    assert {m.dtype for m in narrow.parameters()} == {m.dtype for m in model.parameters()}
    tokens = torch.randint(VOCABULARY, (2, 7))
    got, expected = narrow(tokens)[0], want(tokens)[0]
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, atol=5e-2, rtol=5e-2)


def test_what_a_narrow_model_takes_and_shares(tmp_path: Path) -> None:
    model = build("experts", tie_embeddings=True)
    narrow = narrowed(model, "int4")
    assert narrow.head.weight is narrow.embedding.weight
    held = [m.blocks for m in matrices(narrow) if isinstance(m, QuantisedTensor)]
    for blocks in held:
        rows, columns = blocks.shape
        assert blocks.n_bytes == rows * -(-columns // 64) * (32 + 2 * 64 // GROUP)
    again = copy.deepcopy(narrow)
    assert again.head.weight is again.embedding.weight
    file = io.BytesIO()
    torch.save(narrow, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    tokens = torch.randint(VOCABULARY, (1, 4))
    with torch.inference_mode():
        want = narrow(tokens)[0]
        assert again(tokens)[0].equal(want)
        assert read(tokens)[0].equal(want)
    with pytest.raises(InputError, match="int4 cannot be changed; use the model that it was made"), torch.no_grad():
        narrow.head.weight.mul_(2)
    with pytest.raises(InputError, match="is in int4; use the model that it was made from"):
        sw.save(narrow, tmp_path / "saved")


def test_whole_numbers_of_a_narrow_model_are_there_for_the_step_in_c() -> None:
    model = build("Mamba-2")
    for weights in WEIGHTS:
        blocks = narrowed(model, weights).head.weight.blocks  # type: ignore[attr-defined]
        found = blocks.integers(slice(2, 9))
        assert found.weight().equal(dequantised(model, weights).head.weight[2:9])
        assert blocks.are_finite()
        assert torch.cat([blocks.widened(rows) for rows in blocks.pieces()]).equal(blocks.widened(slice(None)))


def test_what_is_refused() -> None:
    model = build("Mamba-2")
    with pytest.raises(InputError, match="no integers; use int8 or int4"):
        narrowed(model, "bfloat16")
    with pytest.raises(InputError, match="int3"):
        narrowed(model, "int3")
    with torch.no_grad():
        model.head.weight[0, 0] = torch.nan
    with pytest.raises(InputError, match="NaN or infinity"):
        narrowed(model, "int8")
    kalman = build("Kalman")
    with pytest.raises(InputError, match="needs a model with a step in C"):
        check_weights(kalman, "int8")
    with torch.device("meta"):  # as on a GPU: no step in C is needed
        elsewhere = sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=LAYERS["Kalman"]).build()
    check_weights(elsewhere, "int8")
    with pytest.raises(InputError, match="use int8 or int4, or convert the model"):
        check_weights(elsewhere, "bfloat16")
    with pytest.raises(InputError, match=r"not torch\.float64"):
        narrowed(build("Mamba-2").double(), "int8")


def test_without_kernels_integers_are_made_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("Mamba-2")
    assert not is_quantised(with_weights(model, "int8"))
    monkeypatch.setattr(gpu, "in_force", lambda device: True)
    monkeypatch.setattr(gpu, "refusal_of", lambda *given: None)
    assert is_quantised(with_weights(model, "int8"))
    assert not is_quantised(with_weights(model, "int8", n_rows=9))
    assert not is_quantised(with_weights(model, "bfloat16"))
    assert not is_quantised(with_weights(model.double(), "int8"))
    monkeypatch.setattr(gpu, "refusal_of", lambda *given: "it is off by 1.0")
    with pytest.warns(RuntimeWarning, match="not multiplied as it is: it is off by 1.0"):
        assert not is_quantised(with_weights(build("Mamba-2"), "int8"))


@pytest.mark.parametrize("name", ["S4D", "attention"])
def test_generate_writes_what_the_rounded_model_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: by the narrow model, and also by one that was made before."""
    model = build(name)
    want = ids_of(generate(dequantised(model, "int4"), [1, 2], max_new_tokens=40, seed=0))
    seen: list[bool] = []
    monkeypatch.setattr(stepping, "wants_decoder", lambda *given: False)
    monkeypatch.setattr(gpu, "in_force", lambda device: True)
    monkeypatch.setattr(gpu, "refusal_of", lambda *given: None)
    extend = stepping.extend
    monkeypatch.setattr(
        stepping, "extend", lambda reader, *given: seen.append(is_quantised(reader)) or extend(reader, *given)
    )
    assert ids_of(generate(model, [1, 2], max_new_tokens=40, seed=0, weights="int4")) == want
    assert seen == [True] * 39


def test_what_becomes_of_gradients_autocast_and_one_row() -> None:
    narrow = narrowed(build("Mamba-2"), "int8")
    x = torch.randn(3, 40, requires_grad=True)
    y = narrow.head(x)
    assert y.requires_grad
    want = narrow.head.weight.widened()  # type: ignore[operator]
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], want.sum(0).expand(3, -1))
    assert narrow.head(x[0]).shape == (VOCABULARY,)
    with torch.autocast("cpu", torch.bfloat16):
        assert {narrow.head(torch.randn(n, 40)).dtype for n in (1, 20)} == {torch.bfloat16}
    with pytest.raises(InputError, match=r"cannot become torch\.float16; use the model that it was made from, and"):
        narrow.half()(torch.zeros(1, 1, dtype=torch.int64))
