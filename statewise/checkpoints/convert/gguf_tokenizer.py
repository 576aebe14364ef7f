"""The tokenizer in a GGUF file, as a tokenizer.json, and the way back: byte-level BPE, llama.cpp's "gpt2"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from statewise.checkpoints.convert.gguf_conventions import ADD_BEGIN, ADD_END, BEGIN, END, END_KEYS, write_values
from statewise.checkpoints.convert.gguf_values import Value
from statewise.checkpoints.files import SavedTokenizer
from statewise.configuration import parse_json
from statewise.errors import CheckpointError, ConfigError

MODEL, PRE, TOKENS = "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens"
TOKEN_TYPES, MERGES = "tokenizer.ggml.token_type", "tokenizer.ggml.merges"
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
N_BYTES = 256


class Splitting(NamedTuple):
    """How text is cut before the merges. names: llama.cpp's, the first is written; the rest: of the tokenizer.json."""

    names: tuple[str, ...]
    steps: tuple[dict[str, Any], ...]
    normalizer: str | None = None
    ignore_merges: bool = False


def _by(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _cased(digits: str, marks: str = "") -> str:
    """The pattern of Llama 3, which others have with another number of digits, or with marks among the letters."""
    letters = rf"[\p{{L}}{marks}]" if marks else r"\p{L}"
    return (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}"
        rf"| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


# llama.cpp's own ranges of Chinese characters: others of the script, such as U+3005, are letters to it
HAN = r"\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{F900}-\x{FAFF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}\x{2F800}-\x{2FA1F}"
SHORT = "(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])?"  # what English puts behind an apostrophe
# llama.cpp's own forms of the makers' patterns: letters beyond ASCII are of either case, and marks are no letters
UPPER, LOWER = r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"


def _by_case(digits: str, short: str = "") -> str:
    """The pattern of Mistral's Tekken and of GPT-4o, in which a word ends where an upper case letter follows a lower.
    short: what may follow a word"""
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{UPPER}*{LOWER}+{short}|{before}{UPPER}+{LOWER}*{short}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


KIMI = (
    rf"[{HAN}]+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}&&[^{HAN}]]+{SHORT}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# "olmo" and "mpt" are GPT-NeoX's tokenizer, which puts text into NFC first; llama.cpp leaves text as it is.
SPLITTINGS = (
    Splitting(("gpt-2", "phi-2"), (_byte_level(True),)),
    Splitting(("olmo", "mpt"), (_byte_level(True),), "NFC"),
    Splitting(("starcoder", "refact", "smollm"), ({"type": "Digits", "individual_digits": True}, _byte_level(True))),
    Splitting(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral"),
        (_by(_cased(r"\p{N}{1,3}")), _byte_level(False)),
        ignore_merges=True,
    ),
    Splitting(("dbrx", "smaug-bpe"), (_by(_cased(r"\p{N}{1,3}")), _byte_level(False))),  # as Granite 4's
    Splitting(("qwen2",), (_by(_cased(r"\p{N}")), _byte_level(False)), "NFC"),
    Splitting(("qwen35",), (_by(_cased(r"\p{N}", r"\p{M}")), _byte_level(False)), "NFC"),
    Splitting(
        ("falcon",),
        (
            {"type": "Punctuation", "behavior": "Contiguous"},
            _byte_level(True),
            {"type": "Digits", "individual_digits": False},
            _by("[0-9][0-9][0-9]"),
        ),
    ),
    Splitting(("tekken",), (_by(_by_case(r"\p{N}")), _byte_level(False)), ignore_merges=True),
    Splitting(("gpt-4o",), (_by(_by_case(r"\p{N}{1,3}", SHORT)), _byte_level(False))),
    Splitting(("kimi-k2",), (_by(KIMI), _byte_level(False))),
    Splitting(
        ("default",),
        (*map(_by, (r"[\p{P}$+<=>\^~|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")), _byte_level(False)),
    ),
)


def read_tokenizer(metadata: Mapping[str, Value]) -> str | None:
    """The text of a tokenizer.json; None if there is no tokenizer, or one of another kind than the above.

    Tokens that the file marks as unused, as those that pad a vocabulary, are left out. The tokens that begin and end
    a text are special, whatever their type. A file that names no splitting, as those from before May 2024, has GPT-2's.
    """
    tokens, merges = metadata.get(TOKENS), metadata.get(MERGES)
    pre = metadata.get(PRE, "gpt-2")
    splitting = next((s for s in SPLITTINGS if pre in s.names), None)
    if (
        metadata.get(MODEL) != "gpt2"
        or splitting is None
        or not isinstance(tokens, list)
        or not isinstance(merges, list)
    ):
        return None
    types = metadata.get(TOKEN_TYPES, [NORMAL] * len(tokens))
    pairs = [str(merge).split(" ") for merge in merges]
    if not isinstance(types, list) or len(types) != len(tokens) or any(len(pair) != 2 for pair in pairs):
        return None
    ends = {end for key in (BEGIN, *END_KEYS) if isinstance(end := metadata.get(key), int)}
    used = [(i, str(token), types[i]) for i, token in enumerate(tokens) if types[i] != UNUSED]
    vocabulary = {token: i for i, token, _ in used}
    if len(vocabulary) < len(used):  # two tokens of one text
        return None
    added = [
        {"id": i, "content": token, "special": kind == CONTROL or i in ends}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, token, kind in used
        if kind in (CONTROL, USER_DEFINED) or i in ends
    ]
    steps = list(splitting.steps)
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": {"type": splitting.normalizer} if splitting.normalizer else None,
            "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
            "post_processor": _adding(metadata, vocabulary, splitting),
            "decoder": _byte_level(True),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": splitting.ignore_merges,
                "vocab": vocabulary,
                "merges": pairs,
            },
        },
        ensure_ascii=False,
    )


