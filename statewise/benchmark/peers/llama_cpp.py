"""llama.cpp with our weights: a Mamba written as GGUF, quantised by llama.cpp itself, read and run through its API."""

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
from statewise.mixers.mamba import MambaConfig
from statewise.models.language_model import LanguageModel

# Names of llama_ftype, as `llama-quantize` takes them: matrices in this type, vectors in float32
TYPES = {"float32": "ALL_F32", "float16": "MOSTLY_F16", "bfloat16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
TYPES["q4_0"] = "MOSTLY_Q4_0"
_last: weakref.ref[LanguageModel] | None = None  # the model whose files are in the folder


class LlamaCpp:
    """A model of llama.cpp that reads tokens from rest, greedily going on where asked to.

    Errors:  Missing without llama-cpp-python and gguf, or for a model that is not Mamba all through.
    """

    def __init__(self, model: LanguageModel, weights: str, n_threads: int, context_length: int) -> None:
        self.api = _api()
        path = _written(model, weights)
        self._model = self.api.llama_model_load_from_file(str(path).encode(), self.api.llama_model_default_params())
        options = self.api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = context_length, context_length, min(context_length, 512)
        options.n_threads = options.n_threads_batch = n_threads
        self._context = self.api.llama_init_from_model(self._model, options) if self._model else None
        if not self._context:
            raise Missing("llama.cpp does not load the file written for it")
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
        """So many tokens after token 0, each the likeliest."""
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


def _written(model: LanguageModel, weights: str) -> Path:
    """The file of these weights; the last model written stays, so that its other types come from it."""
    global _last
    plain, wanted = (Path(_folder().name, f"{name}.gguf") for name in ("float32", weights))
    if _last is None or _last() is not model:
        for old in Path(_folder().name).iterdir():
            old.unlink()
        write_gguf(model, plain)
        _last = weakref.ref(model)
    if not wanted.exists():
        api = _api()
        options = api.llama_model_quantize_default_params()
        options.ftype = getattr(api, f"LLAMA_FTYPE_{TYPES[weights]}")
        options.nthread = torch.get_num_threads()
        if api.llama_model_quantize(str(plain).encode(), str(wanted).encode(), ctypes.byref(options)):
            raise Missing(f"llama.cpp cannot write {weights}")
    return wanted


def _weight(module: Any) -> torch.Tensor:
    weight: torch.Tensor = module.weight
    return weight


def write_gguf(model: LanguageModel, path: Path) -> None:
    """A language model of Mamba layers, without a vocabulary, in float32.

    Source:  the names that llama.cpp's architecture "mamba" reads (gguf 0.19).
    """
    gguf = require("gguf", "llama")
    config = model.config.blocks[0].mixer
    if {type(block.mixer) for block in model.config.blocks} != {MambaConfig}:
        raise Missing("only a Mamba is written for llama.cpp here")
    assert isinstance(config, MambaConfig)
    writer = gguf.GGUFWriter(str(path), "mamba")
    writer.add_context_length(2**20)
    writer.add_embedding_length(model.config.d_model)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(len(model.layers))
    writer.add_ssm_conv_kernel(config.n_taps)
    writer.add_ssm_inner_size(config.expand * model.config.d_model)
    writer.add_ssm_state_size(config.d_state)
    writer.add_ssm_time_step_rank(config.dt_rank or -(-model.config.d_model // 16))
    writer.add_layer_norm_rms_eps(model.config.norm_eps)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(model.config.vocab_size)

    def add(name: str, tensor: torch.Tensor) -> None:
        writer.add_tensor(name, tensor.detach().float().contiguous().numpy())

    add("token_embd.weight", model.embedding.weight)
    add("output_norm.weight", _weight(model.norm))
    if not model.config.tie_embeddings:
        add("output.weight", model.head.weight)
    for i, block in enumerate(model.blocks):
        mixer: Any = block.mixer
        add(f"blk.{i}.attn_norm.weight", _weight(block.mixer_norm))
        add(f"blk.{i}.ssm_in.weight", mixer.in_proj.weight)
        add(f"blk.{i}.ssm_conv1d.weight", mixer.convolution.weight.flip(-1))
        add(f"blk.{i}.ssm_conv1d.bias", mixer.convolution.bias)
        add(f"blk.{i}.ssm_x.weight", mixer.x_proj.weight)
        add(f"blk.{i}.ssm_dt.weight", mixer.dt_proj.weight)
        add(f"blk.{i}.ssm_dt.bias", mixer.dynamics.dt_bias)
        add(f"blk.{i}.ssm_a", -mixer.dynamics.A_log.exp())
        add(f"blk.{i}.ssm_d", mixer.dynamics.D)
        add(f"blk.{i}.ssm_out.weight", mixer.out_proj.weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
