"""How text is cut before the merges, name by name: the same tokens as llama.cpp's on hard texts, with a vocabulary
whose merges go across every place where a text may be cut."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from statewise.checkpoints.convert.gguf_tokenizer import SPLITTINGS, read_tokenizer
from statewise.data.tokenizers import FileTokenizer

pytest.importorskip("gguf")
from statewise.checkpoints.convert.gguf_file import write_file

NAMES = ("llama-bpe", "pixtral", "tekken", "gpt-4o", "kimi-k2", "default")
TEXTS = (
    "1 12 123 1234 12345678 3.14 1,000,000 ٣٤٥٦ ⅧⅣ x² ½¾ ①② 12th a1b22c333d4444",
    "don't DON'T Don'T he'll HE'LL we're WE'RE I'm I'M I've I'VE 's 'S 'll 'T''s x'd X'D it'so it'sO",
    "''' 'x a's1 é's 你's",
    "getUserName HTMLParser iPhone XMLHttpRequest aB ABc aBC ABCdE",
    "helloWORLD WORLDhello A b Éa éA ÉCOLE écoleÀ ÑAñaÑ ßA ǅx",
    "  two   three    four\ttab\t\ttabs \t mixed \n\n\n  lines\r\n\r\n  more \n x\n\n y   \n",
    "\u00a0nbsp \u00a0 \u3000全角\u3000\u3000 \u2003em \u2028line\u2029 \u200bzero\x0bvt\x0cff \x85nel",
    "你好，世界！ 漢字とカタカナとひらがな 々人々 한국어 텍스트 abc你好def 你 好 あ漢a 㐀豈 𠀀𪜀 中A文b",
    "🚀 🚀🚀 👨‍👩‍👧 🇩🇪 ❤️ a🚀b 🚀a 1🚀2 ©®™ ✓✗ →←",
    "e\u0301te\u0301 E\u0301A na\u0308ive हिन्दी भाषा ภาษาไทย עברית العَرَبِيَّة Ελληνικά ΑβΓδ Русский ТЕКСТтекст",
    "a/b//c ///\n//\r\n a.b.c ... !!! ?!\n $5 +1 <=> ^~|` ~~~ `code` {x: [1, 2]}",
    "# ## \\n @x _y_ __z__ - -- --- %5 &x *y*",
    "def f(x):\n    if x<=10 and y!='it':\n\treturn x**2  # done\n\n\nclass A:\n        pass\n",
    "   ",
    "\n",
    " \n ",
    "x ",
    " x",
    "'",
    "12",
)


@pytest.fixture(scope="module")
def vocabulary() -> dict[str, Any]:
    """The values of a file whose merges were found in the texts uncut."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    # each text, and each of its pieces of a few letters, which meet the others in every way
    pieces = [text[i : i + n] for text in TEXTS for n in (2, 3, 5) for i in range(len(text))]
    tokenizer.train_from_iterator([*TEXTS, *pieces], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {
        "general.architecture": "mamba",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*tokens, "<|endoftext|>"],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens),
        "tokenizer.ggml.add_bos_token": False,
    }


class Theirs:
    """llama.cpp's tokens of a file of a vocabulary alone."""

    def __init__(self, path: Path) -> None:
        from statewise.benchmark.peers.llama_cpp import _api

        self.api = _api()
        options = self.api.llama_model_default_params()
        options.vocab_only = True
        self.model = self.api.llama_model_load_from_file(str(path).encode(), options)
        self.vocabulary = self.api.llama_model_get_vocab(self.model)

    def __call__(self, text: str) -> list[int]:
        encoded = text.encode()
        ids = (ctypes.c_int32 * (len(encoded) + 8))()
        n = self.api.llama_tokenize(self.vocabulary, encoded, len(encoded), ids, len(ids), True, False)
        return list(ids[:n])


@pytest.fixture(params=NAMES)
def both(request: pytest.FixtureRequest, vocabulary: dict[str, Any], tmp_path: Path) -> Iterator[tuple[Any, Theirs]]:
    pytest.importorskip("llama_cpp")
    values = vocabulary | {"tokenizer.ggml.pre": request.param}
    write_file(tmp_path / "vocabulary.gguf", values, {})
    text = read_tokenizer(values)
    assert text is not None
    theirs = Theirs(tmp_path / "vocabulary.gguf")
    yield FileTokenizer(text).encode, theirs
    theirs.api.llama_model_free(theirs.model)


def test_the_same_tokens_as_llama_cpp(both: tuple[Any, Theirs]) -> None:
    ours, theirs = both
    for text in TEXTS:
        assert list(ours(text)) == theirs(text), text
        for i in range(0, len(text), 3):  # other beginnings and ends
            assert list(ours(text[i : i + 11])) == theirs(text[i : i + 11]), text[i : i + 11]


def test_the_page_names_every_splitting() -> None:
    page = (ROOT / "docs" / "checkpoints.md").read_text("utf-8")
    listed = page.split("**Tokenizers in GGUF.**")[1].split("## ")[0]
    assert not [name for splitting in SPLITTINGS for name in splitting.names if f"`{name}`" not in listed]
