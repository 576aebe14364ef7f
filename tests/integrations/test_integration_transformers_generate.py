"""Generation by transformers: every way of it says what sw.generate says."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import statewise as sw
from statewise.data.tokenizers import FileTokenizer

pytest.importorskip("transformers", reason="transformers is not installed")

import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer, pipeline
from wrapped_models import EVERY, build, greedy, padded, rows

from statewise.integrations.transformers import StatewiseCache, fast_tokenizer, from_statewise

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

TEXTS = ["def f(x):", "né", "", "a\n\n b <|endoftext|> \U0001f600"]


def file_tokenizer() -> FileTokenizer:
    """Byte-level BPE of a few merges, whose padding token is its own."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|padding|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat, the end; def the(self):"] * 3, trainer)
    return FileTokenizer(backend.to_str())


TOKENIZERS = {"bytes": sw.ByteTokenizer(), "file": file_tokenizer()}


@pytest.mark.parametrize("name", EVERY)
def test_greedy_tokens_of_padded_rows(name: str) -> None:
    """Left and right padding, in one piece and in chunks shorter than the padding, with a cache and without."""
    model = build(name)
    wrapped = from_statewise(model)
    tokens = rows(11, 4, 1)
    expected = [greedy(model, row, 8) for row in tokens]
    options = [{}, {"prefill_chunk_size": 1}, {"prefill_chunk_size": 3}, {"prefill_chunk_size": 64}]
    for side, chosen in itertools.product(("left", "right"), [*options, {"use_cache": False}]):
        ids, mask = padded(tokens, side)
        out = wrapped.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0, **chosen)
        assert out[:, 11:].tolist() == expected, (side, chosen)


def test_many_greedy_tokens() -> None:
    model = build("hybrid")
    (row,) = rows(20)
    out = from_statewise(model).generate(row[None], max_new_tokens=200, do_sample=False)
    assert out[0, 20:].tolist() == greedy(model, row, 200)


def test_time_invariant_mixers_discretise_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from statewise.mixers.s4d import S4D

    n_frozen = 0
    freeze = S4D.freeze

    def counted(self: S4D) -> S4D:
        nonlocal n_frozen
        n_frozen += 1
        return freeze(self)

    monkeypatch.setattr(S4D, "freeze", counted)
    wrapped = from_statewise(build("s4d"))
    wrapped.generate(rows(5)[0][None], max_new_tokens=8, do_sample=False)
    assert n_frozen == 1
    assert not wrapped._readers  # and afterwards it trains on
    wrapped.train()
    wrapped.generate(rows(5)[0][None], max_new_tokens=2, do_sample=False)
    assert n_frozen == 1


@pytest.mark.parametrize("name", ["mamba", "hybrid", "window", "s4d"])
def test_beams(name: str) -> None:
    """The same beams as when everything is read anew for every token; and with enough of them, the best of all."""
    wrapped = from_statewise(build(name, dtype=torch.float64))
    ids, mask = padded(rows(6, 3), "left")
    options = {
        "attention_mask": mask,
        "num_beams": 4,
        "num_return_sequences": 3,
        "max_new_tokens": 6,
        "pad_token_id": 0,
    }
    found = wrapped.generate(ids, do_sample=False, **options)
    assert torch.equal(found, wrapped.generate(ids, do_sample=False, use_cache=False, **options))
    assert len({tuple(row.tolist()) for row in found[:3]}) == 3


def test_enough_beams_find_the_best_of_all() -> None:
    model = build("hybrid", vocab_size=4, dtype=torch.float64)
    (row,) = rows(5, vocab_size=4)
    found = from_statewise(model).generate(row[None], num_beams=64, max_new_tokens=4, do_sample=False)[0, 5:]
    every = torch.tensor(list(itertools.product(range(4), repeat=4)))
    with torch.no_grad():
        logits, _ = model(torch.cat([row.expand(256, 5), every], 1))
    scores = logits[:, 4:-1].log_softmax(-1).gather(2, every[..., None]).sum((1, 2))
    assert torch.equal(found, every[scores.argmax()])


