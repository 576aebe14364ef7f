"""Experts, and maps of latent attention to keys and values, as a GGUF file has them: in their few bits."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoded_models import needs_library
from gguf_examples import write
from gguf_quantisers import QUANTISERS
from hybrid_models import FULL, LINEAR, build
from torch import Tensor, nn

import statewise as sw
from statewise.checkpoints.convert.gguf_file import StoredTensor, read_file, write_file
from statewise.checkpoints.convert.gguf_types import QUANTISATIONS
from statewise.cli.published import describe_published
from statewise.decoding import Decoder
from statewise.errors import CheckpointError
from statewise.models.language_model import LanguageModel
from statewise.models.moe import Experts
from statewise.models.quantised import QuantisedTensor, matrices_of
from statewise.models.quantised_parts import KeysAndValues

gguf = pytest.importorskip("gguf")
from gguf.quants import quantize  # noqa: E402

TOKENS = torch.arange(12)[None] * 7 % 260
WIDE: dict[
    str, dict[str, Any]
] = {  # experts of a hidden width that is no multiple of 16 rows; and of whole blocks of the K types
    "lfm2moe": {"moe_intermediate_size": 40, "layer_types": ["conv", FULL], "num_hidden_layers": 2},
    "qwen3next": {"layer_types": [LINEAR, FULL], "num_hidden_layers": 2, "hidden_size": 256},
    "nemotron_h_moe": {"layers_block_type": [LINEAR, "moe", FULL], "moe_intermediate_size": 256, "hidden_size": 256},
    "nemotron_h_moe, latent": {"layers_block_type": [LINEAR, "moe", FULL]},
    "kimi-linear": {"layer_types": [FULL, LINEAR], "num_hidden_layers": 2, "qk_nope_head_dim": 32},
}


def in_types(name: str, path: Path, *kinds: str) -> Path:
    """Experts, and maps to keys and values, in these types in turn, where their rows are whole blocks."""
    plain = read_file(write(build(name, **WIDE[name]), path.with_suffix(".plain.gguf")))
    tensors: dict[str, Tensor | StoredTensor] = {}
    for i, key in enumerate(plain.tensors):
        tensor, kind = plain.read(key), kinds[i % len(kinds)]
        tensors[key] = tensor
        if tensor.ndim == 3 and tensor.shape[-1] % QUANTISATIONS[kind].block == 0:
            flat = tensor.flatten(0, 1).numpy()
            made = QUANTISERS[kind](flat) if kind in QUANTISERS else quantize(flat, gguf.GGMLQuantizationType[kind])
            tensors[key] = StoredTensor(kind, tuple(tensor.shape), made.reshape(*tensor.shape[:2], -1))
    write_file(path, plain.metadata, tensors)
    return path


def both(path: Path) -> tuple[LanguageModel, LanguageModel]:
    wide, kept = sw.load(path), sw.load(path, keep_quantised=True)
    assert isinstance(wide, LanguageModel)
    assert isinstance(kept, LanguageModel)
    return wide, kept


def experts_of(model: LanguageModel) -> list[Experts]:
    return [module for module in model.modules() if isinstance(module, Experts)]


@torch.inference_mode()
def logits(model: LanguageModel) -> Tensor:
    found: Tensor = model(TOKENS)[0]
    return found


def check(path: Path, names: list[str]) -> tuple[LanguageModel, LanguageModel]:
    """The same numbers, alone and in a model, and in the step in C to the rounding of x. names: of what is kept"""
    wide, kept = both(path)
    parameters = dict(wide.named_parameters())
    for name, weight in kept.named_parameters():
        assert isinstance(weight, QuantisedTensor) == (name in names), name
        if isinstance(weight, QuantisedTensor):
            assert torch.equal(weight.widened(), parameters[name])
            assert weight.blocks.are_finite()
    assert torch.equal(logits(kept), logits(wide))
    assert torch.equal(logits(pickle.loads(pickle.dumps(kept))), logits(wide))
    return wide, kept


def steps(wide: LanguageModel, kept: LanguageModel) -> tuple[Decoder, Decoder]:
    decoder, exact = Decoder(kept), Decoder(wide)
    assert decoder.weights == "stored"
    state: Any = decoder.initial_state(1)
    other: Any = exact.initial_state(1)
    for token in TOKENS[0]:
        found, state = decoder(token[None], state)
        known, other = exact(token[None], other)
        assert found is not None
        assert known is not None
        assert (found - known).abs().max() < 1e-3 * known.abs().max()
    return decoder, exact


@needs_library
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_1", "IQ4_NL", "MXFP4"])
@pytest.mark.parametrize("name", ["lfm2moe", "nemotron_h_moe, latent"])
def test_experts_are_kept(name: str, kind: str, tmp_path: Path) -> None:
    """Gates and values of all experts are a tensor each in the file, and lie in turns here."""
    path = in_types(name, tmp_path / "model.gguf", kind)
    names = [f"layers.1.mlp.experts.{part}" for part in ("in_proj", "out_proj")]
    if name == "lfm2moe":  # whose outputs have rows of 40 numbers
        names.pop()
    wide, kept = check(path, names)
    experts = experts_of(kept)[0]
    first = matrices_of(experts.in_proj)[1]
    assert isinstance(first, QuantisedTensor)
    assert torch.equal(first.widened(), experts_of(wide)[0].in_proj[1])
    assert first.blocks.n_bytes * len(experts.in_proj) == experts.in_proj.blocks.n_bytes  # type: ignore[attr-defined]
    decoder, exact = steps(wide, kept)
    assert decoder.n_bytes < exact.n_bytes
    for weights in ("int8", "int4", "float32"):
        found, known = (Decoder(model, weights)(TOKENS[0, :1])[0] for model in (kept, wide))
        assert torch.equal(found, known)  # type: ignore[arg-type]


@needs_library
@pytest.mark.parametrize("kinds", [("Q4_K",), ("Q6_K",), ("Q4_K", "Q6_K"), ("Q4_0", "Q8_0", "Q5_1")])
def test_gates_and_values_of_several_types(kinds: tuple[str, ...], tmp_path: Path) -> None:
    path = in_types("qwen3next", tmp_path / "model.gguf", *kinds)
    wide, kept = both(path)
    names = [
        name
        for name, p in kept.named_parameters()
        if name.endswith("experts.in_proj") and isinstance(p, QuantisedTensor)
    ]
    assert len(names) == 2
    assert torch.equal(logits(kept), logits(wide))
    for mine, theirs in zip(experts_of(kept), experts_of(wide)):
        blocks = mine.in_proj.blocks  # type: ignore[attr-defined]
        assert set(blocks.kind.split(" and ")) <= set(kinds)
        whole = torch.cat([blocks.integers(rows).weight() for rows in blocks.pieces()])
        torch.testing.assert_close(whole, theirs.in_proj.flatten(0, 1).detach(), rtol=1e-6, atol=1e-9)
        some = torch.tensor([[3, 0], [len(whole) - 1, 17]])
        assert torch.equal(blocks.widened(some), theirs.in_proj.flatten(0, 1)[some])
    steps(wide, kept)


@needs_library
@pytest.mark.parametrize("kinds", [("Q8_0",), ("Q4_0",), ("Q4_1", "Q8_0"), ("Q8_0", "Q5_0")])
def test_maps_to_keys_and_values_are_kept(kinds: tuple[str, ...], tmp_path: Path) -> None:
    """The file has those to keys from the right: the step multiplies with them as they are."""
    path = in_types("kimi-linear", tmp_path / "model.gguf", *kinds)
    wide, kept = both(path)
    mixers: list[Any] = [model.blocks[0].mixer for model in (kept, wide)]
    weight, plain = (mixer.up_proj.weight for mixer in mixers)
    assert isinstance(weight, QuantisedTensor)
    assert isinstance(weight.blocks, KeysAndValues)
    assert torch.equal(weight.widened(), plain)
    for rows in (slice(0, 5), slice(31, 50), slice(40, 200), slice(None), slice(7, 7)):
        assert torch.equal(weight.blocks.widened(rows), plain[rows])
    assert torch.equal(weight.blocks.widened(torch.tensor([[3, 60]])), plain[torch.tensor([[3, 60]])])
    d_value = mixers[0].config.d_value
    values = weight.blocks.integers(slice(32, 32 + d_value)).weight()
    torch.testing.assert_close(values, plain[32 : 32 + d_value].detach(), rtol=1e-6, atol=1e-9)
    assert torch.equal(logits(kept), logits(wide))
    decoder, exact = steps(wide, kept)
    assert decoder.n_bytes < exact.n_bytes
    for weights in ("int8", "float32"):
        found, known = (Decoder(model, weights)(TOKENS[0, :1])[0] for model in (kept, wide))
        assert torch.equal(found, known)  # type: ignore[arg-type]


@needs_library
@pytest.mark.parametrize("name", ["nemotron_h_moe", "kimi-linear"])
def test_info_tells_the_memory_that_it_takes(name: str, tmp_path: Path) -> None:
    """Of what is kept, and of what the step reads: the file's integers, and float32 for the rest."""
    path = in_types(name, tmp_path / "model.gguf", "Q8_0")
    kept = both(path)[1]
    memory = describe_published(path)["memory"]
    held = sum(p.blocks.n_bytes if isinstance(p, QuantisedTensor) else 4 * p.numel() for p in tensors_of(kept))
    assert abs(memory["kept"] - held) < 0.02 * held
    assert abs(memory["stored"] - Decoder(kept).n_bytes) < 0.05 * memory["stored"]