def write_tokenizer(tokenizer: SavedTokenizer | None, vocab_size: int) -> dict[str, Value]:
    """The values that llama.cpp reads. ``vocab_size`` is the model's: what it has beyond the tokenizer is unused.

    The document token becomes the one that begins and ends texts, and as here, none is put before a text unasked;
    of a published tokenizer they are its own tokens, and its chat template goes with them.

    Errors:  CheckpointError for a tokenizer larger than the model, and for one that is not a byte-level BPE whose
             splitting llama.cpp knows.
    """
    if tokenizer is None:
        return {MODEL: "no_vocab"}
    if tokenizer.vocab_size > vocab_size:
        raise CheckpointError(f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {vocab_size}")
    if tokenizer.kind == "bytes":
        pre, merges = "gpt-2", list[str]()
        found = {i: (text, NORMAL) for i, text in enumerate(byte_letters())}
        found[tokenizer.document_token] = "<|endoftext|>", CONTROL
    else:
        pre, found, merges = _parse(tokenizer.json)  # type: ignore[attr-defined]
    conventions = getattr(tokenizer, "conventions", None)
    ends: dict[str, Value] = dict.fromkeys((BEGIN, END), tokenizer.document_token)
    if conventions is not None:
        ids = {text: i for i, (text, _) in found.items()}
        ends = write_values(conventions, tokenizer.document_token, lambda i: found.get(i, ("", 0))[0], ids.get)
    prefix = list(getattr(tokenizer, "prefix", ()))
    listed = [found.get(i, (f"[PAD{i}]", UNUSED)) for i in range(vocab_size)]
    return {
        MODEL: "gpt2",
        PRE: pre,
        TOKENS: [text for text, _ in listed],
        TOKEN_TYPES: [kind for _, kind in listed],
        MERGES: merges,
        **ends,
        ADD_BEGIN: bool(prefix) and prefix == [ends.get(BEGIN)],
    }


def _adding(metadata: Mapping[str, Value], vocabulary: Mapping[str, int], splitting: Splitting) -> Any:
    """The post-processor that puts the begin and the end token round a text, where the file says so."""
    texts = {i: text for text, i in vocabulary.items()}
    before, after = (
        [texts[i]] if isinstance(i := metadata.get(key), int) and i in texts and metadata.get(added, default) else []
        for key, added, default in ((BEGIN, ADD_BEGIN, splitting.ignore_merges), (END, ADD_END, False))
    )
    if not before + after:
        return None

    def around(sequence: str) -> list[dict[str, Any]]:
        def special(text: str) -> dict[str, Any]:
            return {"SpecialToken": {"id": text, "type_id": 0}}

        return [*map(special, before), {"Sequence": {"id": sequence, "type_id": 0}}, *map(special, after)]

    return {
        "type": "TemplateProcessing",
        "single": around("A"),
        "pair": around("A") + around("B"),
        "special_tokens": {text: {"id": text, "ids": [vocabulary[text]], "tokens": [text]} for text in before + after},
    }


def byte_letters() -> list[str]:
    """What stands for each byte in a byte-level vocabulary: itself where Latin-1 shows it, else letters from 256 on.

    Source:  Radford et al. 2019 (GPT-2), sec. 2.2; the table of its released encoder.
    """
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(N_BYTES) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown} | {byte: chr(N_BYTES + i) for i, byte in enumerate(hidden)}
    return [letters[byte] for byte in range(N_BYTES)]


def _parse(text: str) -> tuple[str, dict[int, tuple[str, int]], list[str]]:
    """The name of the splitting; text and type of each token; the merges."""
    try:
        given = parse_json(text.encode(), "the tokenizer's JSON")
        model = given["model"]
        if model.get("type", "BPE") != "BPE" or any(
            model.get(key) for key in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout")
        ):
            raise _refused("is not a byte-level BPE")
        found = {i: (token, NORMAL) for token, i in model["vocab"].items()}
        for token in given.get("added_tokens") or ():
            found[token["id"]] = token["content"], CONTROL if token["special"] else USER_DEFINED
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        raise _refused("is not a tokenizer.json") from error
    if any(merge.count(" ") != 1 for merge in merges):
        raise _refused("has merges with spaces")
    return _splitting_of(given, model).names[0], found, merges


def _splitting_of(given: Mapping[str, Any], model: Mapping[str, Any]) -> Splitting:
    """Among those that cut alike, the one with the same normalizer, or else the first."""
    alike = [
        s
        for s in SPLITTINGS
        if [_plain(step) for step in s.steps] == _flat(given.get("pre_tokenizer"))
        and s.ignore_merges == bool(model.get("ignore_merges"))
    ]
    normalizer = (given.get("normalizer") or {}).get("type")
    if not alike or normalizer not in (None, "NFC"):
        raise _refused("splits text in a way that llama.cpp has no name for")
    return next((s for s in alike if s.normalizer == normalizer), alike[0])


def _flat(step: Any) -> list[dict[str, Any]]:
    """The steps of a pre-tokenizer, one after the other."""
    if not isinstance(step, dict):
        return []
    inner = step.get("pretokenizers")
    return [_plain(step)] if inner is None else [plain for each in inner for plain in _flat(each)]


def _plain(step: Mapping[str, Any]) -> dict[str, Any]:
    """Without what changes no token, and with what is assumed."""
    plain = {key: value for key, value in step.items() if key != "trim_offsets"}
    return {"use_regex": True} | plain if plain.get("type") == "ByteLevel" else plain


def _refused(why: str) -> CheckpointError:
    return CheckpointError(f"GGUF: the tokenizer {why}; write the file without it, or with another")
