"""Hybrids of about 350 million to 1 billion random parameters beside llama.cpp, or beside transformers: milliseconds.

    python benchmarks/hybrids.py --out hybrids.json                      # those that llama.cpp has
    python benchmarks/hybrids.py --models bamba,zamba2,olmo-hybrid,recurrent-gemma --out hybrids.json
    python benchmarks/hybrids.py --quick                                 # small, to see that it runs

Models have the shapes of published ones. One GGUF file of each, which llama.cpp itself quantises, is read by both
sides: they have the same weights in the same bits. In turns, in one process: a prompt of 2,048 tokens, and tokens one
by one from rest, each the most likely. "Step" says how our tokens are decoded: in C, or through PyTorch, and why. A
file that is there is added to: models can be run one by one. Needs ``pip install "statewise[llama]"``, or transformers.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import statewise as sw
from statewise import native
from statewise.benchmark.case import Action, Case
from statewise.benchmark.peers import llama_cpp
from statewise.benchmark.processor import describe_processor, processor
from statewise.benchmark.timing import Times, time_case
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.hybrids import family_of
from statewise.decoding import Decoder, refusal
from statewise.generation import read
from statewise.models.language_model import LanguageModel

LINEAR, FULL, CONVOLUTION = "linear_attention", "full_attention", "conv"
OURS, LLAMA_CPP, TRANSFORMERS = "ours", "llama.cpp", "transformers"
KEPT = ("q8_0", "q4_0")  # whose integers our side reads as they are
Fields = dict[str, Any]


def layers(n: int, attention: tuple[int, ...], other: str = LINEAR) -> Fields:
    return {"num_hidden_layers": n, "layer_types": [FULL if i in attention else other for i in range(n)]}


GRANITE: Fields = {"vocab_size": 100_352, "num_local_experts": 0, "mamba_n_heads": 48, "mamba_d_state": 128}
GRANITE |= {"num_attention_heads": 12, "num_key_value_heads": 4, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}
GRANITE |= {"embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.246}
FALCON: Fields = {"vocab_size": 32_784, "hidden_size": 1024, "num_hidden_layers": 36, "intermediate_size": 2048}
FALCON |= {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "mamba_d_ssm": 1536, "mamba_n_heads": 24}
FALCON |= {"mamba_d_head": 64, "mamba_d_state": 128, "rope_theta": 1e11}
QWEN: Fields = {"vocab_size": 248_320, "hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 8}
QWEN |= {"num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16}
QWEN |= {"tie_word_embeddings": True, "rope_theta": 1e7}
LFM2: Fields = {"vocab_size": 65_536, "num_key_value_heads": 8, "block_auto_adjust_ff_dim": False, "rope_theta": 1e6}
LFM2 |= layers(16, (2, 5, 8, 10, 12, 14), CONVOLUTION)
PLAIN: Fields = {"vocab_size": 32_000, "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24}
PLAIN |= {"tie_word_embeddings": True}
# By name: model_type, its fields, and the other side
MODELS: dict[str, tuple[str, Fields, str]] = {
    "granite-4.0-h-350m": (
        "granitemoehybrid",
        GRANITE
        | {"hidden_size": 768, "mamba_d_head": 32, "shared_intermediate_size": 2048, "logits_scaling": 3.0}
        | layers(32, (10, 13, 17, 27)),
        LLAMA_CPP,
    ),
    "granite-4.0-h-1b": (
        "granitemoehybrid",
        GRANITE
        | {"hidden_size": 1536, "mamba_d_head": 64, "shared_intermediate_size": 4096, "logits_scaling": 6.0}
        | layers(40, (5, 15, 25, 35)),
        LLAMA_CPP,
    ),
    "falcon-h1-0.5b": ("falcon_h1", FALCON, LLAMA_CPP),
    "qwen3.5-0.8b": ("qwen3_5_text", QWEN | layers(24, tuple(range(3, 24, 4))), LLAMA_CPP),
    "lfm2-350m": (
        "lfm2",
        LFM2 | {"hidden_size": 1024, "intermediate_size": 4608, "num_attention_heads": 16},
        LLAMA_CPP,
    ),
    "lfm2-700m": (
        "lfm2",
        LFM2 | {"hidden_size": 1536, "intermediate_size": 6912, "num_attention_heads": 24},
        LLAMA_CPP,
    ),
    "bamba": (
        "bamba",
        PLAIN
        | {"intermediate_size": 2816, "num_key_value_heads": 4, "mamba_n_heads": 32, "mamba_d_head": 64}
        | {"mamba_d_state": 128, "attn_layer_indices": [9, 18]},
        TRANSFORMERS,
    ),
    "zamba2": (
        "zamba2",
        PLAIN
        | {"intermediate_size": 4096, "n_mamba_heads": 32, "mamba_d_state": 64, "num_hidden_layers": 48}
        | {"layers_block_type": ["hybrid" if i % 8 == 4 else LINEAR for i in range(48)]},
        TRANSFORMERS,
    ),
    "olmo-hybrid": (
        "olmo_hybrid",
        PLAIN | {"intermediate_size": 2816, "num_key_value_heads": 16, "tie_word_embeddings": True},
        TRANSFORMERS,
    ),
    "recurrent-gemma": (
        "recurrent_gemma",
        PLAIN | {"intermediate_size": 6144, "num_key_value_heads": 1},
        TRANSFORMERS,
    ),
}
SMALLER: Fields = {"vocab_size": 512, "num_hidden_layers": 4}  # of a quick run
DEFAULT = "granite-4.0-h-350m,falcon-h1-0.5b,qwen3.5-0.8b,lfm2-350m"


def build(name: str, quick: bool) -> LanguageModel:
    kind, fields, _ = MODELS[name]
    if quick:
        fields = fields | SMALLER
        for key in ("layer_types", "layers_block_type"):
            if key in fields:
                names = fields[key]
                fields[key] = [names[0], next(one for one in names if one != names[0]), names[0], names[0]]
        if "attn_layer_indices" in fields:
            fields["attn_layer_indices"] = [1]
        if kind.startswith("qwen"):
            fields["layer_types"] = [LINEAR, LINEAR, LINEAR, FULL]
    family = family_of(kind)
    assert family is not None
    torch.manual_seed(0)
    return family.config({"model_type": kind} | fields).build().eval()


def tokens_of(model: LanguageModel, length: int) -> Tensor:
    return torch.randint(model.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(1))


# -- sides -------------------------------------------------------------------------------------------------------------
class Ours:
    """The model of a file, as far as it can in the file's own bits."""

    def __init__(self, model: LanguageModel, weights: str) -> None:
        self.model, self.reason = model, refusal(model)
        wanted = weights if weights in ("float32", "bfloat16") else None
        self.decoder = None if self.reason else Decoder(model, wanted)
        if weights == "bfloat16":
            model.bfloat16()

    def prefill(self, tokens: Tensor) -> Tensor:
        return read(self.model, tokens).logits[0].float()

    def decode(self, n_tokens: int) -> Tensor:
        token, found = torch.zeros(1, dtype=torch.int64), []
        if self.decoder is not None:
            running = self.decoder.run(self.decoder.initial_state(1))
        state = None if self.decoder is not None else self.model.initial_state(1)
        for _ in range(n_tokens):
            if self.decoder is not None:
                logits = running.step(token)
                assert logits is not None
            else:
                each, state = self.model(token[:, None], state)
                logits = each[:, -1]
            token = logits.argmax(-1)
            found.append(token)
        return torch.cat(found)