def test_sampling_with_and_without_a_cache() -> None:
    wrapped = from_statewise(build("hybrid", dtype=torch.float64))
    ids, mask = padded(rows(6, 3), "left")
    drawn = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        options = {"do_sample": True, "top_k": 9, "top_p": 0.9, "temperature": 1.3, "repetition_penalty": 1.2}
        drawn.append(
            wrapped.generate(
                ids, attention_mask=mask, max_new_tokens=9, num_return_sequences=3, use_cache=use_cache,
                pad_token_id=0, **options,
            )
        )  # fmt: skip
    assert torch.equal(*drawn)
    assert len({tuple(row.tolist()) for row in drawn[0]}) > 2


def test_several_turns_with_one_cache() -> None:
    """The text so far is given anew, as chats do; what the cache has read is not read again."""
    model = build("hybrid")
    wrapped = from_statewise(model)
    (row,) = rows(7)
    first = wrapped.generate(row[None], max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    cache = first.past_key_values
    assert isinstance(cache, StatewiseCache)
    assert cache.get_seq_length() == 11  # all but the last token
    longer = torch.cat([first.sequences, rows(4, seed=1)[0][None]], 1)
    expected = greedy(model, longer[0], 6)
    for chunk in (None, 2):
        options = {"max_new_tokens": 6, "do_sample": False, "prefill_chunk_size": chunk}
        again = wrapped.generate(longer, past_key_values=copy.copy(cache), **options)
        assert again[0, 16:].tolist() == expected
    assert cache.get_seq_length() == 11
    assert wrapped.generate(longer, past_key_values=StatewiseCache(), **options)[0, 16:].tolist() == expected


def test_a_streamer_gets_the_text() -> None:
    model, tokenizer = build("mamba2", vocab_size=257), sw.ByteTokenizer()
    wrapped, fast = from_statewise(model, tokenizer), fast_tokenizer(tokenizer)
    expected = "".join(
        token.text[0]
        for token in sw.generate(model, "class Stack:", tokenizer=tokenizer, max_new_tokens=40, temperature=0)
        if token.text is not None
    )
    streamer = TextIteratorStreamer(fast, skip_prompt=True, skip_special_tokens=True)
    wrapped.generate(**fast("class Stack:", return_tensors="pt"), max_new_tokens=40, do_sample=False, streamer=streamer)
    assert "".join(streamer) == expected


@pytest.mark.parametrize("beams", [1, 2])
def test_stop_strings(beams: int) -> None:
    """In generate and in a pipeline, which hand the tokenizer on as far as the model."""
    model, tokenizer = build("mamba2", vocab_size=257), sw.ByteTokenizer()
    wrapped, fast = from_statewise(model, tokenizer), fast_tokenizer(tokenizer)
    prompt = fast("class Stack:", return_tensors="pt")
    options = {"max_new_tokens": 9, "do_sample": False, "num_beams": beams}
    options |= {"suppress_tokens": [*range(33), *range(127, 257)], "no_repeat_ngram_size": 1}  # other letters each time
    free = fast.decode(wrapped.generate(**prompt, **options)[0], skip_special_tokens=True)
    stop = free[-5]
    stopped = wrapped.generate(**prompt, **options, stop_strings=[stop], tokenizer=fast)
    again = wrapped.generate(**prompt, **options, stop_strings=[stop], tokenizer=fast, use_cache=False)
    assert torch.equal(stopped, again)
    if beams == 1:
        assert fast.decode(stopped[0], skip_special_tokens=True) == free[:-4]
        [answer] = pipeline("text-generation", model=wrapped, tokenizer=fast)(
            "class Stack:", **options, stop_sequence=stop
        )
        assert answer["generated_text"] == free[:-4]


def test_without_a_prompt_a_document_begins() -> None:
    model, tokenizer = build("mamba", vocab_size=257), sw.ByteTokenizer()
    out = from_statewise(model, tokenizer).generate(max_new_tokens=7, do_sample=False)
    ours = sw.generate(model, tokenizer=tokenizer, max_new_tokens=7, temperature=0)
    assert out[0].tolist() == [256, *(int(token.ids) for token in ours)]


def test_ids_without_a_token_are_never_drawn(tmp_path: Path) -> None:
    """A vocabulary padded from 257 to 264, whose last ids are by far the likeliest."""
    model, tokenizer = build("mamba", vocab_size=264), sw.ByteTokenizer()
    model.head.weight.data[257:] *= 30
    from_statewise(model, tokenizer).save_pretrained(tmp_path)
    for wrapped in (from_statewise(model, tokenizer), AutoModelForCausalLM.from_pretrained(tmp_path)):
        ids = fast_tokenizer(tokenizer)(["import", "x"], return_tensors="pt", padding=True)
        out = wrapped.generate(**ids, max_new_tokens=20, do_sample=False)[:, -20:]
        assert out.max() < 257
        for text, row in zip(("import", "x"), out.tolist(), strict=True):
            tokens = sw.generate(model, text, tokenizer=tokenizer, max_new_tokens=20, temperature=0)
            expected = [int(token.ids) for token in tokens]
            assert row[: len(expected)] == expected
    assert int(wrapped(**ids).logits[0, -1].argmax()) >= 257
    data = json.loads(file_tokenizer().json)
    last = max(data["model"]["vocab"], key=data["model"]["vocab"].__getitem__)
    data["model"]["vocab"][last] += 2  # ids may have gaps
    gapped = FileTokenizer(json.dumps(data))
    n = gapped.vocab_size
    wrapped = from_statewise(build("mamba", vocab_size=n + 1), gapped)
    assert wrapped.generation_config.suppress_tokens == [n - 3, n - 2, n]
    assert from_statewise(model).generation_config.suppress_tokens is None


@pytest.mark.parametrize("name", ["mamba", "hybrid", "window", "s4d"])
def test_assisted_generation(name: str) -> None:
    """Another model drafts, or the prompt does; the draft may be any model, and a draft of any other."""
    model = build(name, dtype=torch.float64)
    wrapped, other = from_statewise(model), from_statewise(build("mamba", seed=1, dtype=torch.float64))
    near = from_statewise(copy.deepcopy(model))
    with torch.no_grad():
        for parameter in near.parameters():
            parameter.mul_(1.001)
    ids, mask = padded(rows(7, 4), "left")
    for row in (0, 1):
        options = {"attention_mask": mask[row : row + 1], "max_new_tokens": 24, "do_sample": False, "pad_token_id": 0}
        plain = wrapped.generate(ids[row : row + 1], **options)
        for draft in ({"assistant_model": other}, {"assistant_model": near}, {"prompt_lookup_num_tokens": 3}):
            assert torch.equal(wrapped.generate(ids[row : row + 1], **draft, **options), plain)
    torch.manual_seed(0)
    options = {"max_new_tokens": 12, "do_sample": True, "pad_token_id": 0}
    assert wrapped.generate(ids[:1], assistant_model=near, **options).shape == (1, 19)
    with pytest.raises(sw.InputError, match="num_beams=2 with an assistant_model"):
        wrapped.generate(ids[:1], assistant_model=near, **{**options, "num_beams": 2})
    with pytest.raises(sw.InputError, match="no early exits"):
        wrapped.generate(ids[:1], assistant_early_exit=1, **options)
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=31, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
        )
    ).double()
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    plain = llama.generate(ids[:1], **options)
    assert torch.equal(llama.generate(ids[:1], assistant_model=other, **options), plain)


