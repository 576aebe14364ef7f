"""Matrices that stay in 8 or 4 bits where a model is: the numbers are those of a model that is rounded as much."""

from __future__ import annotations

import copy
import io
from pathlib import Path

import pytest
import torch
from families import MIXERS

import statewise as sw
from statewise.decoding import check_weights, dequantised, narrowed, with_weights
from statewise.decoding.layers import matrices
from statewise.decoding.packing import quantise
from statewise.errors import InputError
from statewise.generation import generate
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
        check_weights(sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=LAYERS["Kalman"]).build(), "int8")


def test_without_a_gpu_integers_are_made_plain() -> None:
    model = build("Mamba-2")
    assert not is_quantised(with_weights(model, "int8"))
    with sw.kernels.use("torch"):
        assert list(generate(model, [1, 2], max_new_tokens=3, weights="int4", seed=0))
