"""The model of lm-eval: its numbers are those of each request alone, whatever is shared and read together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scored_models import MAMBA, MODELS, defined

import statewise as sw
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import ConfigError, DataError

pytest.importorskip("lm_eval", reason='lm-eval is not installed; pip install "statewise[eval]"')

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from statewise.evaluate import evaluate_text
from statewise.evaluate.text.likelihood import encode_pair
from statewise.integrations.lm_eval import StatewiseLM
from statewise.integrations.lm_eval.texts import write


def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, args, i, metadata=("test", i, 1)) for i, args in enumerate(arguments)]


def test_texts_of_requests() -> None:
    model = MODELS["mamba"]
    lm = StatewiseLM(model, tokenizer="bytes", add_bos_token=False)
    (pair, empty) = lm.loglikelihood(instances("loglikelihood", ("what is ", "this"), ("", "that")), disable_tqdm=True)
    ids = ByteTokenizer().encode
    assert pair[0] == pytest.approx(defined(model, ids("what is"), ids(" this"))[0], rel=1e-5)  # as lm-eval cuts it
    assert empty[0] == pytest.approx(defined(model, [256], ids("that"))[0], rel=1e-5)
    (blank,) = lm.loglikelihood(instances("loglikelihood", (" ", "that")), disable_tqdm=True)
    assert blank[0] == pytest.approx(defined(model, [256], ids(" that"))[0], rel=1e-5)
    begun = StatewiseLM(model, tokenizer="bytes")
    (pair,) = begun.loglikelihood(instances("loglikelihood", ("what", " is")), disable_tqdm=True)
    assert pair[0] == pytest.approx(defined(model, [256, *ids("what")], ids(" is"))[0], rel=1e-5)
    with pytest.raises(DataError, match="a continuation is empty"):
        lm.loglikelihood(instances("loglikelihood", ("a", "")), disable_tqdm=True)


def test_a_tokenizer_that_begins_texts_itself() -> None:
    """As Mistral's: its own token before a text, unless the document token is asked for."""
    model = MODELS["mamba"]

    class Beginning(ByteTokenizer):
        prefix = (7,)

    ids = ByteTokenizer().encode
    for asked, first in ((False, 7), (True, 256)):
        lm = StatewiseLM(model, tokenizer=Beginning(), add_bos_token=asked)
        pair, empty = lm.loglikelihood(instances("loglikelihood", ("so", " it"), ("", "is")), disable_tqdm=True)
        assert pair[0] == pytest.approx(defined(model, [first, *ids("so")], ids(" it"))[0], rel=1e-5)
        assert empty[0] == pytest.approx(defined(model, [first], ids("is"))[0], rel=1e-5)
        (whole,) = lm.loglikelihood_rolling(instances("loglikelihood_rolling", ("text",)), disable_tqdm=True)
        assert whole == pytest.approx(defined(model, [first], ids("text"))[0], rel=1e-5)
        for context in ("so", " "):
            ((begun, _),) = encode_pair(Beginning(), context, [" it"], document_token=asked)
            assert begun == [first, *ids(context.rstrip())]


def test_a_beginning_of_several_tokens() -> None:
    model = MODELS["mamba"]

    class Beginning(ByteTokenizer):
        prefix = (7, 8)

    ids = ByteTokenizer().encode
    lm = StatewiseLM(model, tokenizer=Beginning(), add_bos_token=False)
    empty, blank = lm.loglikelihood(instances("loglikelihood", ("", "is"), (" ", "is")), disable_tqdm=True)
    assert empty[0] == pytest.approx(defined(model, [7, 8], ids("is"))[0], rel=1e-5)
    assert blank[0] == pytest.approx(defined(model, [7, 8], ids(" is"))[0], rel=1e-5)
    (whole,) = lm.loglikelihood_rolling(instances("loglikelihood_rolling", ("text",)), disable_tqdm=True)
    assert whole == pytest.approx(defined(model, [7, 8], ids("text"))[0], rel=1e-5)


def test_rolling() -> None:
    model, text = MODELS["mamba"], "A text that is longer than the window, ü included. " * 3
    ids = ByteTokenizer().encode(text)
    lm = StatewiseLM(model, tokenizer="bytes")
    whole, nothing = lm.loglikelihood_rolling(instances("loglikelihood_rolling", (text,), ("",)), disable_tqdm=True)
    nats = evaluate_text(model, ByteTokenizer(), text).nats
    assert whole == pytest.approx(-nats, rel=1e-6)
    assert nothing == 0
    (windows,) = StatewiseLM(model, tokenizer="bytes", max_length=50).loglikelihood_rolling(
        instances("loglikelihood_rolling", (text,)), disable_tqdm=True
    )
    expected = defined(model, [256], ids[:50])[0]
    for begin in range(50, len(ids), 50):
        part = ids[begin : begin + 50]
        expected += defined(model, ids[begin + len(part) - 51 : begin + len(part)][: 51 - len(part)], part)[0]
    assert windows == pytest.approx(expected, rel=1e-5)


