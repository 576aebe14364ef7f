"""GGUF of RWKV-7: a file as llama.cpp's converter writes it, llama.cpp beside us, every type, and what is refused."""

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
from test_convert_rwkv7 import blinkdl, logits, tokens_of
from torch import Tensor

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.gguf import read_gguf
from statewise.checkpoints.convert.gguf_file import StoredTensor, read_file, write_file
from statewise.checkpoints.convert.gguf_types import QUANTISATIONS, READ, WRITTEN
from statewise.checkpoints.convert.headers import read_headers
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.decoding import Decoder, refusal
from statewise.errors import CheckpointError
from statewise.models.language_model import LanguageModel
from statewise.models.quantised import QuantisedTensor

gguf = pytest.importorskip("gguf")
from gguf.quants import quantize  # noqa: E402

TOKENS = [(7 * i * i + 3 * i) % 260 for i in range(24)]
NORMS = {"ln1": "attn_norm", "ln2": "attn_norm_2"}


# -- a file of llama.cpp's converter -----------------------------------------------------------------------------------
def converted(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """BlinkDL's tensors by the names and shapes that conversion/rwkv.py gives them."""
    found = {"token_embd.weight": tensors["emb.weight"], "output.weight": tensors["head.weight"]}
    for name, tensor in tensors.items():
        own = name.split(".")
        if own[0] == "ln_out" or own[2:3] == ["ln0"]:
            found[f"{'output_norm' if own[0] == 'ln_out' else 'token_embd_norm'}.{own[-1]}"] = tensor
        if own[0] != "blocks" or own[2] == "ln0":
            continue
        to = f"blk.{own[1]}."
        if own[2] in NORMS:
            found[f"{to}{NORMS[own[2]]}.{own[3]}"] = tensor
        elif own[2] == "ffn":
            found[f"{to}channel_mix_{own[3].replace('x_k', 'lerp_k')}.weight"] = tensor.squeeze()
        elif own[3] == "ln_x":
            found[f"{to}time_mix_ln.{own[4]}"] = tensor
        elif own[3] == "x_r":
            parts = [tensors[f"blocks.{own[1]}.att.x_{letter}"] for letter in "rwkvag"]
            found[f"{to}time_mix_lerp_fused.weight"] = torch.stack(parts)
        elif not own[3].startswith("x_"):
            is_narrow = own[3][0] in "wavg" and own[3][1:] in ("1", "2")
            own_tensor = tensor.T if is_narrow else tensor.flatten() if own[3] == "r_k" else tensor.squeeze()
            found[f"{to}time_mix_{own[3]}.weight"] = own_tensor
    for part in range(3):  # what llama.cpp wants of the first layer, and does not read
        found[f"blk.0.time_mix_v{part}.weight"] = found[f"blk.0.time_mix_a{part}.weight"]
    return {name: tensor.float().contiguous() for name, tensor in found.items()}


def values_of(tensors: dict[str, Tensor]) -> dict[str, Any]:
    n_layers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blocks."))
    ranks = {"decay": "w", "iclr": "a", "gate": "g"}
    own = {f"attention.{key}_lora_rank": tensors[f"blocks.0.att.{letter}1"].shape[1] for key, letter in ranks.items()}
    last = tensors.get("blocks.1.att.v1", tensors["blocks.0.att.a1"])
    values = {
        "context_length": 2**20,
        "embedding_length": tensors["emb.weight"].shape[1],
        "block_count": n_layers,
        "attention.layer_norm_epsilon": 1e-5,
        "wkv.head_size": tensors["blocks.0.att.r_k"].shape[1],
        **own,
        "attention.value_residual_mix_lora_rank": last.shape[1],
        "feed_forward_length": tensors["blocks.0.ffn.key.weight"].shape[0],
        "attention.head_count": 0,
        "vocab_size": len(tensors["emb.weight"]),
    }
    return {"general.architecture": "rwkv7", "general.file_type": 0} | {f"rwkv7.{k}": v for k, v in values.items()}


@pytest.mark.parametrize("shape", ["small", "odd sizes", "one layer"])
def test_reads_what_llama_cpps_converter_writes(shape: str, tmp_path: Path) -> None:
    tensors = blinkdl(shape)
    write_file(tmp_path / "model.gguf", values_of(tensors), converted(tensors))
    model = sw.load(tmp_path / "model.gguf")
    assert isinstance(model, LanguageModel)
    tokens = tokens_of(19)
    truth = logits(tensors, tokens.tolist(), 64e-5)
    with torch.no_grad():
        found = model(tokens[None])[0][0].numpy()
    assert np.abs(found - truth).max() < 1e-5 * np.abs(truth).max()
    headers = read_headers(tmp_path / "model.gguf")
    assert (headers.reason, headers.config) == (None, model.config)


# -- files of ours -----------------------------------------------------------------------------------------------------
def build(*, d_model: int = 128, n_layers: int = 2, d_head: int = 64, **fields: Any) -> LanguageModel:
    torch.manual_seed(0)
    time = sw.RWKV7Config(d_head=d_head, decay_rank=16, rate_rank=8, gate_rank=24, norm_eps=64e-5 / d_head)
    later = replace(time, value_rank=12)
    mixers = [mixer for i in range(n_layers) for mixer in (time if i == 0 else later, sw.ChannelMixConfig(expand=2))]
    layers = tuple(sw.BlockConfig(mixer=mixer, norm="layer") for mixer in mixers)
    plain: dict[str, Any] = {"norm": "layer", "embedding_norm": "layer", "tie_embeddings": False, "layers": layers}
    model = sw.LanguageModelConfig(**{"vocab_size": 260, "d_model": d_model} | plain | fields).build().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
    return model


@torch.inference_mode()
def ours(model: Any, tokens: list[int] = TOKENS) -> np.ndarray:
    found: np.ndarray = model(torch.tensor([tokens]))[0][0].numpy()
    return found


@pytest.mark.parametrize("n_layers", [1, 3])
def test_round_trip(n_layers: int, tmp_path: Path) -> None:
    model = build(n_layers=n_layers)
    path = save_as(model, tmp_path / "model.gguf", "gguf")
    config, tensors = read_gguf(path)
    assert config == model.config
    for name, tensor in stored_tensors(model).items():
        assert torch.equal(tensors[name], tensor), name
    assert np.array_equal(ours(sw.load(path)), ours(model))


def test_keys_and_names_are_those_of_the_package(tmp_path: Path) -> None:
    file = read_file(write(build(), tmp_path / "model.gguf"))
    groups = (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.WKV)
    keys = {
        value.replace("{arch}", "rwkv7") for group in groups for value in vars(group).values() if type(value) is str
    }
    assert {key for key in file.metadata if key.startswith("rwkv7")} <= keys
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.RWKV7]}
    stems = {name.rpartition(".")[0] for name in file.tensors}
    named = {".".join(["blk", "{bid}", *stem.split(".")[2:]]) if stem.startswith("blk.") else stem for stem in stems}
    assert named == known


