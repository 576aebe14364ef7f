"""A hybrid with experts beside transformers on the CPU: reading a prompt, and decoding; milliseconds and ratios.

    python benchmarks/experts.py                                     # Granite 4 with experts, 4 layers of it
    python benchmarks/experts.py --family qwen3_next --layers 4 --prompt 2048 --batch 1,4 --json out.json

The widths are those of a published model, the layers fewer and the vocabulary small; the weights are random and the
same on both sides, in the dtype given. That library runs with each way that it has of computing experts, and the
faster one counts. All is timed by turns, the least of a few rounds. Before it is timed, the logits of both are held
against each other.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import statewise as sw
from statewise import native
from statewise.benchmark.processor import describe_processor, processor
from statewise.decoding import Decoder

VOCABULARY, NOT_COUNTED = 1024, 4
EXPERTS = ("eager", "grouped_mm")
MAMBA = "linear_attention"
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": (  # Granite 4.0-H-Tiny
        "granitemoehybrid",
        {"hidden_size": 1536, "intermediate_size": 512, "shared_intermediate_size": 1024, "num_local_experts": 64}
        | {"num_experts_per_tok": 6, "num_attention_heads": 12, "num_key_value_heads": 4, "mamba_n_heads": 48}
        | {"mamba_d_state": 128, "mamba_d_head": 64, "mamba_expand": 2},
    ),
    "qwen3_next": (  # Qwen3-Next-80B-A3B, with an eighth of its experts
        "qwen3_next",
        {"hidden_size": 2048, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 64}
        | {"num_experts_per_tok": 10, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256},
    ),
    "nemotron": (  # Nemotron 3 Nano, with a quarter of its experts
        "nemotron_h",
        {"hidden_size": 2688, "intermediate_size": 1856, "moe_intermediate_size": 1856, "n_routed_experts": 32}
        | {"moe_shared_expert_intermediate_size": 3712, "num_experts_per_tok": 6, "num_attention_heads": 32}
        | {"num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64}
        | {"routed_scaling_factor": 2.5},
    ),
    "jamba": (  # Jamba-tiny
        "jamba",
        {"hidden_size": 1024, "intermediate_size": 2048, "num_experts": 16, "num_experts_per_tok": 2}
        | {"num_attention_heads": 16, "num_key_value_heads": 8, "attn_layer_period": 4, "attn_layer_offset": 1}
        | {"use_mamba_kernels": False},
    ),
}


def layer_types(kind: str, n_layers: int) -> dict[str, Any]:
    """Which layers are there: the last of them is of attention."""
    most = [MAMBA] * (n_layers - 1)
    if kind == "jamba":
        return {"num_hidden_layers": n_layers}
    if kind == "nemotron_h":
        return {"layers_block_type": [*(["moe", MAMBA] * n_layers)[: n_layers - 1], "full_attention"]}
    return {"num_hidden_layers": n_layers, "layer_types": [*most, "full_attention"]}


def build(family: str, n_layers: int, dtype: torch.dtype, folder: Path) -> tuple[Any, sw.LanguageModel]:
    """The model of that library, and the same one here."""
    kind, fields = SHAPES[family]
    torch.manual_seed(0)
    plain = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "vocab_size": VOCABULARY}
    config = transformers.AutoConfig.for_model(kind, **plain | fields | layer_types(kind, n_layers))
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    theirs.save_pretrained(folder)
    ours = sw.load(folder, dtype=dtype)
    assert isinstance(ours, sw.LanguageModel)
    return theirs, ours


def ways(theirs: Any) -> list[str]:
    """The ways of computing experts that it takes; one where it has none."""
    found = []
    for way in EXPERTS:
        try:
            theirs.set_experts_implementation(way)
            theirs(torch.zeros(1, 2, dtype=torch.int64))
        except (AttributeError, ValueError, RuntimeError, NotImplementedError):
            continue
        found.append(way)
    return found or [""]


def chosen(theirs: Any, way: str) -> None:
    if way:
        theirs.set_experts_implementation(way)


def least(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The least milliseconds of each, by turns."""
    times: dict[str, float] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            taken = run()
            times[name] = min(taken, times.get(name, taken))
    return times


def timed(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begin)


