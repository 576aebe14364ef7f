"""What runs here, and what a checkpoint holds: the facts that `statewise info` prints."""

from __future__ import annotations

import copy
import platform
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from statewise import __version__, native
from statewise.benchmark.ceilings import bfloat16_gain, kept, pays
from statewise.benchmark.processor import processor
from statewise.decoding.reading import WAYS, asked_for, uses_vnni
from statewise.kernels import describe
from statewise.kernels.gpu.status import on_cards
from statewise.mixers.base import Mixer
from statewise.mixers.no_mixer import NoMixer
from statewise.models.base import Model
from statewise.models.block import Block
from statewise.models.evaluation_mode import evaluation_mode
from statewise.native.threads import runtime

FEW_TOKENS = 16  # which are read
PROBE_TOKENS = 1024


def environment() -> dict[str, Any]:
    """Versions, devices, threads, and for each kernel which path runs and why the others do not, and the same of each
    GPU (``cards``); the processor, and its ``ceilings`` if `statewise benchmark ceilings` has measured them, else None;
    ``bfloat16``: whether training in it pays here.
    """
    kernels, ceilings = describe(), kept()
    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "statewise": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "device": f"cuda ({', '.join(cuda)})" if cuda else "cpu",
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "processor": processor(),
        "ceilings": ceilings,
        "bfloat16": _bfloat16(ceilings),
        "c_kernels": _c_kernels(),
        "decoding": _decoding(),
        "kernels": [status._asdict() for status in kernels],
        "cards": [status._asdict() for status in on_cards([status.kernel for status in kernels])],
    }


def _bfloat16(ceilings: dict[str, Any] | None) -> dict[str, Any]:
    """``gain``: how many times as fast as in float32 products are, and whether training in it ``pays``; None where
    that was not measured."""
    gain = bfloat16_gain(ceilings)
    return {"gain": gain, "pays": None if gain is None else pays(gain)}


def _decoding() -> dict[str, Any]:
    """``ways`` in which a step can ask for its weights (its first steps try them), the one that was ``asked`` for, and
    whether products of integers use ``vnni``."""
    asked = asked_for()
    has_vnni = "avx512_vnni" in processor()["extensions"] and native.available()
    vnni = has_vnni and native.instruction_set() == "avx512" and uses_vnni()
    return {"ways": [str(way) for way in WAYS], "asked": None if asked is None else str(asked), "vnni": vnni}


def _c_kernels() -> dict[str, Any]:
    """Whether the C library is there and, if not, why; its instruction set; the threads that it shares with PyTorch."""
    if not native.available():
        return {"available": False, "why_not": native.why_not()}
    threads = runtime()
    return {
        "available": True,
        "library": str(native.library_path()),
        "instruction_set": native.instruction_set(),
        "instruction_sets": list(native.instruction_sets()),
        "threads": "one: PyTorch's OpenMP runtime was not found" if threads is None else f"those of {threads}",
    }


def parts(model: Model) -> list[dict[str, Any]]:
    """One record for each part of a model in order: of a language model its embedding, layers, norm and head.

    Records have ``part``, ``parameters`` (of the whole part; shared ones count where they come first), and for
    layers ``mixer`` (its class), ``mixer_parameters``, ``mlp_parameters`` and ``state`` (see :func:`state_size`; None
    for a layer that reads in both directions). A part without parameters of its own or of others is left out.
    """
    counted: set[int] = set()
    sizes: dict[tuple[type, str, int], dict[str, Any]] = {}  # of states: most layers are alike

    def size_of(mixer: Mixer) -> dict[str, Any]:
        like = type(mixer), repr(getattr(mixer, "config", id(mixer))), mixer.d_model
        if like not in sizes:
            sizes[like] = state_size(mixer)
        return sizes[like]

    def count(module: nn.Module | None, recurse: bool = True) -> int:
        own = [] if module is None else [p for p in module.parameters(recurse) if id(p) not in counted]
        counted.update(id(p) for p in own)
        return sum(p.numel() for p in own)

    def walk(module: nn.Module, prefix: str) -> Iterator[dict[str, Any]]:
        if direct := count(module, recurse=False):
            yield {"part": f"{prefix}parameters", "parameters": direct}
        for name, child in module.named_children():
            if isinstance(child, Block):
                yield layer(child, prefix + name)
            elif any(isinstance(inner, Block) for inner in child.modules()):
                yield from walk(child, f"{prefix}{name}.")
            elif any(True for _ in child.parameters()):
                yield {"part": prefix + name, "parameters": count(child)}

    def layer(block: Block, name: str) -> dict[str, Any]:
        mixer, mlp = count(block.mixer), count(block.mlp)
        return {
            "part": name,
            "parameters": mixer + mlp + count(block),
            "mixer": type(block.mixer).__name__,
            "mixer_parameters": mixer,
            "mlp_parameters": mlp,
            "state": size_of(block.mixer) if block.mixer.is_causal else None,
        }

    return list(walk(model, ""))


def state_size(mixer: Mixer) -> dict[str, Any]:
    """The bytes of one sequence's state: ``at_rest``, ``bytes`` after ``tokens``, and ``per_token`` beyond them.

    A state that one token does not enlarge is taken to stay as it is. Others are measured by reading a few tokens, and
    grow alike up to 1,024, or the whole window of windowed attention, or as many as there are positions. A mixer on
    the meta device is given memory for that, which nobody writes to.
    """
    if isinstance(mixer, NoMixer):
        return {"at_rest": 0, "tokens": 1, "bytes": 0, "per_token": 0}
    if next(mixer.parameters()).is_meta:
        mixer = copy.deepcopy(mixer).to_empty(device="cpu")
    at_rest = _state_bytes(mixer, 0)
    if _state_bytes(mixer, 1) == at_rest:
        return {"at_rest": at_rest, "tokens": 1, "bytes": at_rest, "per_token": 0}
    config = getattr(mixer, "config", None)
    n_tokens = max(PROBE_TOKENS, getattr(config, "window", None) or 0)
    n_tokens = min(n_tokens, getattr(config, "max_positions", None) or n_tokens)
    few = min(n_tokens, FEW_TOKENS)
    size = _state_bytes(mixer, few)
    size += (size - _state_bytes(mixer, few // 2)) // (few - few // 2) * (n_tokens - few)
    per_token = 0 if mixer.bounded_state else (size - at_rest) // n_tokens
    return {"at_rest": at_rest, "tokens": n_tokens, "bytes": size, "per_token": per_token}


def _state_bytes(mixer: Mixer, length: int) -> int:
    state = mixer.initial_state(1)
    if length:
        weight = next(mixer.parameters())
        with evaluation_mode(mixer), torch.no_grad():
            _, state = mixer(torch.zeros(1, length, mixer.d_model, device=weight.device, dtype=weight.dtype), state)
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(state))
