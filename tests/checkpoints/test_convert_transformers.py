"""transformers' Mamba, Mamba-2, Falcon-Mamba: files that the library saved, its logits and tokens, its mistakes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import statewise as sw
from statewise.checkpoints.convert import mamba_ssm
from statewise.checkpoints.convert import transformers as format
from statewise.checkpoints.empty import build_empty, fill
from statewise.errors import CheckpointError
from statewise.models.language_model import LanguageModel, LanguageModelConfig

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 37, "state_size": 8}
MAMBA2 = SMALL | {"num_heads": 4, "head_dim": 8, "n_groups": 1}
BIASED = {"use_bias": True, "use_conv_bias": False, "conv_kernel": 3, "layer_norm_epsilon": 1e-3}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("mamba", SMALL),
    "mamba, options": ("mamba", SMALL | BIASED | {"time_step_rank": 5, "expand": 3, "tie_word_embeddings": False}),
    "mamba2": ("mamba2", MAMBA2),
    "mamba2, options": (
        "mamba2",
        MAMBA2 | BIASED | {"n_groups": 2, "chunk_size": 8, "tie_word_embeddings": True, "time_step_limit": (0.05, 0.4)},
    ),
    "falcon": ("falcon_mamba", SMALL),
    "falcon, options": ("falcon_mamba", SMALL | BIASED | {"mixer_rms_eps": 0.1, "tie_word_embeddings": False}),
}


def build(name: str, **options: Any) -> Any:
    """A model of that library whose parameters all matter: its own are zeros and ones in places, and small."""
    kind, fields = MODELS[name]
    torch.manual_seed(0)
    plain = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    model = getattr(transformers, format._CLASSES[kind])(
        transformers.AutoConfig.for_model(kind, **plain, **fields, **options)
    ).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1 or key.endswith("A_log"):
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                gain = 4 if "out_proj" in key else 1.5
                parameter.normal_(std=gain * parameter.shape[-1] ** -0.5)
    return model


@cache
def saved(name: str, folder: Path) -> Path:
    target = folder / name.replace(", ", "-")
    build(name).save_pretrained(target)
    return target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformers")


def files(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")


def loaded(path: Path, dtype: torch.dtype | None = None) -> LanguageModel:
    ours, mine = format.read(*files(path))
    model = build_empty(ours)
    fill(model, mine.items(), dtype)
    assert isinstance(model, LanguageModel)
    return model.eval()


@contextmanager
def in_float64() -> Iterator[None]:
    """That library computes in float32 inside a float64 model; here what it asks to be float32 is float64."""
    with pytest.MonkeyPatch.context() as patch:
        to = Tensor.to

        def wider(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
            return to(self, *args, **kwargs)

        patch.setattr(Tensor, "float", Tensor.double)
        patch.setattr(Tensor, "to", wider)
        yield


def ids(*shape: int) -> Tensor:
    return torch.randint(0, 37, shape, generator=torch.Generator().manual_seed(1))


def far(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((actual - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_are_equal(name: str, folder: Path) -> None:
    path, tokens = saved(name, folder), ids(2, 45)
    reference = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    assert far(loaded(path)(tokens)[0], reference(tokens).logits) < 1e-5
    with in_float64():
        expected = reference.double()(tokens).logits
    model = loaded(path, torch.float64)
    assert far(model(tokens)[0], expected) < 1e-10
    logits, state = [], model.initial_state(2)
    for piece in tokens.split([9, 1, 20, 1, 1, 13], 1):
        y, state = model(piece, state)
        logits.append(y)
    assert far(torch.cat(logits, 1), expected) < 1e-10


@pytest.mark.parametrize("name", ["mamba", "mamba2", "falcon, options"])
@torch.no_grad()
def test_the_same_greedy_tokens(name: str, folder: Path) -> None:
    path, prompt = saved(name, folder), ids(1, 9)
    reference = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    expected = reference.generate(prompt, max_new_tokens=512, do_sample=False)[0, 9:]
    tokens = torch.cat([token.ids for token in sw.generate(loaded(path), prompt, max_new_tokens=512, temperature=0)])
    assert len(expected) == 512
    assert tokens.equal(expected)
    assert len(tokens.unique()) > 20


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_several_tokens_from_a_state(name: str, folder: Path) -> None:
    """Theirs begins the system anew where it reads several tokens from a state (Mamba-2 does not); ours goes on."""
    path, tokens = saved(name, folder), ids(1, 30)
    reference = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    model = loaded(path)
    whole = reference(tokens).logits[:, 20:]
    first = reference(tokens[:, :20], use_cache=True)
    theirs = reference(tokens[:, 20:], cache_params=first.cache_params, use_cache=True).logits
    assert (far(theirs, whole) > 1e-2) == ("mamba2" not in name)
    _, state = model(tokens[:, :20], model.initial_state(1))
    assert far(model(tokens[:, 20:], state)[0], whole) < 1e-5


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_padding_with_biases(name: str, folder: Path) -> None:
    """Theirs, padded on the left: with a bias, the convolution of the first tokens meets it in place of zeros.

    Ours, padded on the right, with any numbers there: the row's own logits and state.
    """
    path, tokens, n_padding = saved(name, folder), ids(1, 12), 5
    reference = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    alone = reference(tokens).logits
    padding = torch.zeros(1, n_padding, dtype=torch.int64)
    mask = torch.cat([torch.zeros_like(padding), torch.ones_like(tokens)], 1)
    theirs = reference(torch.cat([padding, tokens], 1), attention_mask=mask).logits[:, n_padding:]
    assert (far(theirs, alone) > 1e-3) == ("options" in name)
    model = loaded(path)
    lengths = torch.tensor([12])
    ours, state = model(torch.cat([tokens, padding], 1), model.initial_state(1), lengths=lengths)
    assert far(ours[:, :12], alone) < 1e-5
    following = model(ids(1, 3), state)[0]
    assert far(following, model(torch.cat([tokens, ids(1, 3)], 1))[0][:, 12:]) < 1e-5


@torch.no_grad()
def test_the_limit_of_dt_holds_in_every_step(folder: Path) -> None:
    """Theirs leaves ``time_step_limit`` out where it reads one token from a state."""
    path, tokens = saved("mamba2, options", folder), ids(1, 8)
    reference = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    whole = reference(tokens).logits[:, 7:]
    first = reference(tokens[:, :7], use_cache=True)
    assert far(reference(tokens[:, 7:], cache_params=first.cache_params, use_cache=True).logits, whole) > 1e-3
    model = loaded(path)
    _, state = model(tokens[:, :7], model.initial_state(1))
    assert far(model(tokens[:, 7:], state)[0], whole) < 1e-5


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_round_trips_are_bit_equal(name: str, folder: Path, tmp_path: Path) -> None:
    """Theirs, ours, theirs; the library reads what was written, and means the same by it."""
    config, tensors = files(saved(name, folder))
    ours, mine = format.read(config, tensors)
    theirs, back = format.write(ours, mine)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[key], tensor) for key, tensor in tensors.items())
    assert format.from_theirs(theirs) == ours
    (tmp_path / "config.json").write_text(json.dumps(theirs, allow_nan=False))
    save_file(
        {key: tensor.contiguous() for key, tensor in back.items()}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    first = transformers.AutoModelForCausalLM.from_pretrained(saved(name, folder)).eval()
    assert far(again(ids(1, 20)).logits, first(ids(1, 20)).logits) < 1e-6  # its chunks have another length


@pytest.mark.parametrize("name", ["mamba", "mamba2", "falcon"])
@torch.no_grad()
def test_bfloat16(name: str, tmp_path: Path) -> None:
    """The tensors as they are stored; the logits of a float32 model with these numbers."""
    build(name).bfloat16().save_pretrained(tmp_path)
    config, tensors = files(tmp_path)
    _, mine = format.read(config, tensors)
    assert {tensor.dtype for tensor in mine.values()} == {torch.bfloat16}
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert far(loaded(tmp_path, torch.float32)(ids(2, 20))[0], reference(ids(2, 20)).logits) < 1e-5
    half = loaded(tmp_path, torch.bfloat16)
    assert half.blocks[0].mixer.dynamics.A_log.dtype == torch.float32
    assert far(half(ids(2, 20))[0].float(), reference(ids(2, 20)).logits) < 0.05


@pytest.mark.parametrize("name", ["mamba, options", "mamba2", "falcon"])
def test_each_tensor_is_used_once_and_refused_by_name(name: str, folder: Path) -> None:
    config, tensors = files(saved(name, folder))
    for key, tensor in tensors.items():
        if ".layers.0." in key:  # the other layer's are there in the same way
            continue
        others = {other: value for other, value in tensors.items() if other != key}
        for changed, words in (
            (others, (key, "missing")),
            (others | {f"{key}2": tensor}, (key, f"{key}2")),
            (tensors | {f"{key}2": tensor}, (f"{key}2",)),
            (tensors | {key: tensor[:-1]}, (key, "shape")),
        ):
            with pytest.raises(CheckpointError) as caught:
                format.read(config, changed)
            assert all(word in str(caught.value) for word in words), caught.value


def test_older_files(folder: Path) -> None:
    """The embedding's old name, a tied head that is there, fields of other versions, and defaults left out."""
    config, tensors = files(saved("mamba", folder))
    expected, mine = format.read(config, tensors)
    old = dict(tensors)
    old["backbone.embedding.weight"] = old.pop("backbone.embeddings.weight")
    old["lm_head.weight"] = old["backbone.embedding.weight"].clone()
    legacy = {"d_model": 16, "n_layer": 2, "ssm_cfg": {}, "rms_norm": True, "torch_dtype": "float32", **config}
    assert format.recognises(legacy, frozenset(old))
    assert not mamba_ssm.recognises(legacy, frozenset(old))
    ours, again = format.read(legacy, old)
    assert ours == expected
    assert all(torch.equal(again[key], tensor) for key, tensor in mine.items())
    least = format.from_theirs({"model_type": "mamba"})
    assert (least.d_model, len(least.layers), least.vocab_size, least.tie_embeddings) == (768, 32, 50280, True)
    for kind in ("mamba", "mamba2", "falcon_mamba"):
        full = json.loads(transformers.AutoConfig.for_model(kind).to_json_string(use_diff=False))
        assert format.from_theirs(full) == format.from_theirs({"model_type": kind})


