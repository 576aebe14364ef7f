"""RWKV-7: BlinkDL's files and the folders of fla, against the whole model written out a token at a time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.errors import CheckpointError, ConfigError
from statewise.models.language_model import LanguageModel

# n_layers, d_model, d_head, d_hidden, ranks of w, a, v, g
SHAPES = {
    "small": (3, 16, 8, 64, (3, 2, 4, 5)),
    "odd sizes": (2, 15, 5, 37, (2, 3, 1, 4)),
    "one layer": (1, 12, 12, 48, (4, 4, 4, 4)),
}
VOCABULARY = 29


def blinkdl(shape: str, *, first_value: bool = True, seed: int = 0) -> dict[str, Tensor]:
    """Drawn tensors by BlinkDL's names and shapes, in float64, in which every parameter matters."""
    n_layers, d, d_head, d_hidden, (rw, ra, rv, rg) = SHAPES[shape]
    generator = torch.Generator().manual_seed(seed)

    def drawn(*sizes: int, std: float = 0.5) -> Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64) * std

    tensors = {"emb.weight": drawn(VOCABULARY, d), "head.weight": drawn(VOCABULARY, d, std=d**-0.5)}

    def norm(name: str) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = 1 + drawn(d, std=0.2), drawn(d, std=0.2)

    norm("ln_out")
    for i in range(n_layers):
        at = f"blocks.{i}."
        for name in ("ln0", "ln1", "ln2") if i == 0 else ("ln1", "ln2"):
            norm(at + name)
        for letter in "rwkvag":
            tensors[f"{at}att.x_{letter}"] = drawn(1, 1, d)
        for letter, rank in (("w", rw), ("a", ra), ("v", rv), ("g", rg)):
            if letter == "v" and i == 0 and not first_value:
                continue
            if letter != "g":
                tensors[f"{at}att.{letter}0"] = drawn(1, 1, d)
            tensors[f"{at}att.{letter}1"], tensors[f"{at}att.{letter}2"] = drawn(d, rank), drawn(rank, d)
        tensors[f"{at}att.k_k"], tensors[f"{at}att.k_a"] = 1 + drawn(1, 1, d), 1 + drawn(1, 1, d)
        tensors[f"{at}att.r_k"] = drawn(d // d_head, d_head)
        for name in ("receptance", "key", "value", "output"):
            tensors[f"{at}att.{name}.weight"] = drawn(d, d, std=d**-0.5)
        norm(f"{at}att.ln_x")
        tensors[f"{at}ffn.x_k"] = drawn(1, 1, d)
        tensors[f"{at}ffn.key.weight"] = drawn(d_hidden, d, std=d**-0.5)
        tensors[f"{at}ffn.value.weight"] = drawn(d, d_hidden, std=d_hidden**-0.5)
    return tensors


def fla_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same model by fla's names and shapes, with its own table of them."""
    maps = {"receptance": "r_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj", "ln_x": "g_norm"}
    found = {}
    for name, tensor in tensors.items():
        if name.startswith("blocks.0.att.v") and name[-1] in "012":
            continue
        if name.startswith("blocks"):
            _, i, part, *rest = name.split(".")
            part = {"att": "attn", "ln0": "pre_norm", "ln1": "attn_norm", "ln2": "ffn_norm"}.get(part, part)
            if part == "attn" and rest[0] in maps:
                rest[0] = maps[rest[0]]
            elif part == "attn" and rest[0][-1] in "012":
                letter, number = rest[0]
                rest = [f"{letter}_lora.lora.{('2.bias', '0.weight', '2.weight')[int(number)]}"]
                tensor = tensor.mT if number in "12" else tensor
            if tensor.ndim == 3 and not (part == "attn" and rest[0].startswith("x_")):
                tensor = tensor.flatten()
            name = ".".join(["model.layers", i, part, *rest])
        else:
            ends = {"emb.weight": "model.embeddings.weight", "head.weight": "lm_head.weight"}
            name = ends.get(name, name.replace("ln_out", "model.norm"))
        found[name] = tensor.contiguous()
    return found


def fla_config(shape: str, **fields: Any) -> dict[str, Any]:
    n_layers, d, d_head, d_hidden, (rw, ra, rv, rg) = SHAPES[shape]
    ranks = {"decay_low_rank_dim": rw, "a_low_rank_dim": ra, "v_low_rank_dim": rv, "gate_low_rank_dim": rg}
    sizes = {"hidden_size": d, "head_dim": d_head, "intermediate_size": d_hidden, "num_hidden_layers": n_layers}
    plain = {"model_type": "rwkv7", "vocab_size": VOCABULARY, "value_dim": [d] * n_layers, "hidden_act": "sqrelu"}
    more = {"norm_first": True, "norm_bias": True, "attn": None, "tie_word_embeddings": False, "hidden_ratio": 4.0}
    return {**plain, **sizes, **ranks, **more, **fields}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def logits(tensors: dict[str, Tensor], tokens: list[int], head_eps: float) -> np.ndarray:
    """The published model, a token at a time: a state of last inputs and one matrix a head."""
    p = {name: tensor.numpy().squeeze() for name, tensor in tensors.items()}
    n_layers = sum(name.endswith("ffn.x_k") for name in p)
    n_heads, d_head = tensors["blocks.0.att.r_k"].shape
    d = n_heads * d_head

    def norm(x: Any, name: str) -> Any:
        return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]

    last = np.zeros((n_layers, 2, d))
    S = np.zeros((n_layers, n_heads, d_head, d_head))
    out = []
    for token in tokens:
        x, v_first = norm(p["emb.weight"][token], "blocks.0.ln0"), None
        for i in range(n_layers):
            at, ffn = f"blocks.{i}.att.", f"blocks.{i}.ffn."
            u = norm(x, f"blocks.{i}.ln1")
            r_in, w_in, k_in, v_in, a_in, g_in = (u + p[f"{at}x_{c}"] * (last[i, 0] - u) for c in "rwkvag")
            last[i, 0] = u

            def through(letter: str, inner: Any, u: Any, at: str = at) -> Any:
                one, two = (p[f"{at}{letter}{n}"].reshape(tensors[f"{at}{letter}{n}"].shape) for n in (1, 2))
                return inner(u @ one) @ two

            r, k, v = p[f"{at}receptance.weight"] @ r_in, p[f"{at}key.weight"] @ k_in, p[f"{at}value.weight"] @ v_in
            w = np.exp(-np.exp(-0.5) * sigmoid(p[f"{at}w0"] + through("w", np.tanh, w_in)))
            a = sigmoid(p[f"{at}a0"] + through("a", lambda m: m, a_in))
            g = through("g", sigmoid, g_in)
            if v_first is None:
                v_first = v
            else:
                v = v + (v_first - v) * sigmoid(p[f"{at}v0"] + through("v", lambda m: m, v_in))
            kappa, k = k * p[f"{at}k_k"], k * (1 + (a - 1) * p[f"{at}k_a"])
            y = np.zeros(d)
            for h in range(n_heads):
                of = slice(h * d_head, (h + 1) * d_head)
                unit = kappa[of] / max(np.linalg.norm(kappa[of]), 1e-12)
                S[i, h] = S[i, h] @ (np.diag(w[of]) - np.outer(unit, unit * a[of])) + np.outer(v[of], k[of])
                o = S[i, h] @ r[of]
                o = (o - o.mean()) / np.sqrt(o.var() + head_eps) * p[f"{at}ln_x.weight"][of] + p[f"{at}ln_x.bias"][of]
                y[of] = o + (r[of] * k[of] * tensors[f"{at}r_k"].numpy()[h]).sum() * v[of]
            x = x + p[f"{at}output.weight"] @ (y * g)
            u = norm(x, f"blocks.{i}.ln2")
            inner = p[f"{ffn}key.weight"] @ (u + p[f"{ffn}x_k"] * (last[i, 1] - u))
            last[i, 1] = u
            x = x + p[f"{ffn}value.weight"] @ np.maximum(inner, 0) ** 2
        out.append(p["head.weight"] @ norm(x, "ln_out"))
    return np.stack(out)