def tensors_of(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def test_parts_of_other_shapes_are_refused(tmp_path: Path) -> None:
    path = in_types("lfm2moe", tmp_path / "model.gguf", "Q8_0")
    file = read_file(path)
    tensors: dict[str, Tensor | StoredTensor] = dict(file.tensors)
    stored = file.tensors["blk.1.ffn_up_exps.weight"]
    tensors["blk.1.ffn_up_exps.weight"] = stored._replace(shape=(5, 40, 64), data=stored.data[:5])
    write_file(tmp_path / "changed.gguf", file.metadata, tensors)
    for keeps in (False, True):
        with pytest.raises(
            CheckpointError, match=r"ffn_up_exps\.weight has shape \(5, 40, 64\), expected \(6, 40, 64\)"
        ):
            sw.load(tmp_path / "changed.gguf", keep_quantised=keeps)


def test_an_infinite_scale_of_one_expert_is_found(tmp_path: Path) -> None:
    path = in_types("lfm2moe", tmp_path / "model.gguf", "Q8_0")
    file = read_file(path)
    tensors: dict[str, Tensor | StoredTensor] = dict(file.tensors)
    stored = file.tensors["blk.1.ffn_up_exps.weight"]
    data = np.array(stored.data)
    data.reshape(-1)[-34:-32] = (0, 0x7C)  # infinity, in float16
    tensors["blk.1.ffn_up_exps.weight"] = stored._replace(data=data)
    write_file(tmp_path / "changed.gguf", file.metadata, tensors)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.experts\.in_proj has .* not finite"):
        sw.load(tmp_path / "changed.gguf", keep_quantised=True)