@pytest.mark.parametrize("name", ["mamba", "falcon"])
def test_the_inner_width_is_intermediate_size(name: str, folder: Path, tmp_path: Path) -> None:
    """Where ``expand`` says another, as in falcon-mamba-7b's config, the library reads the former."""
    config, _ = files(saved(name, folder))
    shutil.copytree(saved(name, folder), tmp_path / "other")
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"expand": 16}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "other").eval()
    ours = sw.load(tmp_path / "other")
    tokens = ids(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens)[0], theirs(tokens).logits, rtol=1e-4, atol=5e-5)
    assert format.from_theirs(format.to_theirs(ours.config)) == ours.config  # type: ignore[arg-type]


def test_limits_as_that_library_wrote_them(folder: Path, tmp_path: Path) -> None:
    """Until December 2025: an infinity that JSON does not have, and so with every model without a limit."""
    config, tensors = files(saved("mamba2", folder))
    expected, _ = format.read(config, tensors)
    text = json.dumps(config | {"time_step_limit": [0.0, float("inf")]})
    assert "[0.0, Infinity]" in text
    shutil.copytree(saved("mamba2", folder), tmp_path / "old")
    (tmp_path / "old" / "config.json").write_text(text)
    assert sw.load(tmp_path / "old").config == expected
    (tmp_path / "old" / "config.json").write_text(json.dumps(config | {"layer_norm_epsilon": float("nan")}))
    with pytest.raises(CheckpointError, match="layer_norm_epsilon=nan; expected a number above 0"):
        sw.load(tmp_path / "old")


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mamba", {"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
    ("mamba", {"quantization_config": {"bits": 4}}, "quantization_config="),
    ("mamba", {"hidden_size": 16.5}, "hidden_size=16.5; expected an integer"),
    ("mamba", {"intermediate_size": 40}, "intermediate_size=40; expected a multiple of hidden_size, 768"),
    ("mamba", {"time_step_rank": "many"}, "time_step_rank='many'; expected an integer"),
    ("mamba", {"use_bias": "yes"}, "use_bias='yes'; expected true or false"),
    ("falcon_mamba", {"mixer_rms_eps": 0}, "mixer_rms_eps=0; expected a number above 0"),
    ("mamba2", {"num_heads": 3}, "num_heads=3; expected hidden_size"),
    ("mamba2", {"time_step_limit": [0.0, {"__float__": "NaN"}]}, "time_step_limit="),
]


