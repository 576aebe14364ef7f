"""transformers' GPT-2, GPT-Neo, OPT, GPT-NeoX: files that the library saved, its logits and tokens, the way back."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.decoder_configs import CLASSES
from statewise.checkpoints.convert.decoder_written import part_of
from statewise.decoding import why_not
from statewise.errors import CheckpointError

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

V = {"vocab_size": 67}
GPT2 = V | {"n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 320}
NEO = V | {"hidden_size": 24, "num_layers": 4, "num_heads": 4, "window_size": 7, "max_position_embeddings": 320}
NEO |= {"attention_types": [[["global", "local"], 2]]}
OPT = V | {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "ffn_dim": 40}
OPT |= {"max_position_embeddings": 320, "pad_token_id": 1}
NEOX = V | {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
NEOX |= {"max_position_embeddings": 320}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt2, options": (
        "gpt2",
        GPT2
        | {"n_inner": 20, "activation_function": "relu", "scale_attn_by_inverse_layer_idx": True}
        | {"tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
    ),
    "gpt2, unscaled": ("gpt2", GPT2 | {"scale_attn_weights": False, "activation_function": "silu"}),
    "neo": ("gpt_neo", NEO),
    "neo, options": (
        "gpt_neo",
        NEO
        | {"attention_types": [[["local"], 1], [["global"], 3]], "intermediate_size": 30, "window_size": 1}
        | {"activation_function": "gelu", "tie_word_embeddings": False},
    ),
    "opt": ("opt", OPT),
    "opt, norms after": ("opt", OPT | {"do_layer_norm_before": False}),
    "opt, projected": ("opt", OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 10}),
    "opt, options": (
        "opt",
        OPT
        | {"enable_bias": False, "_remove_final_layer_norm": True, "activation_function": "gelu"}
        | {"word_embed_proj_dim": 30, "tie_word_embeddings": False},
    ),
    "neox": ("gpt_neox", NEOX),
    "neox, options": (
        "gpt_neox",
        NEOX
        | {"use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 1.0}}
        | {"tie_word_embeddings": True},
    ),
}
FAMILIES = ["gpt2", "neo", "opt, norms after", "opt, projected", "neox"]


def build(name: str) -> Any:
    """A model of that library whose parameters all matter: its own are zeros and ones in places, and small."""
    kind, fields = MODELS[name]
    torch.manual_seed(0)
    plain = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.AutoConfig.for_model(kind, **plain, **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                gain = 6 if "wpe" in key or "positions" in key else 2  # or the greedy tokens soon repeat
                parameter.normal_(std=gain * min(parameter.shape) ** -0.5)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decoders")


@cache
def saved(name: str, folder: Path) -> Path:
    target = folder / name.replace(", ", "-").replace(" ", "-")
    build(name).save_pretrained(target)
    return target


def reference(path: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()


def ids(*shape: int) -> Tensor:
    return torch.randint(2, 67, shape, generator=torch.Generator().manual_seed(1))


def far(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_are_equal(name: str, folder: Path) -> None:
    path, tokens = saved(name, folder), ids(2, 45)
    theirs, model = reference(path), sw.load(path)
    expected = theirs(tokens).logits
    assert far(model(tokens)[0], expected) < 1e-5
    logits, state = [], model.initial_state(2)
    for piece in tokens.split([9, 1, 20, 1, 1, 13], 1):
        y, state = model(piece, state)
        logits.append(y)
    assert far(torch.cat(logits, 1), expected) < 1e-5


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_padded_and_packed_rows_equal_single_ones(name: str, folder: Path) -> None:
    model, theirs = sw.load(saved(name, folder)), reference(saved(name, folder))
    tokens, lengths = ids(3, 30), torch.tensor([30, 11, 1])
    single = [theirs(tokens[row : row + 1, :n]).logits[0] for row, n in enumerate(lengths.tolist())]
    padded, state = model(
        tokens.masked_fill(torch.arange(30) >= lengths[:, None], 10**6), model.initial_state(3), lengths=lengths
    )
    for row, n in enumerate(lengths.tolist()):
        assert far(padded[row, :n], single[row]) < 1e-5
    assert state.position.tolist() == lengths.tolist()
    packed = torch.cat([tokens[row, :n] for row, n in enumerate(lengths.tolist())])[None]
    starts = torch.zeros(1, 42, dtype=torch.bool)
    starts[0, [0, 30, 41]] = True
    logits, _ = model(packed, starts=starts)
    assert far(logits[0], torch.cat(single)) < 1e-5


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_the_same_greedy_tokens(name: str, folder: Path) -> None:
    """256 of them, by the step in C, which each of these has, and without it."""
    path, prompt = saved(name, folder), ids(1, 9)
    expected = reference(path).generate(prompt, max_new_tokens=256, do_sample=False)[0, 9:]
    assert len(expected) == 256
    model = sw.load(path)
    assert why_not(model) is None or "C kernels" in str(why_not(model))
    made = sw.generate(model, prompt, max_new_tokens=256, temperature=0)
    assert torch.cat([token.ids for token in made]).equal(expected)
    logits, state = model(prompt, model.initial_state(1))
    for token in expected:
        assert logits[0, -1].argmax() == token
        logits, state = model(token.reshape(1, 1), state)
    assert len(expected.unique()) >= 3


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_written_back(name: str, folder: Path, tmp_path: Path) -> None:
    path = saved(name, folder)
    model = sw.load(path)
    target = save_as(model, tmp_path / "again", "transformers")
    before, after = (load_file(each / "model.safetensors") for each in (path, target))
    assert before.keys() == after.keys()
    for key, tensor in before.items():
        assert torch.equal(tensor, after[key]), key
    assert sw.load(target).config == model.config
    theirs = json.loads((target / "config.json").read_text())
    assert theirs["architectures"] == [CLASSES[MODELS[name][0]]]
    tokens = ids(2, 20)
    assert torch.equal(reference(target)(tokens).logits, reference(path)(tokens).logits)


@pytest.mark.parametrize("name", FAMILIES)
def test_files_of_other_versions(name: str, folder: Path, tmp_path: Path) -> None:
    """Of the inner model alone, with masks and tables as buffers, heads under the old name or twice."""
    path = saved(name, folder)
    kind, tensors = MODELS[name][0], load_file(path / "model.safetensors")
    prefix = {"gpt2": "transformer.", "gpt_neo": "transformer.", "opt": "model.", "gpt_neox": ""}[kind]
    older = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    if kind == "gpt2":
        older |= {"h.0.attn.bias": mask.float(), "h.0.attn.masked_bias": torch.tensor(-1e9)}
        older["lm_head.weight"] = older["wte.weight"].clone()
    if kind == "gpt_neo":
        older |= {"h.1.attn.attention.bias": mask.to(torch.uint8), "h.1.attn.attention.masked_bias": torch.tensor(-1e9)}
    if kind == "gpt_neox":
        old, new = "embed_out.weight", "lm_head.weight"
        older[new if old in older else old] = older.pop(old if old in older else new)
        older |= {
            "gpt_neox.layers.0.attention.bias": mask,
            "gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e9),
        }
        older["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] = torch.tensor([1.0])
    (tmp_path / "config.json").write_text((path / "config.json").read_text())
    save_file(older, tmp_path / "model.safetensors")
    tokens = ids(1, 9)
    assert torch.equal(sw.load(tmp_path)(tokens)[0], sw.load(path)(tokens)[0])


ATTENTION = sw.AttentionConfig(n_heads=2, positions=None, bias=True)
BLOCK = sw.BlockConfig(mixer=ATTENTION, mlp=sw.MLPConfig(), norm="layer")
NEO_LIKE = replace(ATTENTION, bias=False, output_bias=True, scale=1.0)
ROTARY = replace(ATTENTION, positions="rotary")
UNWRITTEN: dict[str, tuple[dict[str, Any], str]] = {
    "no mlp": ({"layers": (ATTENTION,)}, "has an MLP in each layer"),
    "rms": ({"layers": (replace(BLOCK, norm="rms"),)}, "norm='rms'"),
    "rms at the end": ({"norm": "rms"}, "norm='rms'"),
    "gated": ({"layers": (replace(BLOCK, mlp=sw.MLPConfig(gated=True)),)}, "gated=True"),
    "groups": ({"layers": (replace(BLOCK, mixer=replace(ATTENTION, n_kv_heads=1)),)}, "as many key heads"),
    "wide heads": ({"layers": (replace(BLOCK, mixer=replace(ATTENTION, d_head=12)),)}, "as many key heads"),
    "window": ({"layers": (replace(BLOCK, mixer=replace(ATTENTION, window=4)),)}, "no window of attention"),
    "taps": ({"layers": (replace(BLOCK, mixer=replace(ATTENTION, n_taps=4)),)}, "n_taps=4"),
    "scale": ({"layers": (replace(BLOCK, mixer=replace(ATTENTION, scale=0.3)),)}, "scale=0.3"),
    "layers": ({"layers": (BLOCK, replace(BLOCK, mlp=sw.MLPConfig(expand=2)))}, r"layers\[1\] differs"),
    "no bias": ({"layers": (replace(BLOCK, mixer=replace(ATTENTION, bias=False)),)}, "bias=False"),
    "gate": ({"layers": (replace(BLOCK, mixer=replace(BLOCK.mixer, gate=True)),)}, "AttentionConfig.gate"),
    "qk_norm": ({"layers": (replace(BLOCK, mixer=replace(BLOCK.mixer, qk_norm="head")),)}, "AttentionConfig.qk_norm"),
    "parallel": ({"layers": (replace(BLOCK, placement="parallel"),)}, "placement='parallel'"),
    "two windows": (
        {"layers": tuple(replace(BLOCK, mixer=replace(NEO_LIKE, window=w)) for w in (3, 4))},
        "one window for all local layers",
    ),
    "scaled Neo": ({"layers": (replace(BLOCK, mixer=replace(NEO_LIKE, scale=None)),)}, "scale=1"),
    "OPT's offset": ({"position_offset": 3}, "position_offset=3"),
    "OPT's norm": ({"position_offset": 2, "layers": (replace(BLOCK, placement="post"),)}, "placement='post'"),
    "OPT's maps": ({"position_offset": 2, "d_embedding": 8}, "d_embedding differs from d_model"),
    "no positions": ({"max_positions": None}, "positions=None"),
    "NeoX after": (
        {"max_positions": None, "layers": (replace(BLOCK, mixer=ROTARY, placement="post"),)},
        "placement='post'",
    ),
    "hybrid": ({"layers": (BLOCK, sw.MambaConfig(d_state=4))}, "has no layer of MambaConfig"),
}


@pytest.mark.parametrize("case", UNWRITTEN)
def test_what_is_not_written(case: str, tmp_path: Path) -> None:
    fields, message = UNWRITTEN[case]
    plain = {"vocab_size": 9, "d_model": 8, "layers": (BLOCK,), "norm": "layer", "max_positions": 16}
    model = sw.LanguageModelConfig(**(plain | fields)).build()
    with pytest.raises(CheckpointError, match=message) as error:
        save_as(model, tmp_path / "theirs", "transformers")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "theirs").exists()


def test_the_part_of_a_head_that_is_turned() -> None:
    for d_head in range(2, 200):
        for d_rotary in range(2, d_head + 1, 2):
            assert int(d_head * part_of(d_rotary, d_head)) == d_rotary


def test_opts_tokenizer_begins_every_text(folder: Path, tmp_path: Path) -> None:
    """GPT-2's vocabulary and merges, with special tokens of its own that other files name."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from statewise.cli.model_folder import open_model

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = "the state of a system"
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=special, initial_alphabet=list("Ġ" + letters))
    bpe.train_from_iterator([letters] * 20, trainer)
    path = saved("opt", folder)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((path / name).read_bytes())
    made = json.loads(bpe.to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(made["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in made["merges"]))
    ends = {"bos_token": {"content": "</s>"}, "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(ends | {"add_bos_token": True}))
    tokenizer = open_model(tmp_path).tokenizer
    plain = bpe.encode("the state", add_special_tokens=False).ids
    assert len(plain) < len("the state")
    assert list(tokenizer.encode_published("the state")) == [2, *plain]
    assert list(tokenizer.encode("the state")) == plain
    assert tokenizer.document_token == 2
    assert tokenizer.conventions.end_ids == (2,)
    assert tokenizer.decode(plain) == "the state"


@pytest.mark.parametrize("name", FAMILIES)
def test_the_command_line_takes_the_folder(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``info``, ``generate``, ``evaluate`` and ``convert``, with the bytes as a tokenizer."""
    from statewise.cli import run

    def said(*words: str) -> str:
        assert run([*words]) == 0
        return capsys.readouterr().out

    kind, fields = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **(fields | {"vocab_size": 264}))
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "theirs")
    (tmp_path / "text.txt").write_text("the state of a system, and of another one. " * 9)
    theirs, byte = str(tmp_path / "theirs"), ("--tokenizer", "bytes")
    assert "AttentionConfig" in said("info", theirs, "--json")
    assert said("generate", theirs, *byte, "--prompt", "the", "--max-new-tokens", "5", "--temperature", "0")
    result = json.loads(said("evaluate", theirs, *byte, "--text-file", str(tmp_path / "text.txt"), "--json"))
    assert result["perplexity_per_token"] > 1
    said("convert", theirs, str(tmp_path / "ours"), *byte)
    tokens = ids(1, 9)
    assert torch.equal(sw.load(tmp_path / "ours")(tokens)[0], sw.load(theirs)(tokens)[0])
