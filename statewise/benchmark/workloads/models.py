"""Whole models of about 130M parameters with random weights: a training step, reading a prompt, writing tokens.

Hugging Face and llama.cpp get the same weights as ours, so that all sides compute the same function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from statewise.benchmark.case import Action, Case, Missing, Workload, our_sides
from statewise.kernels.linear_cross_entropy import linear_cross_entropy
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.models.presets import PRESETS

PRESET_NAMES = ("mamba-130m", "mamba2-130m", "hybrid-130m")
BFLOAT16 = "ours in bfloat16"
HUGGING_FACE, LLAMA_CPP = "Hugging Face", "llama.cpp"
VOCABULARY = 50_280
PROMPT, WRITTEN, TRAINED = 512, 32, 512  # tokens
# What llama.cpp calls the same precision, first what the bar is about
LLAMA_TYPES = {"float32": ("float32",), "bfloat16": ("bfloat16", "float16"), "int8": ("q8_0",), "int4": ("q4_0",)}
ROWS = 8  # sequences at once
_built: dict[tuple[str, bool, torch.dtype], LanguageModel] = {}


def build(preset: str, quick: bool, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """The preset, in evaluation mode; the one built last is kept, for the sides and cases that share it."""
    key = (preset, quick, dtype)
    if key not in _built:
        _built.clear()
        torch.manual_seed(0)
        config = PRESETS[preset](512 if quick else VOCABULARY)
        _built[key] = (_small(config) if quick else config).build().to(dtype).eval()
    return _built[key]


def _small(config: LanguageModelConfig) -> LanguageModelConfig:
    """One layer of each kind, narrow."""
    kinds = {type(block.mixer): block for block in config.blocks}
    layers = tuple(replace(block, mixer=_narrow(block.mixer)) for block in kinds.values())
    return replace(config, d_model=128, layers=layers)


def _narrow(mixer: Any) -> Any:
    return replace(mixer, n_heads=2, n_kv_heads=2, d_head=64) if hasattr(mixer, "n_kv_heads") else mixer


def prompt(model: LanguageModel, length: int, batch: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(model.config.vocab_size, (batch, length), generator=generator)


# -- decoding ----------------------------------------------------------------------------------------------------------


def our_decoding(preset: str, quick: bool, weights: str, n_tokens: int, batch: int) -> Action:
    """One call of the decoder for each token, as `generate` makes it, always taking the most likely token."""
    from statewise.decoding import Decoder

    decoder = Decoder(build(preset, quick), weights)

    def decode() -> torch.Tensor:
        running, token = decoder.run(decoder.initial_state(batch)), torch.zeros(batch, dtype=torch.int64)
        tokens = []
        for _ in range(n_tokens):
            logits = running.step(token)
            assert logits is not None  # they were asked for
            token = logits.argmax(-1)
            tokens.append(token)
        return torch.stack(tokens, 1)

    return torch.inference_mode()(decode)


def our_loop(preset: str, quick: bool, weights: str, n_tokens: int, batch: int) -> Action:
    """The same through the model in PyTorch, which is what runs without C."""
    if weights not in ("float32", "bfloat16"):
        raise Missing(f"{weights} weights are decoded in C only")
    model = build(preset, quick, getattr(torch, weights))

    def decode() -> torch.Tensor:
        state, token = model.initial_state(batch), torch.zeros(batch, 1, dtype=torch.int64)
        tokens = []
        for _ in range(n_tokens):
            logits, state = model(token, state)
            token = logits[:, -1].argmax(-1, keepdim=True)
            tokens.append(token)
        return torch.cat(tokens, 1)

    return torch.inference_mode()(decode)


def their_decoding(preset: str, quick: bool, weights: str, n_tokens: int, batch: int) -> Action:
    from statewise.benchmark.peers.hugging_face import hugging_face

    theirs = hugging_face(build(preset, quick, getattr(torch, weights)))
    start = torch.zeros(batch, 1, dtype=torch.int64)
    options = {"max_new_tokens": n_tokens, "min_new_tokens": n_tokens, "do_sample": False}
    return lambda: theirs.generate(start, attention_mask=torch.ones_like(start), **options)


def llama_decoding(preset: str, quick: bool, weights: str, n_tokens: int) -> Action:
    from statewise.benchmark.peers.llama_cpp import LlamaCpp

    llama = LlamaCpp(build(preset, quick), weights, torch.get_num_threads(), 512)
    return lambda: llama.generate(n_tokens)


def decoding_name(preset: str, weights: str, batch: int = 1) -> str:
    return f"{preset}, {weights}, {'one sequence' if batch == 1 else f'{batch} sequences'}"


def decoding(quick: bool) -> list[Case]:
    n_tokens = 4 if quick else WRITTEN
    asked = [("mamba-130m", weights, 1) for weights in LLAMA_TYPES]
    asked += [("mamba-130m", weights, ROWS) for weights in LLAMA_TYPES]
    asked += [
        (preset, weights, batch)
        for preset in PRESET_NAMES[1:]
        for weights in ("float32", "int8")
        for batch in (1, ROWS)
    ]
    found = []
    for preset, weights, batch in asked:
        shared = (preset, quick, weights, n_tokens, batch)
        sides = our_sides(functools.partial(our_decoding, *shared), functools.partial(our_loop, *shared))
        if weights in ("float32", "bfloat16"):
            sides[HUGGING_FACE] = functools.partial(their_decoding, *shared)
        if preset == "mamba-130m" and batch == 1:
            for kind in LLAMA_TYPES[weights]:
                sides[f"{LLAMA_CPP} {kind}"] = functools.partial(llama_decoding, preset, quick, kind, n_tokens)
        found.append(
            Case(
                name=decoding_name(preset, weights, batch),
                setting=f"{n_tokens} tokens from rest, each the most likely",
                sides=sides,
                length=n_tokens * batch,
                rounds=3,
            )
        )
    return found


def bytes_read(preset: str, weights: str, n_tokens: int = WRITTEN, quick: bool = False) -> float:
    """In one call: every packed weight, once for each token. The states, read and written as well, are not counted."""
    from statewise.decoding import Decoder

    return float(n_tokens * Decoder(build(preset, quick), weights).n_bytes)


# -- prefill -----------------------------------------------------------------------------------------------------------


def our_prefill(preset: str, quick: bool, length: int) -> Action:
    model = build(preset, quick)
    tokens = prompt(model, length)

    def read() -> torch.Tensor:
        features, _ = model.features(tokens, model.initial_state(1))
        return model.head(features[:, -1])

    return torch.inference_mode()(read)


def prefill_operations(preset: str, length: int = PROMPT, quick: bool = False) -> float:
    """To read a prompt: the products with the matrices of all layers, and of the last token with the head's."""
    model = build(preset, quick)
    layers = sum(m.weight.numel() for block in model.blocks for m in block.modules() if isinstance(m, torch.nn.Linear))
    return 2.0 * (length * layers + model.head.weight.numel())


