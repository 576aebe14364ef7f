"""GGUF of hybrids: round trips, llama.cpp beside us, every type, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_examples import read, write
from gguf_quantisers import QUANTISERS
from hybrid_models import FULL, LINEAR, MODELS, build
from torch import Tensor

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.gguf import read_gguf
from statewise.checkpoints.convert.gguf_file import StoredTensor, read_file, write_file
from statewise.checkpoints.convert.gguf_hybrids import ARCHITECTURES
from statewise.checkpoints.convert.gguf_types import QUANTISATIONS, READ, WRITTEN
from statewise.checkpoints.convert.headers import read_headers
from statewise.checkpoints.convert.hybrids.canonical import essential, explicit
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.cli.model_folder import open_model
from statewise.decoding import Decoder, refusal
from statewise.errors import CheckpointError
from statewise.models.language_model import LanguageModel
from statewise.models.quantised import QuantisedTensor, is_quantised

gguf = pytest.importorskip("gguf")
from gguf.quants import quantize  # noqa: E402

TOKENS = [(7 * i * i + 3 * i) % 260 for i in range(24)]
# Of what is computed: A from its logarithm, weights that are stored less 1, and numbers that are multiplied in
COMPUTED = ("A_log", "norm.weight")
WIDE: dict[str, dict[str, Any]] = {  # a block of the K types
    "lfm2": {"hidden_size": 256, "layer_types": ["conv", FULL]},
    "granitehybrid": {"hidden_size": 256, "layer_types": [LINEAR, FULL], "mamba_d_head": 64},
    "qwen35": {"hidden_size": 256, "layer_types": [LINEAR, FULL], "head_dim": 64, "linear_key_head_dim": 64}
    | {"linear_value_head_dim": 64},
}


@torch.inference_mode()
def logits(model: Any, tokens: list[int] = TOKENS) -> np.ndarray:
    found: np.ndarray = model(torch.tensor([tokens]))[0][0].numpy()
    return found


def meaning(config: sw.LanguageModelConfig) -> Any:
    return essential(explicit(config.in_full(), config.d_model))


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    model = build(name)
    path = save_as(model, tmp_path / "model.gguf", "gguf")
    file, (config, tensors) = read_file(path), read_gguf(path)
    assert file.metadata["general.architecture"] == name.partition(",")[0]
    again = sw.load(path)
    known = logits(model)
    assert np.abs(logits(again) - known).max() < 1e-5 * np.abs(known).max()
    headers = read_headers(path)
    assert headers.reason is None
    assert headers.config == config
    if not name.startswith("falcon"):  # whose multipliers are in the matrices
        assert meaning(config) == meaning(model.config)
        for key, tensor in stored_tensors(model).items():
            if key.endswith(COMPUTED):
                torch.testing.assert_close(tensors[key], tensor, rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(tensors[key], tensor), key
    save_as(again, tmp_path / "again.gguf", "gguf")
    twice = read_file(tmp_path / "again.gguf")
    assert twice.metadata == file.metadata
    assert twice.tensors.keys() == file.tensors.keys()


@pytest.mark.parametrize("name", MODELS)
def test_keys_and_names_are_those_of_the_package(name: str, tmp_path: Path) -> None:
    file = read_file(write(build(name), tmp_path / "model.gguf"))
    architecture = name.partition(",")[0]
    keys = {
        value.replace("{arch}", architecture)
        for group in (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.SSM, gguf.Keys.Rope, gguf.Keys.KDA)
        for value in vars(group).values()
        if isinstance(value, str)
    }
    keys |= {f"{architecture}.shortconv.l_cache", f"{architecture}.attention.recurrent_layers"}
    assert {key for key in file.metadata if key.startswith(architecture)} <= keys
    kind = next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[kind]}
    for tensor in file.tensors:
        stem = tensor.removesuffix(".weight").removesuffix(".bias")
        parts = stem.split(".")
        assert (".".join(["blk", "{bid}", *parts[2:]]) if parts[0] == "blk" else stem) in known, tensor


# -- llama.cpp ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("stored", ["F32", "Q8_0"])
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_goes_on_with_the_same_tokens(name: str, stored: str, tmp_path: Path) -> None:
    """It keeps keys and values in float16, and rounds the inputs of quantised products: where the two likeliest tokens
    are no closer than that."""
    pytest.importorskip("llama_cpp")
    from statewise.benchmark.peers.llama_cpp import LlamaCpp

    path = write(build(name), tmp_path / "model.gguf", type=stored)
    model, theirs = sw.load(path), LlamaCpp.of_file(path, 1, 64)
    known, found = logits(model)[-1], theirs.read(TOKENS)
    if stored == "Q8_0":  # of which the rounding may choose other experts
        assert np.linalg.norm(found - known) < 0.25 * np.linalg.norm(known)
        return
    scale = np.abs(known).max()
    assert np.abs(found - known).max() < 4e-3 * scale
    tokens = theirs.generate(32)
    ours = logits(model, [0, *tokens[:-1]])
    lost = ours.max(1) - ours[np.arange(32), tokens]
    assert (lost <= 4e-3 * scale).all()
    assert (lost == 0).mean() > 0.9
    assert len(set(tokens)) > 2


# -- types -------------------------------------------------------------------------------------------------------------
def in_type(kind: str, path: Path, name: str, mixed: str | None = None) -> Path:
    """All matrices that can be in a type are. mixed: values of attention are in this one"""
    model = build(name, **WIDE[name], num_hidden_layers=2)
    plain = read_file(write(model, path.with_suffix(".plain.gguf")))
    tensors: dict[str, Tensor | StoredTensor] = {}
    for key in plain.tensors:
        tensor, own = plain.read(key), mixed if mixed and key.endswith("attn_v.weight") else kind
        is_matrix = tensor.ndim == 2 and tensor.shape[1] % QUANTISATIONS[own].block == 0
        tensors[key] = tensor
        if is_matrix and not key.endswith(("conv.weight", "conv1d.weight", "ffn_gate_inp.weight", "ssm_norm.weight")):
            tensors[key] = StoredTensor(own, tuple(tensor.shape), quantised(tensor, own))
    write_file(path, plain.metadata, tensors)
    return path


def quantised(tensor: Tensor, kind: str) -> np.ndarray:
    if kind in QUANTISERS:
        return QUANTISERS[kind](tensor.numpy())
    found: np.ndarray = quantize(tensor.numpy(), gguf.GGMLQuantizationType[kind])
    return found


def both(path: Path) -> tuple[LanguageModel, LanguageModel]:
    wide, kept = sw.load(path), sw.load(path, keep_quantised=True)
    assert isinstance(wide, LanguageModel)
    assert isinstance(kept, LanguageModel)
    return wide, kept


CAN_BE_MADE = [kind for kind in READ if kind in QUANTISATIONS and (kind in QUANTISERS or kind in WRITTEN)]


@pytest.mark.parametrize("kind", CAN_BE_MADE)
def test_every_type_of_one_hybrid(kind: str, tmp_path: Path) -> None:
    """LFM2: queries, keys and values are put together of a matrix each, and so are gates and values of MLPs."""
    wide, kept = both(in_type(kind, tmp_path / "model.gguf", "lfm2"))
    for i, part in ((0, "in_proj"), (0, "out_proj"), (1, "in_proj"), (1, "out_proj")):
        weight = getattr(kept.blocks[i].mixer, part).weight
        assert isinstance(weight, QuantisedTensor)
        assert weight.blocks.kind == kind
        assert torch.equal(weight.widened(), getattr(wide.blocks[i].mixer, part).weight)
        rows = slice(32, 64)
        torch.testing.assert_close(weight.blocks.integers(rows).weight(), weight.widened()[rows], rtol=1e-6, atol=1e-9)
    assert isinstance(dict(kept.named_parameters())["layers.0.mlp.in_proj.weight"], QuantisedTensor)
    assert np.array_equal(logits(kept), logits(wide))
    if refusal(kept) is None:
        token = torch.tensor([5])
        known, found = (Decoder(model)(token)[0] for model in (wide, kept))
        assert known is not None
        assert found is not None
        assert (found - known).abs().max() < 1e-3 * known.abs().max()


@pytest.mark.parametrize("mixed", [("Q4_K", "Q6_K"), ("Q4_0", "Q8_0"), ("Q5_K", "Q8_0"), ("Q4_K", "Q5_K")])
@pytest.mark.parametrize("name", ["granitehybrid", "lfm2", "qwen35"])
def test_matrices_of_several_types_and_in_other_orders_are_kept(
    name: str, mixed: tuple[str, str], tmp_path: Path
) -> None:
    """Granite's rows are reordered in each head, Qwen3.5's by heads, and columns of its output too."""
    wide, kept = both(in_type(mixed[0], tmp_path / "model.gguf", name, mixed[1]))
    seen = set()
    for (key, weight), other in zip(kept.named_parameters(), wide.parameters()):
        if isinstance(weight, QuantisedTensor):
            seen.add(weight.blocks.kind)
            assert torch.equal(weight.widened(), other), key
            pieces = [weight.blocks.integers(rows).weight() for rows in weight.blocks.pieces()]
            torch.testing.assert_close(torch.cat(pieces), other.detach(), rtol=1e-6, atol=1e-9)
            some = torch.tensor([[3, 0], [len(other) - 1, 17]])
            assert torch.equal(weight.blocks.widened(some), other[some])
            assert weight.blocks.are_finite()
        elif weight.ndim == 2:
            assert weight.shape[1] % 256 or key.endswith(("convolution.weight", "A_log")), key
    assert " and ".join(mixed) in seen
    assert np.array_equal(logits(kept), logits(wide))


@pytest.mark.parametrize("name", ["lfm2", "falcon-h1", "kimi-linear", "qwen3next"])
def test_commands_keep_the_bits_where_there_is_a_step_in_c(name: str, tmp_path: Path) -> None:
    """Without it each token would unpack all matrices."""
    path = write(build(name), tmp_path / "model.gguf", type="Q8_0")
    model = open_model(path, device="cpu", keep_quantised=True).language_model
    assert is_quantised(model) == (refusal(model) is None)


# -- refused -----------------------------------------------------------------------------------------------------------
Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


def put(key: str, value: Any) -> Change:
    return lambda metadata, _: metadata.update({key: value})


REFUSED: dict[str, tuple[str, str, Change]] = {
    "unknown key": ("lfm2", r"lfm2\.logit_scale=2\.0 is unknown", put("lfm2.logit_scale", 2.0)),
    "missing key": ("jamba", r"the key jamba\.ssm\.state_size is missing", lambda m, _: m.pop("jamba.ssm.state_size")),
    "many layers": ("lfm2", "but there are tensors for 4 layers", put("lfm2.block_count", 4_000_000_000)),
    "further layers": (
        "qwen35",
        "nextn_predict_layers='1'; expected an integer",
        put("qwen35.nextn_predict_layers", "1"),
    ),
    "heads": ("lfm2", r"head_count=5; expected a divisor of embedding_length", put("lfm2.attention.head_count", 5)),
    "several numbers": (
        "lfm2",
        r"head_count_kv=\[1, 2, 0, 0\]; expected one number",
        put("lfm2.attention.head_count_kv", [1, 2, 0, 0]),
    ),
    "a short list": ("lfm2", "one for each of 4 layers", put("lfm2.attention.head_count_kv", [0, 2])),
    "text": ("lfm2", "expected an integer, or one for each", put("lfm2.attention.head_count_kv", "2")),
    "rotary": ("lfm2", "rope.dimension_count=4; expected the width", put("lfm2.rope.dimension_count", 4)),
    "width": ("granitehybrid", "inner_size=129; expected a multiple", put("granitehybrid.ssm.inner_size", 129)),
    "another width": ("jamba", "inner_size=64; expected twice", put("jamba.ssm.inner_size", 64)),
    "values": ("falcon-h1", "value_length=8; expected", put("falcon-h1.attention.value_length", 8)),
    "delta": ("qwen35", "inner_size=64; expected", put("qwen35.ssm.inner_size", 64)),
    "both": ("nemotron_h", "attention and an MLP", put("nemotron_h.feed_forward_length", [0, 96, 96, 0])),
    "router": ("kimi-linear", "expert_gating_func=1; expected 2", put("kimi-linear.expert_gating_func", 1)),
    "missing tensor": (
        "lfm2",
        r"shortconv\.conv\.weight is missing",
        lambda _, t: t.pop("blk.0.shortconv.conv.weight"),
    ),
    "extra tensor": (
        "granitehybrid",
        r"blk\.0\.attn_rot_embd does not belong",
        lambda _, t: t.update({"blk.0.attn_rot_embd": torch.ones(2)}),
    ),
    "wrong shape": (
        "granitehybrid",
        r"attn_k\.weight has shape \(16, 64\), expected \(32, 64\)",
        lambda _, t: t.update({"blk.1.attn_k.weight": torch.ones(16, 64)}),
    ),
    "A above 0": ("qwen35", "ssm_a has values of 0 or more", lambda _, t: t["blk.0.ssm_a"].zero_()),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_does_not_fit_is_refused_by_name(case: str, tmp_path: Path) -> None:
    name, message, change = REFUSED[case]
    file = read_file(write(build(name), tmp_path / "model.gguf"))
    metadata, tensors = dict(file.metadata), {key: file.read(key) for key in file.tensors}
    change(metadata, tensors)
    write_file(tmp_path / "changed.gguf", metadata, tensors)
    with pytest.raises(CheckpointError, match=message) as caught:
        sw.load(tmp_path / "changed.gguf")
    assert "changed.gguf" in str(caught.value)
    assert "\n" not in str(caught.value)


UNWRITTEN: dict[str, tuple[str, dict[str, Any], str]] = {
    "a bias of projections": ("granitehybrid", {"mamba_proj_bias": True}, r"in_proj\.bias has no place in this format"),
    "a limit of dt": ("granitehybrid", {"time_step_limit": [0.1, 0.9]}, "dt_limit"),
    "a norm before the gate": ("falcon-h1", {"mamba_rms_norm": True}, "norm_before_gate"),
    "inner width": ("jamba", {"mamba_expand": 3}, "jamba cannot hold expand=3; it needs 2"),
    "no experts in some layers": ("qwen3next", {"mlp_only_layers": [1]}, "qwen3next"),
    "other widths of values": ("qwen35", {"linear_value_head_dim": 16}, "values are as wide as their keys"),
    "the least step size": ("nemotron_h", {"time_step_min": 0.05}, "dt_limit"),
    "weights that are not normed": ("kimi-linear", {"moe_renormalize": False}, "normalize"),
    "another activation": ("lfm2", {"conv_bias": True}, "bias"),
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_what_is_not_written(case: str, tmp_path: Path) -> None:
    name, fields, message = UNWRITTEN[case]
    with pytest.raises(CheckpointError, match=message) as caught:
        save_as(build(name, **fields), tmp_path / "model.gguf", "gguf")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model.gguf").exists()


def test_blocks_in_other_places_are_not_written(tmp_path: Path) -> None:
    model = build("lfm2")
    layers = tuple(replace(block, placement="post") for block in model.config.blocks)
    with pytest.raises(CheckpointError, match="placement"):
        write(replace(model.config, layers=layers).build(), tmp_path / "model.gguf")


def test_further_heads_are_left_out(tmp_path: Path) -> None:
    """Of a file with a head for the token after next: a layer more, and its own tensors."""
    model = build("qwen35")
    file = read_file(write(model, tmp_path / "model.gguf"))
    tensors = {key: file.read(key) for key in file.tensors}
    tensors |= {"blk.4.nextn.eh_proj.weight": torch.ones(64, 128), "blk.4.attn_norm.weight": torch.ones(64)}
    metadata = file.metadata | {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    write_file(tmp_path / "more.gguf", metadata, tensors)
    assert np.array_equal(logits(read(tmp_path / "more.gguf")), logits(read(tmp_path / "model.gguf")))


def test_every_architecture_has_a_model_here() -> None:
    assert {name.partition(",")[0] for name in MODELS} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", ["granitehybrid, experts", "qwen35", "falcon-h1"])
def test_a_header_of_any_bytes_is_read_or_refused(name: str, tmp_path: Path) -> None:
    """Also where it claims heads of 2**31 features: no other error, and no memory for them."""
    path = write(build(name), tmp_path / "model.gguf")
    file = read_file(path)
    numbers = [key for key, value in file.metadata.items() if type(value) is int and not key.startswith("general.")]
    tensors = {key: file.read(key) for key in file.tensors}
    for key in numbers:
        for value in (0, 7, 2**20, 2**31 - 1):
            write_file(tmp_path / "changed.gguf", file.metadata | {key: value}, tensors)
            with contextlib.suppress(CheckpointError):
                read_gguf(tmp_path / "changed.gguf")
            (tmp_path / "changed.gguf").unlink()
