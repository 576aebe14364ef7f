"""Text data: sources, tokenizers, the token store on disk, and batches."""

from statewise.data.batches import Batch, Batches
from statewise.data.text import Corpus, TextDataConfig, TokenSplit, open_corpus
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer, load_tokenizer, require_same_tokenizer

__all__ = [
    "Batch",
    "Batches",
    "ByteTokenizer",
    "Corpus",
    "FileTokenizer",
    "TextDataConfig",
    "TokenSplit",
    "Tokenizer",
    "load_tokenizer",
    "open_corpus",
    "require_same_tokenizer",
]