@pytest.mark.parametrize(("kind", "fields", "message"), REFUSED, ids=lambda value: str(value)[:50])
def test_fields_are_refused_by_name_and_value(kind: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        format.from_theirs({"model_type": kind, **fields})


WRITTEN: list[tuple[dict[str, Any], str]] = [
    (
        {"layers": (sw.MambaConfig(), sw.AttentionConfig(n_heads=2))},
        "no layer of MambaConfig, .* by format='mamba_ssm'",
    ),
    ({"layers": (sw.BlockConfig(mixer=sw.MambaConfig(), norm="layer"),), "norm": "layer"}, "has norm='layer'"),
    ({"layers": (sw.BlockConfig(mixer=sw.MambaConfig(), mlp=sw.MLPConfig()),)}, "transformers' (bamba|jamba)"),
    ({"layers": (sw.Mamba2Config(d_head=8, norm_before_gate=True),)}, "has norm_before_gate=True"),
    ({"layers": (sw.Mamba2Config(d_head=8, n_groups=2, norm_groups=1),)}, "no norm_groups=1"),
    ({"layers": (sw.H3Config(),)}, "no layer of H3Config"),
]


@pytest.mark.parametrize(("fields", "message"), WRITTEN, ids=[message for _, message in WRITTEN])
def test_what_the_format_does_not_have_is_refused(fields: dict[str, Any], message: str) -> None:
    model = LanguageModelConfig(vocab_size=24, d_model=16, **fields).build()
    with pytest.raises(CheckpointError, match=message):
        format.write(model.config, model.state_dict())