def test_generate_until_is_generate() -> None:
    model = MODELS["mamba"]
    lm = StatewiseLM(model, tokenizer="bytes", batch_size=2)
    common = "Common examples of what to do, " * 4
    contexts = [common + "first", common + "the second one", "something else", common + "first", ""]
    options = {"until": ["q", "\n\n"], "max_gen_toks": 24, "do_sample": False}
    texts = lm.generate_until(instances("generate_until", *((c, options) for c in contexts)), disable_tqdm=True)
    for context, text in zip(contexts, texts):
        tokens = sw.generate(
            model, context, max_new_tokens=24, temperature=0, stop=options["until"], tokenizer=ByteTokenizer()
        )
        assert text == "".join(token.text[0] for token in tokens)
    sampled = {"do_sample": True, "temperature": 0.9, "top_k": 20, "max_gen_toks": 8}
    asked = instances("generate_until", *((c, sampled) for c in contexts))
    assert lm.generate_until(asked, disable_tqdm=True) == lm.generate_until(asked, disable_tqdm=True)
    with pytest.raises(DataError, match="num_beams=4"):
        lm.generate_until(instances("generate_until", ("a", {"num_beams": 4})), disable_tqdm=True)
    assert write(model, [], tokenizer=ByteTokenizer(), max_new_tokens=1, seed=0) == []


def test_lengths_that_do_not_fit() -> None:
    lm = StatewiseLM(MODELS["positions"], tokenizer="bytes")
    assert lm.max_length == 400
    long, cut = "x" * 500, "x" * 450
    (a, b) = lm.loglikelihood(instances("loglikelihood", (long, "abcd"), (cut, "abcd")), disable_tqdm=True)
    assert a == pytest.approx(b, rel=1e-5)
    with pytest.raises(DataError, match="401 tokens and max_length is 400"):
        lm.loglikelihood(instances("loglikelihood", ("a", "x" * 401)), disable_tqdm=True)
    with pytest.raises(DataError, match="leave no room"):
        lm.generate_until(instances("generate_until", ("a", {"max_gen_toks": 400})), disable_tqdm=True)


def test_opening(tmp_path: Path) -> None:
    assert get_model("statewise") is StatewiseLM
    sw.save(MODELS["mamba"], tmp_path / "model", tokenizer=ByteTokenizer())
    lm = StatewiseLM.create_from_arg_string(f"pretrained={tmp_path}/model,batch_size=4", {"device": "cpu"})
    assert (lm.batch_size, lm.tokenizer.kind, lm.get_model_info()["add_bos_token"]) == (4, "bytes", True)
    assert StatewiseLM(tmp_path / "model", dtype="auto").model.embedding.weight.dtype == torch.float32
    assert StatewiseLM(tmp_path / "model", dtype="float64").model.embedding.weight.dtype == torch.float64
    published = MODELS["mamba"]
    sw.checkpoints.convert.save_as(published, tmp_path / "theirs", "mamba_ssm")
    for pretrained, begins in ((published, True), (tmp_path / "theirs", False)):
        assert StatewiseLM(pretrained, tokenizer="bytes").get_model_info()["add_bos_token"] == begins
    pytest.importorskip("transformers")
    from statewise.integrations.transformers import from_statewise

    from_statewise(published).save_pretrained(tmp_path / "wrapped")  # ours, under another roof
    assert StatewiseLM(tmp_path / "wrapped", tokenizer="bytes").get_model_info()["add_bos_token"]
    small = sw.LanguageModelConfig(vocab_size=20, d_model=8, layers=(MAMBA,)).build()
    for arguments, reason in (
        ({"pretrained": small, "tokenizer": "bytes"}, "257 ids and the model only 20"),
        ({"pretrained": small}, "a model needs its tokenizer"),
        ({"pretrained": MODELS["mamba"], "tokenizer": "bytes", "parallelize": True}, "no argument 'parallelize'"),
        ({"pretrained": MODELS["mamba"], "tokenizer": "bytes", "batch_size": 0}, "batch_size=0"),
        ({"pretrained": MODELS["mamba"], "tokenizer": "bytes", "max_length": 0}, "max_length=0"),
        ({"pretrained": MODELS["mamba"], "tokenizer": "bytes", "device": "cpu"}, "loaded from a folder"),
        ({"pretrained": str(tmp_path / "model"), "dtype": "float9"}, "dtype='float9' is unknown; use"),
        ({"pretrained": "nothing", "dtype": "int8"}, "dtype='int8' is unknown"),  # before anything is opened
        ({"pretrained": "nothing", "device": "foo"}, "device='foo' cannot be used"),
    ):
        with pytest.raises(ConfigError, match=reason):
            StatewiseLM(**arguments)