def their_prefill(preset: str, quick: bool, length: int) -> Action:
    from statewise.benchmark.peers.hugging_face import hugging_face

    model = build(preset, quick)
    theirs, tokens = hugging_face(model), prompt(model, length)
    return torch.inference_mode()(lambda: theirs(tokens, use_cache=True, logits_to_keep=1).logits)


def llama_prefill(preset: str, quick: bool, length: int) -> Action:
    from statewise.benchmark.peers.llama_cpp import LlamaCpp

    model = build(preset, quick)
    llama, tokens = LlamaCpp(model, "float32", torch.get_num_threads(), length), prompt(model, length)[0].tolist()
    return lambda: llama.read(tokens)


def prefill(quick: bool) -> list[Case]:
    length = 64 if quick else PROMPT
    found = []
    for preset in PRESET_NAMES:
        shared = (preset, quick, length)
        sides = our_sides(functools.partial(our_prefill, *shared))
        if preset != "hybrid-130m":
            sides[HUGGING_FACE] = functools.partial(their_prefill, *shared)
        if preset == "mamba-130m":
            sides[LLAMA_CPP] = functools.partial(llama_prefill, *shared)
        found.append(
            Case(
                name=preset,
                setting=f"a prompt of {length} tokens, the logits of the last, and the state",
                sides=sides,
                length=length,
                rounds=3,
            )
        )
    return found


# -- training ----------------------------------------------------------------------------------------------------------


def our_training(preset: str, quick: bool, length: int, precision: str = "float32") -> Action:
    model = build(preset, quick)
    return training_action(model, prompt(model, length + 1), precision)


def training_action(model: LanguageModel, tokens: torch.Tensor, precision: str = "float32") -> Action:
    """A training step on these tokens, (batch, length + 1), as `statewise train` takes it with this precision."""
    from statewise.training.config import OptimizerConfig
    from statewise.training.environment import autocast
    from statewise.training.optimizer import build_optimizer, parameter_groups

    config = OptimizerConfig()
    optimizer = build_optimizer(parameter_groups(model.train(), config), config)

    def loss() -> torch.Tensor:
        with autocast(precision, tokens.device):
            features, _ = model.features(tokens[:, :-1])
            return linear_cross_entropy(features.flatten(0, 1), model.head.weight, tokens[:, 1:].flatten())

    def step() -> torch.Tensor:
        model.train()
        return _step(loss, optimizer)

    return step


def their_training(preset: str, quick: bool, length: int, use_mambapy: bool = False) -> Action:
    from statewise.benchmark.peers.hugging_face import hugging_face

    model = build(preset, quick).train()
    theirs, tokens = hugging_face(model, use_mambapy=use_mambapy), prompt(model, length + 1)
    for parameter in theirs.parameters():
        parameter.requires_grad_()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-6)

    def loss() -> torch.Tensor:
        logits = theirs(tokens[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return functools.partial(_step, loss, optimizer)


def _step(loss_of: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Forward, backward and update at a rate so low that the weights stay what they were."""
    for group in optimizer.param_groups:
        group["lr"] = 1e-6
    loss = loss_of()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def training(quick: bool) -> list[Case]:
    length = 32 if quick else TRAINED
    found = []
    for preset in PRESET_NAMES:
        shared = (preset, quick, length)
        sides = our_sides(functools.partial(our_training, *shared))
        sides[BFLOAT16] = functools.partial(our_training, *shared, "bfloat16")
        if preset == "mamba2-130m":
            sides[HUGGING_FACE] = functools.partial(their_training, *shared)
        elif preset == "mamba-130m":  # its own loop takes minutes for a step
            sides[f"{HUGGING_FACE} with mambapy"] = functools.partial(their_training, *shared, use_mambapy=True)
        found.append(
            Case(
                name=preset,
                setting=f"batch 1, {length} tokens: forward, backward and AdamW; in float32 unless said",
                sides=sides,
                length=length,
                rounds=2,
            )
        )
    return found


DECODING = Workload(
    name="decoding",
    summary="tokens one by one, greedily, by precision: Hugging Face, llama.cpp",
    cases=decoding,
)
PREFILL = Workload(name="prefill", summary="a prompt of 512 tokens: Hugging Face, llama.cpp", cases=prefill)
TRAINING = Workload(
    name="training",
    summary="a training step of Mamba, Mamba-2 and a hybrid of 130M: Hugging Face",
    cases=training,
    memory=("mamba-130m", "mamba2-130m"),
)
