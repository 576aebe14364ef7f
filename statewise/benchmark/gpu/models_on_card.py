"""Whole models on the card: memory of long sequences, a training step, tokens one by one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from statewise.benchmark.gpu import timing
from statewise.benchmark.gpu.kernels_on_card import limits
from statewise.benchmark.gpu.stages import Item, Settings, Skipped
from statewise.benchmark.workloads.models import training_action
from statewise.decoding import narrowed
from statewise.decoding.static import StaticRun, why_not_recorded
from statewise.generation import generate
from statewise.kernels import backend, gpu
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.models.presets import PRESETS
from statewise.models.quantised import QuantisedTensor

LONG = 131_072
SIZES = {"130m": (768, 24), "370m": (1024, 48), "1.3b": (2048, 48)}  # of state-spaces/mamba2-*: width and layers
BATCHES = (16, 8, 4, 2, 1)  # the largest that fits is measured
LENGTH = 2048
WAYS = {"PyTorch": "torch", "Triton": "triton"}


def build(name: str, settings: Settings, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """mamba2-SIZE, or a preset; when quick one narrow layer of each kind."""
    torch.manual_seed(0)
    with torch.device(settings.device):
        return _config(name, settings.quick).build().to(dtype)


def _config(name: str, quick: bool) -> LanguageModelConfig:
    if quick:
        mixers: dict[str, Any] = {"mamba": MambaConfig(d_state=4)}
        layers = [mixers.get(name.split("-")[0], Mamba2Config(d_state=8, d_head=8))]
        layers += [AttentionConfig(n_heads=2)] * (name.split("-")[0] in ("hybrid", "h3"))
        return LanguageModelConfig(vocab_size=64, d_model=16, layers=tuple(layers))
    if name.startswith("mamba2-"):
        d_model, n_layers = SIZES[name.removeprefix("mamba2-")]
        return LanguageModelConfig(vocab_size=50_288, d_model=d_model, layers=(Mamba2Config(),) * n_layers)
    return PRESETS[name]()


def _possible(way: str, settings: Settings) -> None:
    if way == "Triton" and (gpu.why_not() or not (settings.device == "cuda" or gpu.interprets())):
        raise Skipped(gpu.why_not() or "Triton's kernels need a GPU")


def memory(settings: Settings) -> dict[str, Item]:
    """A training step of one row of 131,072 tokens, and of half as many, with gradient checkpointing."""

    def step(way: str, length: int) -> dict[str, Any]:
        _possible(way, settings)
        device = torch.device(settings.device)
        model = build("mamba2-130m", settings)
        model.gradient_checkpointing = True
        tokens = torch.randint(model.config.vocab_size, (1, length + 1), device=device)
        with backend.use(WAYS[way]):
            return {
                "tokens": length,
                "peak_bytes": timing.peak_bytes(training_action(model, tokens, "bfloat16"), device),
            }

    most = 64 if settings.quick else LONG
    return {
        f"mamba2-130m, a training step of {length:,} tokens, {way}": partial(step, way, length)
        for way in WAYS
        for length in (most // 2, most)
    }


def training(settings: Settings) -> dict[str, Item]:
    """A step in bfloat16 (autocast, AdamW in float32) of the largest batch that fits."""
    return {f"mamba2-{size}, {way}": partial(_train, f"mamba2-{size}", way, settings) for size in SIZES for way in WAYS}


def _train(name: str, way: str, settings: Settings) -> dict[str, Any]:
    _possible(way, settings)
    device, length = torch.device(settings.device), 16 if settings.quick else LENGTH
    model = build(name, settings)
    for batch in (2,) if settings.quick else BATCHES:
        tokens = torch.randint(model.config.vocab_size, (batch, length + 1), device=device)
        action = training_action(model, tokens, "bfloat16")
        try:
            with backend.use(WAYS[way]):
                taken = timing.milliseconds(action, device, seconds=0.0 if settings.quick else 1.5)
        except torch.OutOfMemoryError:
            del action
            model.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            continue
        operations = model_operations(model) * batch * length
        return {
            "batch": batch,
            "length": length,
            "milliseconds": taken,
            "tokens_per_second": batch * length / taken * 1e3,
            "share_of_products": timing.share(operations, limits(device, settings.quick)[1], taken),
        }
    raise Skipped("not enough memory for one row")


def model_operations(model: LanguageModel) -> float:
    """The operations of a token in a training step: 6 for each weight of a matrix, 12 for each number of a state.

    Source:  the count of weights is that of Kaplan et al. 2020, arXiv:2001.08361, sec. 2.1.
    """
    weights = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    states = sum(state.numel() for layer in model.initial_state(1).layers for state in _numbers(layer))
    return 6.0 * weights + 3 * 4.0 * states


def _bytes(weight: torch.Tensor) -> int:
    return weight.blocks.n_bytes if isinstance(weight, QuantisedTensor) else weight.nbytes


def _numbers(state: Any) -> list[torch.Tensor]:
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(state) if leaf.is_floating_point()]


def decoding(settings: Settings) -> dict[str, Item]:
    """In bfloat16: one graph a step, the same step launched from Python, and all of ``generate``; and with integers."""
    found: dict[str, Item] = {}
    for name in ("mamba2-130m", "mamba-130m", "hybrid-130m", "mamba2-1.3b"):
        for batch in (1, 8):
            found[f"{name}, {batch} sequences"] = partial(_decode, name, None, batch, settings)
    for weights in ("int8", "int4"):
        for batch in (1, 8):
            found[f"mamba2-1.3b, {weights}, {batch} sequences"] = partial(
                _decode, "mamba2-1.3b", weights, batch, settings
            )
    return found


def _decode(name: str, weights: str | None, batch: int, settings: Settings) -> dict[str, Any]:
    device, seconds = torch.device(settings.device), 0.0 if settings.quick else 0.5
    model = build(name, settings, torch.bfloat16).eval()
    if weights is not None:
        model = narrowed(model, weights)
    n_bytes = sum(_bytes(m) for m in model.parameters())
    if not model.config.tie_embeddings:
        n_bytes -= _bytes(model.embedding.weight)
    state = model.initial_state(batch)
    n_bytes += 2 * sum(m.numel() * m.element_size() for m in _numbers(state))
    tokens = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    found: dict[str, Any] = {"bytes_of_a_step": n_bytes, "why_not_a_graph": why_not_recorded(model)}

    def told(label: str, step: Callable[[], Any], n_steps: int = 1) -> None:
        taken = timing.milliseconds(step, device, seconds=seconds) / n_steps
        found[label] = {
            "milliseconds": taken,
            "tokens_per_second": batch / taken * 1e3,
            "share_of_bandwidth": timing.share(n_bytes, limits(device, settings.quick)[0], taken),
        }

    with torch.inference_mode(), backend.use("torch" if device.type == "cpu" else "triton"):
        if device.type == "cuda" and found["why_not_a_graph"] is None:
            run = StaticRun(model, state)
            told("graph", lambda: run.step(tokens))
            found["graph"]["recorded"] = run.is_recorded
        plain = StaticRun(model, state, recorder=None)
        told("launched from Python", lambda: plain.step(tokens))
    n_tokens = 4 if settings.quick else 128

    def write() -> None:
        for _ in generate(model, tokens, max_new_tokens=n_tokens, temperature=0):
            pass

    with backend.use("triton" if device.type == "cuda" else "auto"):  # which asks for the graph, too
        told("generate", write, n_tokens)
    return found
