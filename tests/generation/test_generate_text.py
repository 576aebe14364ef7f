"""The text of generated tokens: as soon as it is readable, up to the stop strings, with the spaces between words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import statewise as sw
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer
from statewise.generation import generate, read
from statewise.mixers.base import Mixer, MixerConfig
from statewise.operators.causal_convolution import ConvolutionState
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf


class Silent(Mixer):
    """Adds nothing."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

        self.in_proj = torch.nn.Linear(d_model, d_model)

    def mix(self, x: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
        return torch.zeros_like(x), state

    def state_shape(self) -> ConvolutionState:
        return ConvolutionState(leaf(0))

    def reset_parameters(self, residual_scale: float = 1.0) -> None: ...


class SilentConfig(MixerConfig):
    def build(self, d_model: int) -> Silent:
        return Silent(d_model)


class Scripted(sw.LanguageModel):
    """Says after one token of prompt what it was told to say, each row its own."""

    def __init__(self, scripts: list[list[int]], vocab_size: int) -> None:
        super().__init__(sw.LanguageModelConfig(vocab_size=vocab_size, d_model=vocab_size, layers=(SilentConfig(),)))
        length = max(map(len, scripts))
        self.scripts = torch.tensor([script + [0] * (length - len(script)) for script in scripts])

    def features(
        self, tokens: Tensor, state: Any = None, *, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        _, after = super().features(tokens, state, lengths=lengths)
        at = state.position[:, None] + torch.arange(tokens.shape[1])
        said = self.scripts.gather(1, at.clamp(max=self.scripts.shape[1] - 1))
        self.head.weight = torch.nn.Parameter(100 * torch.eye(self.config.vocab_size))
        return torch.nn.functional.one_hot(said, self.config.vocab_size).float(), after


BYTES = ByteTokenizer()
SAID = "né 😀 the end.\n\nSTOP and more"


def pieces(scripts: list[list[int]], prompt: Any = None, **options: Any) -> list[list[str]]:
    model = Scripted(scripts, 257)
    prompt = [""] * len(scripts) if prompt is None else prompt
    options = {"max_new_tokens": max(map(len, scripts)), "tokenizer": BYTES, **options}
    texts = [token.text for token in generate(model, prompt, **options)]
    assert all(text is not None for text in texts)
    return [list(row) for row in zip(*texts)]  # type: ignore[arg-type]


def test_text_comes_as_soon_as_it_is_readable() -> None:
    said = pieces([BYTES.encode("né😀!")])[0]
    assert said == ["n", "", "é", "", "", "", "😀", "!"]
    cut = pieces([BYTES.encode("né😀!")], max_new_tokens=5)[0]
    assert cut == ["n", "", "é", "", "\ufffd"]


def test_stop_strings_end_each_row_before_them() -> None:
    scripts = [BYTES.encode(SAID), BYTES.encode("STO STOP"), BYTES.encode("nothing of it"), BYTES.encode("ST")]
    got = ["".join(row) for row in pieces(scripts, stop=["STOP", "😀!"], max_new_tokens=14)]
    assert got == [SAID.encode()[:14].decode(), "STO ", "nothing of it\0", "ST" + "\0" * 12]
    assert "".join(pieces([BYTES.encode(SAID)], stop="STOP")[0]) == "né 😀 the end.\n\n"
    assert "".join(pieces([BYTES.encode(SAID)], stop=["STOP", "\n\n", ".\n"])[0]) == "né 😀 the end"
    assert "".join(pieces([BYTES.encode("ab")], stop="abc")[0]) == "ab"  # held back, then given out


def test_generation_ends_with_the_stop_string() -> None:
    model = Scripted([BYTES.encode(SAID)], 257)
    tokens = list(generate(model, "", max_new_tokens=1000, stop="STOP", tokenizer=BYTES))
    assert len(tokens) == len(SAID[: SAID.index("STOP") + 4].encode())
    assert [bool(token.finished) for token in tokens] == [False] * (len(tokens) - 1) + [True]


def test_the_document_token_says_nothing_and_lets_go_what_was_held_back() -> None:
    script = [*BYTES.encode("one ST"), 256, *BYTES.encode("two")]
    assert pieces([script], stop="STOP")[0] == ["o", "n", "e", " ", "", "", "ST"]
    assert "".join(pieces([script], stop="STOP", stop_at_document=False)[0]) == "one STtwo"


def test_text_goes_on_from_the_characters_and_words_before_it() -> None:
    smile = BYTES.encode("😀")
    script = [0] * 2 + smile[2:] + BYTES.encode("!")
    model = Scripted([script], 257)
    options: dict[str, Any] = {"tokenizer": BYTES, "max_new_tokens": 3}
    assert [token.text for token in generate(model, [65, *smile[:2]], **options)] == [[""], ["😀"], ["!"]]
    reading = read(model, [65, *smile[:2]])
    assert [token.text for token in generate(model, state=reading, **options)] == [[""], ["😀"], ["!"]]


def test_words_keep_the_space_before_them() -> None:
    import tokenizers

    vocabulary = {"<s>": 0, "▁good": 1, "▁day": 2, "s": 3, "<unk>": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    made.add_special_tokens(["<s>"])
    tokenizer = FileTokenizer(made.to_str())
    model = Scripted([[1, 2, 3]], tokenizer.vocab_size)
    options: dict[str, Any] = {"tokenizer": tokenizer, "max_new_tokens": 2}
    assert [token.text for token in generate(model, "good", **options)] == [[" day"], ["s"]]
    reading = read(model, "good", tokenizer=tokenizer)
    assert [token.text for token in generate(model, state=reading, **options)] == [[" day"], ["s"]]
    assert [token.text for token in generate(model, "", **options)] == [["good"], [" day"]]