@pytest.mark.parametrize("stored", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("d_head", [64, 128])
def test_llama_cpp_goes_on_with_the_same_tokens(d_head: int, stored: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from statewise.benchmark.peers.llama_cpp import LlamaCpp

    path = write(build(d_head=d_head), tmp_path / "model.gguf", type=stored)
    model: Any = sw.load(path)
    theirs = LlamaCpp.of_file(path, 1, 64)
    known, found = ours(model)[-1], theirs.read(TOKENS)
    scale = np.abs(known).max()
    tolerance = {"F32": 1e-4, "F16": 4e-3}.get(stored, 8e-2)
    assert np.abs(found - known).max() < tolerance * scale
    tokens = theirs.generate(32)
    logit = ours(model, [0, *tokens[:-1]])
    lost = logit.max(1) - logit[np.arange(32), tokens]
    assert (lost <= tolerance * scale).all()
    assert len(set(tokens)) > 2
    if stored == "F32":
        end = next(i for i in range(260) if i not in tokens)
        again = [int(t.ids) for t in sw.generate(model, [0], max_new_tokens=32, temperature=0, document_token=end)]
        assert again == tokens


# -- types -------------------------------------------------------------------------------------------------------------
CAN_BE_MADE = [kind for kind in READ if kind in QUANTISATIONS and (kind in QUANTISERS or kind in WRITTEN)]


def in_type(kind: str, path: Path) -> Path:
    """All matrices that llama.cpp's own quantiser would take are in a type."""
    plain = read_file(write(build(d_model=256, n_layers=2), path.with_suffix(".plain.gguf")))
    tensors: dict[str, Tensor | StoredTensor] = {}
    for key in plain.tensors:
        tensor = plain.read(key)
        tensors[key] = tensor
        if tensor.ndim == 2 and tensor.shape[1] % 256 == 0 and not key.endswith(("1.weight", "2.weight")):
            numbers = tensor.numpy()
            made = (
                QUANTISERS[kind](numbers) if kind in QUANTISERS else quantize(numbers, gguf.GGMLQuantizationType[kind])
            )
            tensors[key] = StoredTensor(kind, tuple(tensor.shape), made)
    write_file(path, plain.metadata, tensors)
    return path


@pytest.mark.parametrize("kind", CAN_BE_MADE)
def test_every_type(kind: str, tmp_path: Path) -> None:
    path = in_type(kind, tmp_path / "model.gguf")
    wide, kept = sw.load(path), sw.load(path, keep_quantised=True)
    assert isinstance(kept, LanguageModel)
    for i, part in ((0, "r_proj"), (0, "out_proj"), (1, "in_proj"), (1, "out_proj"), (2, "v_proj")):
        weight = getattr(kept.blocks[i].mixer, part).weight
        assert isinstance(weight, QuantisedTensor)
        assert weight.blocks.kind == kind
    assert np.array_equal(ours(kept), ours(wide))
    if refusal(kept) is None:
        token = torch.tensor([5])
        known, found = (Decoder(model)(token)[0] for model in (wide, kept))  # type: ignore[arg-type]
        assert known is not None
        assert found is not None
        assert (found - known).abs().max() < 4e-3 * known.abs().max()  # x is rounded to 16 bits


def test_small_networks_stay_in_float32(tmp_path: Path) -> None:
    """As llama.cpp's own quantiser leaves them."""
    for stored in ("F16", "Q8_0"):
        path = write(build(), tmp_path / f"{stored}.gguf", type=stored)
        types = {name: tensor.type for name, tensor in read_file(path).tensors.items()}
        assert {types[f"blk.1.time_mix_{letter}{n}.weight"] for letter in "wavg" for n in "12"} == {"F32"}
        assert types["blk.1.time_mix_lerp_fused.weight"] == "F32"
        assert types["blk.1.time_mix_key.weight"] == types["blk.0.channel_mix_value.weight"] == stored


@pytest.mark.parametrize("weights", ["q4_k", "q6_k", "iq4_xs"])
def test_files_that_llama_cpp_quantised(weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llama_cpp")
    from statewise.benchmark.peers import llama_cpp as peer

    name = {"q4_k": "Q4_K_M", "q6_k": "Q6_K", "iq4_xs": "IQ4_XS"}[weights]
    monkeypatch.setitem(peer.TYPES, weights, f"MOSTLY_{name}")
    path = peer.written(build(d_model=256), weights)
    assert weights.upper() in {tensor.type for tensor in read_file(path).tensors.values()}
    found, known = peer.LlamaCpp.of_file(path, 1, 48).read(TOKENS), ours(sw.load(path))[-1]
    assert np.abs(found - known).max() < 8e-2 * np.abs(known).max()
    assert np.array_equal(ours(sw.load(path, keep_quantised=True))[-1], known)


# -- refused -----------------------------------------------------------------------------------------------------------
Change = Callable[[dict[str, Any], dict[str, Tensor]], object]
REFUSED: dict[str, Change] = {
    r"rwkv7\.logit_scale=2\.0 is unknown": lambda m, _: m.update({"rwkv7.logit_scale": 2.0}),
    r"the key rwkv7\.wkv\.head_size is missing": lambda m, _: m.pop("rwkv7.wkv.head_size"),
    "but there are tensors for 2 layers": lambda m, _: m.update({"rwkv7.block_count": 4_000_000_000}),
    "token_shift_count=1; expected 2": lambda m, _: m.update({"rwkv7.token_shift_count": 1}),
    "d_head=48 does not divide d_model=128": lambda m, _: m.update({"rwkv7.wkv.head_size": 48}),
    r"expected \(9, 128\)": lambda m, _: m.update({"rwkv7.attention.iclr_lora_rank": 9}),
    r"blk\.1\.time_mix_v1\.weight is missing": lambda _, t: t.pop("blk.1.time_mix_v1.weight"),
    r"lerp_fused\.weight has shape \(5, 1, 1, 128\), expected \(6, 1, 1, 128\)": lambda _, t: t.update(
        {"blk.0.time_mix_lerp_fused.weight": torch.ones(5, 1, 1, 128)}
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_file_that_does_not_fit_is_refused_by_name(message: str, tmp_path: Path) -> None:
    file = read_file(write(build(), tmp_path / "model.gguf"))
    metadata, tensors = dict(file.metadata), {key: file.read(key) for key in file.tensors}
    REFUSED[message](metadata, tensors)
    write_file(tmp_path / "changed.gguf", metadata, tensors)
    with pytest.raises(CheckpointError, match=message) as caught:
        read(tmp_path / "changed.gguf")
    assert "\n" not in str(caught.value)


def test_a_header_of_any_numbers_is_read_or_refused(tmp_path: Path) -> None:
    """Also where it claims ranks of 2**31: no other error, and no memory for them."""
    file = read_file(write(build(), tmp_path / "model.gguf"))
    numbers = [key for key, value in file.metadata.items() if type(value) is int and key.startswith("rwkv7.")]
    tensors = {key: file.read(key) for key in file.tensors}
    for key in numbers:
        for value in (0, 7, 2**20, 2**31 - 1):
            write_file(tmp_path / "changed.gguf", file.metadata | {key: value}, tensors)
            with contextlib.suppress(CheckpointError):
                read_gguf(tmp_path / "changed.gguf")
            (tmp_path / "changed.gguf").unlink()


FIRST = build(n_layers=1).config.blocks
MIXER: Any = FIRST[0].mixer
UNWRITTEN: dict[str, dict[str, Any]] = {
    "heads as wide as 64 or a multiple of it; those of this model have d_head=16": {"d_head": 16},
    "norms its embedding; this model has embedding_norm=None": {"embedding_norm": None},
    "a head of its own; this model has tie_embeddings=True": {"tie_embeddings": True},
    "time and channel mixing in turn, and layers.1. is not ChannelMixConfig": {"layers": (FIRST[0],) * 2},
    "norm_eps": {"layers": (replace(FIRST[0], mixer=replace(MIXER, norm_eps=1e-3)), FIRST[1])},
    "embedding_scale": {"embedding_scale": 2.0},
}


@pytest.mark.parametrize("message", UNWRITTEN)
def test_what_is_not_written(message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        save_as(build(**UNWRITTEN[message]), tmp_path / "model.gguf", "gguf")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model.gguf").exists()
