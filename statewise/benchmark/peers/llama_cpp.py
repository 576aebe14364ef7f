"""llama.cpp with our weights: a model written as GGUF, quantised by llama.cpp itself, read and run through its API."""

from __future__ import annotations

import ctypes
import functools
import tempfile
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statewise.benchmark.case import Missing
from statewise.benchmark.peers import require
from statewise.checkpoints.convert.gguf import write_gguf
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.errors import CheckpointError
from statewise.models.language_model import LanguageModel

# Names of llama_ftype, as `llama-quantize` takes them: matrices in this type, vectors in float32
TYPES = {"float32": "ALL_F32", "float16": "MOSTLY_F16", "bfloat16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
TYPES["q4_0"] = "MOSTLY_Q4_0"
_last: weakref.ref[LanguageModel] | None = None  # the model whose files are in the folder


class LlamaCpp:
    """A model of llama.cpp that reads tokens from rest, greedily going on where asked to.

    Errors:  Missing without llama-cpp-python, or for a model that GGUF has no form for.
    """

    def __init__(self, model: LanguageModel, weights: str, n_threads: int, context_length: int) -> None:
        self._open(written(model, weights), n_threads, context_length)

    @classmethod
    def of_file(cls, path: Path, n_threads: int, context_length: int) -> LlamaCpp:
        """The model of a GGUF file."""
        llama = cls.__new__(cls)
        llama._open(path, n_threads, context_length)
        return llama

    def _open(self, path: Path, n_threads: int, context_length: int) -> None:
        self.api = _api()
        self._model = self.api.llama_model_load_from_file(str(path).encode(), self.api.llama_model_default_params())
        options = self.api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = context_length, context_length, min(context_length, 512)
        options.n_threads = options.n_threads_batch = n_threads
        self._context = self.api.llama_init_from_model(self._model, options) if self._model else None
        if not self._context:
            raise Missing("llama.cpp cannot load the file that was written for it")
        self.vocab_size = self.api.llama_vocab_n_tokens(self.api.llama_model_get_vocab(self._model))

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self.api.llama_free(self._context)
            self.api.llama_model_free(self._model)

    def read(self, tokens: list[int], *, from_rest: bool = True) -> np.ndarray:
        """The logits after the last token."""
        if from_rest:
            self.api.llama_memory_clear(self.api.llama_get_memory(self._context), True)
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        if self.api.llama_decode(self._context, self.api.llama_batch_get_one(ids, len(tokens))):
            raise RuntimeError("llama_decode failed")
        logits = self.api.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(logits, (self.vocab_size,)).copy()

    def generate(self, n_tokens: int) -> list[int]:
        """This many tokens after token 0, each the most likely."""
        tokens = [0]
        for _ in range(n_tokens):
            tokens.append(int(self.read(tokens[-1:], from_rest=len(tokens) == 1).argmax()))
        return tokens[1:]


@functools.cache
def _silence() -> Any:
    """llama.cpp tells standard error what it loads; the callback has to stay alive."""
    api = require("llama_cpp", "llama")
    callback = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(callback, None)
    api.llama_backend_init()
    return callback


def _api() -> Any:
    api = require("llama_cpp", "llama")
    _silence()
    return api


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="statewise-gguf-")


def written(model: LanguageModel, weights: str) -> Path:
    """The file of these weights; the last model written stays, so that its other types come from it."""
    global _last
    plain, wanted = (Path(_folder().name, f"{name}.gguf") for name in ("float32", weights))
    if _last is None or _last() is not model:
        for old in Path(_folder().name).iterdir():
            old.unlink()
        try:
            write_gguf(model.config, stored_tensors(model), plain, dtype=torch.float32)
        except CheckpointError as error:
            raise Missing(str(error)) from error
        _last = weakref.ref(model)
    if not wanted.exists():
        api = _api()
        options = api.llama_model_quantize_default_params()
        options.ftype = getattr(api, f"LLAMA_FTYPE_{TYPES[weights]}")
        options.nthread = torch.get_num_threads()
        if api.llama_model_quantize(str(plain).encode(), str(wanted).encode(), ctypes.byref(options)):
            raise Missing(f"llama.cpp cannot quantise to {weights}")
    return wanted
