"""Our tokenizers as the fast tokenizers of ``transformers``."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from statewise.checkpoints.convert.gguf_tokenizer import byte_letters
from statewise.conventions.published import Conventions
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer
from statewise.errors import InputError

BYTES_DOCUMENT_TOKEN = "<|endoftext|>"
PADDING_NAMES = ("<|padding|>", "<pad>", "[PAD]", "<|pad|>")


def fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """The same tokens for the same text, as ``transformers`` wants them.

    The document token is both its bos and its eos token, and goes before every text, as it does before a prompt of
    ``sw.generate``; ``add_special_tokens=False`` leaves it out. Names of special tokens in a text are text, so that no
    text can forge a document token. It pads on the left, for generation, with the tokenizer's own padding token if it
    has one and else with the document token.

    That of a published model is as it was published: its own tokens and its chat template, and the names of special
    tokens are these tokens.

    Errors:  InputError for a tokenizer of another class than ``ByteTokenizer`` and ``FileTokenizer``.
    """
    if isinstance(tokenizer, ByteTokenizer):
        backend = _bytes_backend(tokenizer)
    elif isinstance(tokenizer, FileTokenizer):
        backend = tokenizers.Tokenizer.from_str(tokenizer.json)
    else:
        raise InputError(
            f"fast_tokenizer needs a ByteTokenizer or a FileTokenizer, not a {type(tokenizer).__name__}; "
            "save it as a tokenizer.json and open that"
        )
    backend.no_truncation()
    backend.no_padding()
    if tokenizer.conventions is not None:
        return _published(backend, tokenizer.conventions)
    document = backend.id_to_token(tokenizer.document_token)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{document} $A",
        pair=f"{document} $A {document} $B",
        special_tokens=[(document, tokenizer.document_token)],
    )
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    padding = next((name for name in PADDING_NAMES if name in special), document)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=document,
        eos_token=document,
        pad_token=padding,
        padding_side="left",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _published(backend: tokenizers.Tokenizer, conventions: Conventions) -> PreTrainedTokenizerFast:
    end = backend.id_to_token(conventions.end_ids[0]) if conventions.end_ids else None
    tokens = {"eos_token": end, "pad_token": end, **conventions.names}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        padding_side="left",
        split_special_tokens=conventions.special_is_text,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **tokens,
    )
    tokenizer.chat_template = conventions.chat_template
    return tokenizer


def _bytes_backend(tokenizer: ByteTokenizer) -> tokenizers.Tokenizer:
    """Byte-level BPE without merges: each byte is a token of its own, and its id is its value."""
    alphabet = byte_letters()
    backend = tokenizers.Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([BYTES_DOCUMENT_TOKEN])
    assert backend.token_to_id(BYTES_DOCUMENT_TOKEN) == tokenizer.document_token
    return backend
