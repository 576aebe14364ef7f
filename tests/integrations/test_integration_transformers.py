"""The wrapper for transformers: its configuration, files, calls, cache and loss, against the model inside."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

import statewise as sw
from statewise.mixers.base import Dynamics

pytest.importorskip("transformers", reason="transformers is not installed")

import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from wrapped_models import EVERY, VOCABULARY, build, padded, rows

from statewise.integrations.transformers import (
    StatewiseCache,
    StatewiseConfig,
    StatewiseForCausalLM,
    from_statewise,
)

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    return dict(model.state_dict())


def test_the_config_is_ours_in_json(tmp_path: Path) -> None:
    model = build("hybrid")
    StatewiseConfig(model=model.config, eos_token_id=3).save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert (stored["model_type"], stored["vocab_size"], stored["model"]["d_model"]) == ("statewise", VOCABULARY, 16)
    read = AutoConfig.from_pretrained(tmp_path)
    assert type(read) is StatewiseConfig
    assert read.language_model() == model.config.in_full() or read.language_model() == model.config
    assert (read.eos_token_id, read.num_hidden_layers, read.hidden_size) == (3, 3, 16)
    assert StatewiseConfig().model is None  # transformers builds one without arguments, for its defaults


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 7}, "vocab_size=7 contradicts model"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings=False contradicts model"),
        ({"model": 3}, "StatewiseConfig.model=3; expected a LanguageModelConfig"),
        ({"model": {"type": "Mamba2Model"}}, "Mamba2Model"),
    ],
)
def test_configs_that_cannot_be(change: dict, message: str) -> None:
    with pytest.raises(sw.ConfigError, match=message):
        StatewiseConfig(**{"model": build("mamba").config, **change})


def test_a_config_without_a_model_builds_none() -> None:
    with pytest.raises(sw.ConfigError, match="expected a LanguageModelConfig"):
        StatewiseForCausalLM(StatewiseConfig())


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("tied", [True, False])
def test_saved_and_loaded_bit_for_bit(name: str, tied: bool, tmp_path: Path) -> None:
    model = build(name, tied=tied)
    wrapped = from_statewise(model)
    assert wrapped.model is model
    wrapped.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert ("model.head.weight" in stored) != tied  # tied weights once
    back = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(back) is StatewiseForCausalLM
    assert not back.training
    assert (back.model.head.weight is back.model.embedding.weight) == tied
    assert back.model.config == model.config.in_full() or back.model.config == model.config
    for (key, ours), (other, theirs) in zip(tensors(wrapped).items(), tensors(back).items(), strict=True):
        assert key == other
        assert torch.equal(ours, theirs)
    ids = torch.stack(rows(9, 9))
    assert torch.equal(wrapped(ids).logits, back(ids).logits)
    ours = sw.load(tmp_path)  # without transformers
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), ours.state_dict().values(), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dynamics_stay_wide(dtype: torch.dtype, tmp_path: Path) -> None:
    wrapped = from_statewise(build("hybrid"))
    wrapped.save_pretrained(tmp_path / "float32")
    cast = AutoModelForCausalLM.from_pretrained(tmp_path / "float32", dtype=dtype)
    cast.save_pretrained(tmp_path / "cast")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "cast")  # of the dtype that it was saved in
    built = AutoModelForCausalLM.from_config(cast.config, dtype=dtype)
    wide = torch.promote_types(dtype, torch.float32)
    for model in (cast, again, built):
        dynamics = {id(p) for m in model.modules() if isinstance(m, Dynamics) for p in m.parameters()}
        assert dynamics
        for parameter in model.parameters():
            assert parameter.dtype == (wide if id(parameter) in dynamics else dtype)
    for key, tensor in tensors(cast).items():
        assert torch.equal(tensor, tensors(again)[key])
        assert torch.equal(tensor, tensors(wrapped)[key].to(tensor.dtype))


def test_sharded(tmp_path: Path) -> None:
    wrapped = from_statewise(build("mamba"))
    wrapped.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    back = StatewiseForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(tensors(wrapped).values(), tensors(back).values(), strict=True))


@pytest.mark.parametrize("what", ["missing", "unexpected", "renamed", "mismatched"])
def test_other_tensors_are_refused_by_name(what: str, tmp_path: Path) -> None:
    from_statewise(build("mamba")).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    name = "model.layers.1.mixer.dynamics.A_log"
    tensor = stored.pop(name)
    if what != "missing":
        stored[name if what == "unexpected" else f"{name}2"] = tensor
    if what == "unexpected":
        name = f"{name}2"
        stored[name] = tensor.clone()
    if what == "mismatched":
        del stored[f"{name}2"]
        stored[name] = tensor[:3].clone()
    save_file(stored, file, {"format": "pt"})
    shapes = r" of shape \(3, 4\) instead of \(32, 4\)" if what == "mismatched" else ""
    for options in ({}, {"ignore_mismatched_sizes": True}):
        with pytest.raises(sw.CheckpointError, match=name.replace(".", r"\.") + shapes):
            AutoModelForCausalLM.from_pretrained(tmp_path, **options)


def test_built_from_a_config_it_is_drawn_as_ours() -> None:
    config = build("hybrid").config
    torch.manual_seed(5)
    ours = config.build()
    torch.manual_seed(5)
    theirs = AutoModelForCausalLM.from_config(StatewiseConfig(model=config))
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_padding_anywhere_reads_as_the_row_alone(name: str) -> None:
    """Left, right and in the middle; padding may hold any id; in float64, to rounding."""
    model = build(name, dtype=torch.float64)
    wrapped = from_statewise(model)
    tokens = rows(7, 4, 1, 6)
    for side in ("left", "right", "between"):
        ids, mask = padded(tokens, "left" if side == "left" else "right", pad=-100)
        if side == "between":
            order = torch.argsort(torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)), dim=1)
            mask = mask.gather(1, order)
            ids = torch.full_like(ids, 10**6)
            ids[mask.bool()] = torch.cat(tokens)
        logits = wrapped(ids, attention_mask=mask, use_cache=False).logits
        for row, real, found in zip(tokens, mask.bool(), logits):
            alone = model(row[None])[0][0]
            torch.testing.assert_close(found[real], alone, rtol=1e-10, atol=1e-10)
            assert torch.equal(found[-1], found[real][-1])  # what follows a row repeats its last logits
        assert logits.isfinite().all()


@pytest.mark.parametrize("name", EVERY)
def test_several_tokens_after_a_cache(name: str) -> None:
    """Cut anywhere, padded too, and in pieces that are nothing but padding for a row."""
    model = build(name, dtype=torch.float64)
    wrapped = from_statewise(model)
    for side in ("left", "right"):
        ids, mask = padded(rows(8, 3, 5), side)
        whole = wrapped(ids, attention_mask=mask, use_cache=False).logits
        cache, parts = None, []
        for begin, end in ((0, 4), (4, 5), (5, 8)):
            out = wrapped(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
        assert cache.get_seq_length() == 8
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-10)


def test_a_cache_is_copied_selected_and_never_mutated() -> None:
    wrapped = from_statewise(build("hybrid", dtype=torch.float64))
    ids, more = torch.stack(rows(6, 6)), torch.stack(rows(3, 3, seed=1))
    cache = wrapped(ids).past_key_values
    kept, deep = copy.copy(cache), copy.deepcopy(cache)
    first = wrapped(more, past_key_values=cache).logits
    assert (cache.get_seq_length(), kept.get_seq_length()) == (9, 6)
    with torch.no_grad():
        for old in (kept, deep):  # rolled back by going on from the copy
            torch.testing.assert_close(wrapped(more, past_key_values=copy.copy(old)).logits, first)
        for change, index in (("reorder_cache", [1, 1]), ("batch_select_indices", [1]), ("batch_select_indices", [0])):
            other = copy.copy(kept)
            getattr(other, change)(torch.tensor(index))
            torch.testing.assert_close(wrapped(more[index], past_key_values=other).logits, first[index])
        other = copy.copy(kept)
        other.batch_repeat_interleave(2)
        assert (other.batch_size, len(other), kept.batch_size) == (4, 3, 2)
        torch.testing.assert_close(
            wrapped(more.repeat_interleave(2, 0), past_key_values=other).logits, first.repeat_interleave(2, 0)
        )
        torch.testing.assert_close(wrapped(more, past_key_values=kept).logits, first)
    cache.crop(0)
    with pytest.raises(sw.InputError, match=r"crop\(2\): expected 0 or a negative number; crop\(-2\)"):
        cache.crop(2)
    with pytest.raises(sw.InputError, match="cannot be cut back by 2 tokens"):
        cache.crop(-2)
    cache.reset()
    cache.reorder_cache(torch.tensor([0]))  # of nothing read
    cache.batch_select_indices(torch.tensor([0]))
    cache.batch_repeat_interleave(2)
    assert cache.batch_size == -1
    assert not cache.is_initialized
    assert "n_columns=0" in repr(cache)


def test_loss_is_the_cross_entropy_of_the_next_token() -> None:
    wrapped = from_statewise(build("mamba", dtype=torch.float64))
    ids = torch.stack(rows(9, 9))
    labels = ids.clone()
    labels[0, 3:5] = -100
    expected = F.cross_entropy(wrapped.model(ids)[0][:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    torch.testing.assert_close(wrapped(ids, labels=labels).loss.double(), expected, rtol=1e-6, atol=0)
    total = wrapped(ids, labels=labels, num_items_in_batch=7).loss  # what Trainer gives where it accumulates
    torch.testing.assert_close(total.double(), expected * 14 / 7, rtol=1e-6, atol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_loss_counts_no_padding(side: str) -> None:
    """Although the labels name padding and first tokens: the mean over rows that stand alone, and its gradients."""
    wrapped = from_statewise(build("hybrid", dtype=torch.float64))
    tokens = rows(7, 4, 2)
    ids, mask = padded(tokens, side)
    wrapped(ids, attention_mask=mask, labels=ids).loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in wrapped.named_parameters()}
    wrapped.zero_grad()
    alone = [wrapped(row[None], labels=row[None]).loss * (len(row) - 1) for row in tokens]
    (sum(alone) / sum(len(row) - 1 for row in tokens)).backward()
    for name, parameter in wrapped.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-6, atol=1e-8)


def test_documents_begin_at_their_token_or_where_positions_are_zero() -> None:
    model = build("hybrid", dtype=torch.float64)
    ids = torch.stack(rows(9, 9)).clamp(max=20)
    ids[0, 4] = ids[1, 0] = ids[1, 7] = 30
    starts = ids == 30
    expected, _ = model(ids, starts=starts)
    config = StatewiseConfig(model=model.config, document_token_id=30)
    by_token, by_position = StatewiseForCausalLM(config).eval(), from_statewise(model)
    by_token.model = model
    torch.testing.assert_close(by_token(ids).logits, expected)
    positions = torch.stack([torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 4]), torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 1])])
    torch.testing.assert_close(by_position(ids, position_ids=positions).logits, expected)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    for arguments in ({}, {"attention_mask": mask}):  # one row of positions for all
        torch.testing.assert_close(
            by_position(ids, position_ids=positions[:1], **arguments).logits,
            by_position(ids, position_ids=positions[:1].repeat(2, 1), **arguments).logits,
        )
    cache = by_token(ids[:, :4]).past_key_values
    torch.testing.assert_close(by_token(ids[:, 4:], past_key_values=cache).logits, expected[:, 4:])


def test_logits_to_keep_and_tuples() -> None:
    wrapped = from_statewise(build("mamba"))
    ids = torch.stack(rows(6, 6))
    logits = wrapped(ids).logits
    torch.testing.assert_close(wrapped(ids, logits_to_keep=2).logits, logits[:, -2:])
    torch.testing.assert_close(wrapped(ids, logits_to_keep=torch.tensor([0, 3])).logits, logits[:, [0, 3]])
    loss, again, cache = wrapped(ids, labels=ids, return_dict=False)
    assert torch.equal(again, logits)
    assert loss.ndim == 0
    assert isinstance(cache, StatewiseCache)
    assert wrapped.train()(ids).past_key_values is None  # none where it trains


def test_what_does_not_fit_is_refused() -> None:
    model = build("mamba")
    wrapped = from_statewise(model)
    ids = torch.stack(rows(5, 5))
    cache = wrapped(ids).past_key_values
    for message, arguments in (
        ("reads ids, not embeddings", {}),
        ("inputs_embeds means nothing", {"input_ids": ids, "inputs_embeds": torch.zeros(2, 5, 16)}),
        ("output_hidden_states means nothing", {"input_ids": ids, "output_hidden_states": True}),
        ("the cache has 2 rows and the tokens 1", {"input_ids": ids[:1], "past_key_values": cache}),
        ("past_key_values is a DynamicCache", {"input_ids": ids, "past_key_values": DynamicCache()}),
        (r"attention_mask has the shape \(2, 4\)", {"input_ids": ids, "attention_mask": torch.ones(2, 4)}),
        ("neither 0 nor 1", {"input_ids": ids, "attention_mask": torch.full((2, 5), 0.5)}),
        ("outside the vocabulary", {"input_ids": ids + VOCABULARY}),
        (r"position_ids have the shape \(1, 3\)", {"input_ids": ids, "position_ids": torch.arange(3)[None]}),
        ("leave out logits_to_keep or labels", {"input_ids": ids, "labels": ids, "logits_to_keep": 3}),
        ("leave out logits_to_keep or labels", {"input_ids": ids, "labels": ids, "logits_to_keep": torch.tensor([1])}),
        (r"labels have the shape \(2, 3\)", {"input_ids": ids, "labels": ids[:, :3]}),
        ("is outside the vocabulary of 31", {"input_ids": ids, "labels": ids + VOCABULARY}),
        ("label -1 is outside", {"input_ids": ids, "labels": torch.full_like(ids, -1)}),
    ):
        with pytest.raises(sw.InputError, match=message):
            wrapped(**arguments)
    with pytest.raises(sw.InputError, match="holds a state, not keys"):
        cache.update(torch.zeros(1), torch.zeros(1), 0)
    with pytest.raises(sw.InputError, match="cannot be resized to 40"):
        wrapped.resize_token_embeddings(40)
    assert wrapped.resize_token_embeddings(VOCABULARY) is model.embedding
    with pytest.raises(sw.InputError, match="got a frozen model"):
        from_statewise(build("s4d").freeze())
    with pytest.raises(sw.InputError, match="257 ids and the model only 31"):
        from_statewise(model, sw.ByteTokenizer())