def test_a_cache_is_cut_back() -> None:
    """To any column since the recording began, padding among them; not to others."""
    wrapped = from_statewise(build("hybrid", dtype=torch.float64))
    ids, mask = torch.stack(rows(9, 9)), torch.ones(2, 9, dtype=torch.int64)
    mask[0, 5] = mask[1, 7] = mask[1, 2] = 0
    with torch.no_grad():
        cache = wrapped(ids[:, :3], attention_mask=mask[:, :3]).past_key_values
        cache.activate_past_recording()
        for begin, end in ((3, 6), (6, 9)):
            wrapped(ids[:, begin:end], attention_mask=mask[:, begin:end], past_key_values=cache)
        for n in range(7):
            again = copy.copy(cache)
            again.crop(-n)
            fresh = wrapped(ids[:, : 9 - n], attention_mask=mask[:, : 9 - n]).past_key_values
            assert again.get_seq_length() == fresh.get_seq_length() == 9 - n
            torch.testing.assert_close(again.features, fresh.features)
            logits = [wrapped(ids[:, :2], past_key_values=one).logits for one in (again, fresh)]
            torch.testing.assert_close(*logits)
        for n in (7, 8):
            with pytest.raises(sw.InputError, match="not recorded"):
                copy.copy(cache).crop(-n)
        cache.batch_repeat_interleave(2)
        with pytest.raises(sw.InputError, match="not recorded"):
            cache.crop(-1)