class LlamaCpp:
    def __init__(self, path: Path, length: int) -> None:
        self.model = llama_cpp.LlamaCpp.of_file(path, torch.get_num_threads(), length)

    def prefill(self, tokens: Tensor) -> Tensor:
        return torch.from_numpy(np.array(self.model.read(tokens[0].tolist())))

    def decode(self, n_tokens: int) -> Tensor:
        return torch.tensor(self.model.generate(n_tokens))


class Transformers:
    def __init__(self, folder: Path, weights: str) -> None:
        import transformers

        transformers.logging.set_verbosity_error()
        dtype = torch.bfloat16 if weights == "bfloat16" else torch.float32
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()

    def prefill(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.model(tokens, use_cache=True, logits_to_keep=1).logits[0, -1].float()
        return found

    def decode(self, n_tokens: int) -> Tensor:
        start = torch.zeros(1, 1, dtype=torch.int64)
        options = {"max_new_tokens": n_tokens, "min_new_tokens": n_tokens, "do_sample": False, "pad_token_id": 0}
        found: Tensor = self.model.generate(start, attention_mask=torch.ones_like(start), **options)[0, 1:]
        return found


def files_of(model: LanguageModel, peer: str, weights: list[str], folder: Path) -> dict[str, Path]:
    """What both sides read, for each of the weights."""
    if peer == LLAMA_CPP:
        return {each: llama_cpp.written(model, each) for each in weights}
    save_as(model, folder / "model", "transformers")
    return {each: folder / "model" for each in weights if each not in KEPT}


def sides_of(path: Path, peer: str, weights: str, length: int, keeps: bool) -> dict[str, Callable[[], Any]]:
    """What makes each side, once. keeps: ours takes the integers of the file as they are"""

    def ours() -> Ours:
        loaded = sw.load(path, keep_quantised=keeps and weights in KEPT)
        assert isinstance(loaded, LanguageModel)
        return Ours(loaded, weights)

    def theirs() -> LlamaCpp | Transformers:
        return LlamaCpp(path, length) if peer == LLAMA_CPP else Transformers(path, weights)

    return {OURS: cache(ours), peer: cache(theirs)}


# -- measured ----------------------------------------------------------------------------------------------------------
def measured(what: str, name: str, setting: str, sides: dict[str, Callable[[], Action]], seconds: float) -> Fields:
    """One case, with how far what the sides found is apart."""
    last: dict[str, Tensor] = {}

    def remembering(side: str, prepare: Callable[[], Action]) -> Callable[[], Action]:
        def prepared() -> Action:
            action = torch.inference_mode()(prepare())

            def run() -> Tensor:
                last[side] = action()
                return last[side]

            return run

        return prepared

    wrapped = {side: remembering(side, prepare) for side, prepare in sides.items()}
    times: Times = time_case(Case(name=name, setting=setting, sides=wrapped, rounds=2), seconds=seconds, progress=print)
    found: Fields = {side: round(ms, 2) for side, ms in times.milliseconds.items()}
    found |= {f"{side} is missing": reason for side, reason in times.missing.items()}
    peer = next(side for side in sides if side != OURS)
    if OURS in times.milliseconds and peer in times.milliseconds:
        found["times as fast"] = round(times.ratio(peer, OURS), 3)
        one, other = last[OURS], last[peer]
        if what == "prefill":
            found["largest difference"] = float(f"{(one - other).abs().max() / other.abs().max():.1e}")
        else:
            found["same tokens"] = int((one == other).long().cumprod(0).sum())
    return found


def measure(name: str, arguments: argparse.Namespace, folder: Path) -> Fields:
    model, peer = build(name, arguments.quick), MODELS[name][2]
    n_parameters, reason = sum(p.numel() for p in model.parameters()), refusal(model)
    length, n_tokens = (64, 4) if arguments.quick else (arguments.length, arguments.tokens)
    tokens, prefill, step = tokens_of(model, length), dict[str, Fields](), dict[str, Fields]()
    record: Fields = {"parameters": n_parameters, "step": "C" if reason is None else f"PyTorch: {reason}"}
    print(f"{name}: {n_parameters / 1e6:.0f}M parameters, step: {record['step']}", flush=True)
    files = files_of(model, peer, arguments.weights.split(","), folder)
    del model
    for weights, path in files.items():
        gc.collect()
        made = sides_of(path, peer, weights, length, reason is None)
        if weights in arguments.prefill.split(","):
            setting = f"a prompt of {length} tokens, and the logits of the last"
            case = (f"{name}, prefill, {weights}", setting, asked(made, "prefill", tokens))
            prefill[weights] = measured("prefill", *case, arguments.seconds)
            print(f"  {prefill[weights]}", flush=True)
        setting = f"{n_tokens} tokens from rest, each the most likely"
        case = (f"{name}, decoding, {weights}", setting, asked(made, "decode", n_tokens))
        step[weights] = measured("decoding", *case, arguments.seconds)
        print(f"  {step[weights]}", flush=True)
        del made, case
    return {**record, "prompt": length, "tokens": n_tokens, "prefill": prefill, "decoding": step}


def asked(makers: dict[str, Callable[[], Any]], what: str, argument: Any) -> dict[str, Callable[[], Action]]:
    """What prepares each side to be asked the same."""

    def of(make: Callable[[], Any]) -> Callable[[], Action]:
        return lambda: partial(getattr(make(), what), argument)

    return {side: of(make) for side, make in makers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=DEFAULT, help=f"of {', '.join(MODELS)}")
    parser.add_argument("--weights", default="float32,bfloat16,q8_0,q4_0")
    parser.add_argument("--prefill", default="float32,q8_0", help="for which of these the prompt is read as well")
    parser.add_argument("--length", type=int, default=2048, help="of the prompt")
    parser.add_argument("--tokens", type=int, default=16, help="that are decoded")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each case, at least")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{describe_processor(processor())}; {native.instruction_set()}, {arguments.threads} threads")
    packages = {name: version(name) for name in ("torch", "llama_cpp_python", "transformers")}
    machine = {"processor": processor(), "threads": arguments.threads, "instructions": native.instruction_set()}
    record: Fields = {**machine, **packages, "unit": "milliseconds of a call, medians", "models": {}}
    if arguments.out is not None and arguments.out.exists():
        record["models"] = json.loads(arguments.out.read_text())["models"]
    for name in arguments.models.split(","):
        with tempfile.TemporaryDirectory(prefix="statewise-hybrids-") as folder:
            record["models"][name] = measure(name, arguments, Path(folder))
        if arguments.out is not None:  # also if the next one fails
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