def decoding_runs(theirs: Any, ours: sw.LanguageModel, weights: list[str], batch: int, n: int) -> dict[str, Any]:
    """Each gives milliseconds a step, of n steps behind a prompt of 8 tokens."""
    prompt = torch.randint(VOCABULARY, (batch, 8), generator=torch.Generator().manual_seed(1))

    def run_theirs(way: str) -> float:
        chosen(theirs, way)
        out = theirs(prompt, use_cache=True)
        token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
        begin = 0.0
        for step in range(NOT_COUNTED + n):
            if step == NOT_COUNTED:
                begin = time.perf_counter()
            out = theirs(token, past_key_values=cache, use_cache=True)
            token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
        return 1e3 * (time.perf_counter() - begin) / n

    def run_ours(decoder: Decoder) -> float:
        logits, state = ours(prompt, ours.initial_state(batch))
        running, token = decoder.run(state), logits[:, -1].argmax(-1)
        begin = 0.0
        for step in range(4 * NOT_COUNTED + n):  # the first try ways of reading
            if step == 4 * NOT_COUNTED:
                begin = time.perf_counter()
            found = running.step(token)
            assert found is not None
            token = found.argmax(-1)
        return 1e3 * (time.perf_counter() - begin) / n

    runs: dict[str, Any] = {f"transformers {way}".strip(): partial(run_theirs, way) for way in ways(theirs)}
    for name in weights:
        runs[name] = partial(run_ours, Decoder(ours, name))
    return runs


def prefill_runs(theirs: Any, ours: sw.LanguageModel, batch: int, length: int) -> dict[str, Any]:
    tokens = torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(2))

    def run_theirs(way: str) -> float:
        chosen(theirs, way)
        return timed(lambda: theirs(tokens, use_cache=True, logits_to_keep=1))

    def run_ours() -> float:
        return timed(lambda: ours.features(tokens, ours.initial_state(batch)))

    runs: dict[str, Any] = {f"transformers {way}".strip(): partial(run_theirs, way) for way in ways(theirs)}
    return {**runs, "statewise": run_ours}


def told(what: str, times: dict[str, float]) -> dict[str, Any]:
    """Prints and returns the times, and each of ours beside the faster one of that library."""
    theirs = min(taken for name, taken in times.items() if name.startswith("transformers"))
    for name, taken in times.items():
        print(f"{what:<24}{name:<28}{taken:10.2f} ms   {theirs / taken:7.2f} x transformers", flush=True)
    return {"what": what, "milliseconds": times, "times": {name: theirs / taken for name, taken in times.items()}}


def difference(theirs: Any, ours: sw.LanguageModel) -> float:
    """Of the logits of 40 tokens, of the largest."""
    tokens = torch.randint(VOCABULARY, (1, 40), generator=torch.Generator().manual_seed(3))
    want: Tensor = theirs(tokens, use_cache=False).logits.float()
    return float((ours(tokens)[0].float() - want).abs().max() / want.abs().max())


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="granite", help=", ".join(SHAPES))
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--weights", default="float32,bfloat16,int8,int4")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompts that are read")
    parser.add_argument("--batch", default="1,4")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    transformers.logging.set_verbosity_error()
    print(f"{describe_processor(processor())}; {native.instruction_set()}, {given.threads} threads; {given.dtype}")
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = build(given.family, given.layers, getattr(torch, given.dtype), Path(folder))
    n = sum(p.numel() for p in ours.parameters())
    print(f"{given.family}: {n / 1e6:.0f}M parameters; logits differ by {difference(theirs, ours):.1e} of the largest")
    found = []
    for batch in map(int, given.batch.split(",")):
        runs = prefill_runs(theirs, ours, batch, given.prompt)
        found.append(told(f"prompt {batch} x {given.prompt}", least(runs, given.rounds)))
        runs = decoding_runs(theirs, ours, given.weights.split(","), batch, given.steps)
        found.append(told(f"a step, {batch} rows", least(runs, given.rounds)))
    if given.json is not None:
        about = {"processor": processor(), "threads": given.threads, "dtype": given.dtype, "family": given.family}
        given.json.write_text(json.dumps({**about, "layers": given.layers, "runs": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