def test_what_a_state_cannot_do_is_refused() -> None:
    wrapped = from_statewise(build("mamba"))
    ids = rows(5)[0][None]
    with pytest.raises(sw.InputError, match=r"the prompt has the shape \(2, 0\), which has no token"):
        wrapped.generate(torch.zeros(2, 0, dtype=torch.int64), max_new_tokens=4)
    with pytest.raises(sw.InputError, match="cache_implementation='static' is for keys and values"):
        wrapped.generate(ids, max_new_tokens=4, cache_implementation="static")
    with pytest.raises(sw.InputError, match="batch_repeat_interleave"):
        wrapped.generate(ids, max_new_tokens=4, num_beams=2, past_key_values=wrapped(ids).past_key_values)
    with pytest.raises(sw.InputError, match="output_hidden_states means nothing"):
        wrapped.generate(ids, max_new_tokens=4, output_hidden_states=True, return_dict_in_generate=True)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pipeline(kind: str, tmp_path: Path) -> None:
    """From a folder alone, a batch of texts of many lengths: each what sw.generate says."""
    tokenizer = TOKENIZERS[kind]
    model = build("hybrid", vocab_size=tokenizer.vocab_size)
    from_statewise(model, tokenizer).save_pretrained(tmp_path)
    fast_tokenizer(tokenizer).save_pretrained(tmp_path)
    texts = ["the cat", "", "def the(self):\n    the"]
    found = pipeline("text-generation", model=str(tmp_path))(
        texts, batch_size=3, max_new_tokens=15, do_sample=False, return_full_text=False
    )
    for text, [answer] in zip(texts, found, strict=True):
        ours = sw.generate(model, text, tokenizer=tokenizer, max_new_tokens=15, temperature=0)
        assert answer["generated_text"] == "".join(token.text[0] for token in ours if token.text is not None)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokenizers_agree(kind: str, tmp_path: Path) -> None:
    ours = TOKENIZERS[kind]
    fast = fast_tokenizer(ours)
    fast.save_pretrained(tmp_path)
    read = AutoTokenizer.from_pretrained(tmp_path)
    for tokenizer in (fast, read):
        for text in TEXTS:
            assert tokenizer(text).input_ids == [ours.document_token, *ours.encode(text)]
            assert tokenizer(text, add_special_tokens=False).input_ids == ours.encode(text)
            assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == ours.decode(
                ours.encode(text)
            )
        batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
        assert batch.attention_mask.sum(1).tolist() == [1 + len(ours.encode(text)) for text in TEXTS]
        assert batch.attention_mask[:, -1].all()  # padded on the left
        assert tokenizer.eos_token_id == tokenizer.bos_token_id == ours.document_token
        assert tokenizer.pad_token_id == (256 if kind == "bytes" else 1)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokenizers_agree_on_any_text(kind: str) -> None:
    ours = TOKENIZERS[kind]
    fast = fast_tokenizer(ours)

    @settings(max_examples=60)
    @given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(0, 255)))
    def check(text: str, ids: list[int]) -> None:
        assert fast(text, add_special_tokens=False).input_ids == ours.encode(text)
        if kind == "bytes":
            assert fast.decode(ids) == ours.decode(ids)  # also of bytes that are no text

    check()


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    with pytest.raises(sw.InputError, match="needs a ByteTokenizer or a FileTokenizer, not a str"):
        fast_tokenizer("bytes")  # type: ignore[arg-type]