def tokens_of(n: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (n,), generator=torch.Generator().manual_seed(seed))


def check(model: Any, tensors: dict[str, Tensor], head_eps: float) -> None:
    """Whole, in pieces, padded beside another row, packed, and with a state that goes back."""
    assert isinstance(model, LanguageModel)
    rows = [tokens_of(n, n) for n in (19, 11)]
    truths = [torch.from_numpy(logits(tensors, row.tolist(), head_eps)) for row in rows]
    padded, lengths = torch.zeros(2, 19, dtype=torch.int64), torch.tensor([19, 11])
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    with torch.no_grad():
        state, pieces = model.initial_state(1), []
        for piece in rows[0][None].split([7, 1, 1, 10], 1):
            y, state = model(piece, state)
            pieces.append(y)
        beside = model(padded, lengths=lengths)[0]
        starts = torch.zeros(1, 30, dtype=torch.bool)
        starts[0, 19] = True
        packed = model(torch.cat(rows)[None], starts=starts)[0][0]
        found = [model(rows[0][None])[0][0], torch.cat(pieces, 1)[0], beside[0], packed[:19]]
        _, back = model(rows[0][None], sw.rewindable(model.initial_state(1), last=4))
        found.append(torch.cat([truths[0][:-3], model(rows[0][None, -3:], back.at(3))[0][0]]))
    for logit in found:
        torch.testing.assert_close(logit, truths[0], atol=1e-9, rtol=1e-9)
    for logit in (beside[1, :11], packed[19:]):
        torch.testing.assert_close(logit, truths[1], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_reads_blinkdl_files(shape: str, suffix: str, tmp_path: Path) -> None:
    tensors, file = blinkdl(shape, first_value=suffix == "pth"), tmp_path / f"RWKV-x070.{suffix}"
    if suffix == "pth":
        torch.save(tensors, file)
    else:
        save_file(tensors, file)
    check(sw.load(file), tensors, 64e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_float32_and_greedy_tokens(shape: str, tmp_path: Path) -> None:
    """256 tokens that ``generate`` writes are those of the published equations; float32 is as near as it can be."""
    tensors = blinkdl(shape)
    torch.save(tensors, tmp_path / "RWKV-x070.pth")
    model = sw.load(tmp_path / "RWKV-x070.pth")
    prompt = tokens_of(5)
    written = [int(token.ids) for token in sw.generate(model, prompt[None], max_new_tokens=256, temperature=0)]
    truth = torch.from_numpy(logits(tensors, [*prompt.tolist(), *written], 64e-5))
    assert truth[4:-1].argmax(1).tolist() == written
    narrow = sw.load(tmp_path / "RWKV-x070.pth", dtype=torch.float32)
    with torch.no_grad():
        found = narrow(torch.tensor([[*prompt.tolist(), *written]]))[0][0]
    assert (found - truth).abs().max() < 1e-5 * truth.abs().max()


@pytest.mark.parametrize("shape", SHAPES)
def test_writes_what_blinkdl_reads(shape: str, tmp_path: Path) -> None:
    tensors = blinkdl(shape, first_value=False)
    torch.save(tensors, tmp_path / "a.pth")
    save_as(sw.load(tmp_path / "a.pth"), tmp_path / "written", "rwkv")
    assert [file.name for file in (tmp_path / "written").iterdir()] == ["model.pth"]
    again = torch.load(tmp_path / "written" / "model.pth", weights_only=True)
    assert again.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(again[name], tensor), name


@pytest.mark.parametrize("shape", SHAPES)
def test_reads_and_writes_folders_of_fla(shape: str, tmp_path: Path) -> None:
    tensors, d_head = blinkdl(shape), SHAPES[shape][2]
    theirs = fla_names(tensors)
    (tmp_path / "config.json").write_text(json.dumps(fla_config(shape, norm_eps=1e-5)))
    save_file(theirs, tmp_path / "model.safetensors")
    model = sw.load(tmp_path)
    check(model, tensors, 1e-5 * d_head)
    save_as(model, tmp_path / "written", "fla")
    again = load_file(tmp_path / "written" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in again.items()} == {name: t.shape for name, t in theirs.items()}
    assert all(torch.equal(again[name], tensor) for name, tensor in theirs.items())
    said, ours = json.loads((tmp_path / "written" / "config.json").read_text()), fla_config(shape)
    assert {name: said[name] for name in said.keys() & ours.keys()} == {name: ours[name] for name in said.keys() & ours}


def test_reads_the_first_version_of_fla(tmp_path: Path) -> None:
    tensors = blinkdl("small")
    theirs = fla_names(tensors)
    for i in range(3):
        parts = [theirs.pop(f"model.layers.{i}.attn.x_{letter}").flatten() for letter in "rwkvag"]
        theirs[f"model.layers.{i}.attn.x_x"] = torch.stack(parts)
    (tmp_path / "config.json").write_text(json.dumps(fla_config("small")))
    save_file(theirs, tmp_path / "model.safetensors")
    check(sw.load(tmp_path), tensors, 8e-5)


def test_without_the_norm_of_the_embedding(tmp_path: Path) -> None:
    theirs = {name: tensor for name, tensor in fla_names(blinkdl("small")).items() if "pre_norm" not in name}
    (tmp_path / "config.json").write_text(json.dumps(fla_config("small", norm_first=False)))
    save_file(theirs, tmp_path / "model.safetensors")
    model: Any = sw.load(tmp_path)
    assert model.config.embedding_norm is None
    with pytest.raises(CheckpointError, match="norms its embedding"):
        save_as(model, tmp_path / "written", "rwkv")


FIELDS: dict[str, dict[str, Any]] = {
    "attn={'layers': \\[1\\]} is not supported": {"attn": {"layers": [1]}},
    "hidden_act='relu' is not supported": {"hidden_act": "relu"},
    "norm_bias=False is not supported": {"norm_bias": False},
    "hidden_size=32 is not supported; expected 16": {"hidden_size": 32},
    "value_dim=\\[16, 16, 32\\] is not supported": {"value_dim": [16, 16, 32]},
    "v_low_rank_dim=5 is not supported; expected 4": {"v_low_rank_dim": 5},
    "norm_first=False is not supported": {"norm_first": False},
}


@pytest.mark.parametrize("message", FIELDS)
def test_refuses_what_a_config_says_otherwise(message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fla_config("small", **FIELDS[message])))
    save_file(fla_names(blinkdl("small")), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        sw.load(tmp_path)


def test_refuses_tensors_that_do_not_fit(tmp_path: Path) -> None:
    cases: list[tuple[str, Any, str]] = [
        ("blocks.1.att.w1", None, "the tensor blocks.1.att.w1 is missing"),
        ("blocks.1.att.v1", None, "the tensor blocks.1.att.v1 is missing"),
        ("blocks.2.att.x_r", torch.zeros(1, 1, 3, dtype=torch.float64), "x_r has shape"),
        ("blocks.1.ffn.enn.weight", torch.zeros(2), "blocks.1.ffn.enn.weight does not belong"),
        ("head.weight", None, "the tensor head.weight is missing"),
        ("blocks.0.att.r_k", torch.zeros(16, dtype=torch.float64), "expected 2 axes"),
    ]
    for i, (name, tensor, message) in enumerate(cases):
        tensors = blinkdl("small")
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
        torch.save(tensors, tmp_path / f"{i}.pth")
        with pytest.raises(CheckpointError, match=message):
            sw.load(tmp_path / f"{i}.pth")


TIME = sw.RWKV7Config(d_head=4, decay_rank=2, rate_rank=2, gate_rank=2, norm_eps=64e-5 / 4)
CHANNELS, SECOND = sw.ChannelMixConfig(), replace(TIME, value_rank=2)


def model_of(*mixers: Any, **fields: Any) -> LanguageModel:
    layers = tuple(mixer if isinstance(mixer, sw.BlockConfig) else layer(mixer) for mixer in mixers)
    plain = {"norm": "layer", "embedding_norm": "layer", "tie_embeddings": False}
    return sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=layers, **plain | fields).build()  # type: ignore[arg-type]


def layer(mixer: Any, **fields: Any) -> sw.BlockConfig:
    return sw.BlockConfig(mixer=mixer, **{"norm": "layer"} | fields)


UNWRITTEN = {
    "is not": lambda: model_of(TIME, TIME),
    "the last layer has none": lambda: model_of(TIME, CHANNELS, SECOND),
    "tie_embeddings": lambda: model_of(TIME, CHANNELS, tie_embeddings=True),
    "value_rank is 2 there and None here": lambda: model_of(TIME, CHANNELS, SECOND, CHANNELS, TIME, CHANNELS),
    "branch_scale": lambda: model_of(layer(TIME, branch_scale=0.5), CHANNELS),
    "mlp": lambda: model_of(layer(TIME, mlp=sw.MLPConfig()), CHANNELS),
    "norm_eps": lambda: model_of(layer(TIME, norm_eps=1e-3), CHANNELS),
    "logit_cap": lambda: model_of(TIME, CHANNELS, logit_cap=3.0),
    "expand": lambda: model_of(TIME, CHANNELS, SECOND, sw.ChannelMixConfig(expand=2)),
}


@pytest.mark.parametrize("message", UNWRITTEN)
def test_does_not_write_other_models(message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        save_as(UNWRITTEN[message](), tmp_path / "model", "rwkv")
    assert not list(tmp_path.iterdir())


def test_fla_has_tied_heads(tmp_path: Path) -> None:
    first, second = (replace(mixer, norm_eps=1e-5) for mixer in (TIME, SECOND))
    model = model_of(first, CHANNELS, second, CHANNELS, tie_embeddings=True).eval()
    save_as(model, tmp_path / "model", "fla")
    tokens = tokens_of(7)[None] % 9
    with torch.no_grad():
        assert torch.equal(sw.load(tmp_path / "model")(tokens)[0], model(tokens)[0])


def test_a_layer_that_mixes_values_needs_one_that_gives_them() -> None:
    with pytest.raises(ConfigError, match=r"layers\[1\] mixes its values .* set value_rank=None for the first RWKV-7"):
        model_of(CHANNELS, SECOND)
