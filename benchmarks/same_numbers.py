"""Whether two revisions compute the same numbers, bit for bit: digests of outputs, states and gradients as JSON.

    python benchmarks/same_numbers.py --out before.json          # at one revision
    python benchmarks/same_numbers.py --against before.json      # at another, on the same machine

Every mixer in several settings and every preset that builds, the large ones with fewer and narrower layers: from rest
and from a state, with ``lengths`` and ``starts`` and without, in several dtypes, on one thread. Only public names are
used, so that the script runs at old and at new revisions. The numbers are those of one machine and one PyTorch: another
processor rounds in another order. It exits with 1 where a number differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import statewise as sw
from statewise.models.presets import PRESETS as MODEL_PRESETS
from statewise.training.presets import PRESETS as RUN_PRESETS

WIDTH = 16  # of the mixers
Digests = dict[str, str]

MIXERS: dict[str, sw.MixerConfig] = {
    "attention": sw.AttentionConfig(n_heads=4, n_kv_heads=2),
    "attention-window": sw.AttentionConfig(n_heads=2, window=5, bias=True),
    "attention-taps": sw.AttentionConfig(n_heads=2, n_taps=3, d_head=6, d_rotary=4),
    "attention-learned": sw.AttentionConfig(n_heads=2, positions="learned", max_positions=256),
    "attention-dropout": sw.AttentionConfig(n_heads=2, positions=None, dropout=0.25),
    "linear-attention": sw.LinearAttentionConfig(n_heads=2),
    "linear-attention-taylor": sw.LinearAttentionConfig(n_heads=2, feature_map="taylor", d_feature=4, chunk_length=16),
    "linear-attention-plain": sw.LinearAttentionConfig(n_heads=4, feature_map="identity", normalize=False, bias=True),
    "mamba": sw.MambaConfig(d_state=4),
    "mamba-complex": sw.MambaConfig(d_state=4, initialization="lin", method="zoh", norm_dt_b_c=True, bias=True),
    "mamba-bidirectional": sw.MambaConfig(d_state=4, bidirectional=True),
    "mamba-two-directions": sw.MambaConfig(d_state=4, bidirectional=True, tied_directions=False, combine="concatenate"),
    "mamba2": sw.Mamba2Config(d_state=8, d_head=8),
    "mamba2-groups": sw.Mamba2Config(
        d_state=4, d_head=4, n_groups=2, n_taps=1, norm_before_gate=True, bias=True, dt_limit=(0.01, 0.1)
    ),
    "mamba3": sw.Mamba3Config(d_state=8, d_head=8),
    "mamba3-groups": sw.Mamba3Config(d_state=8, d_head=4, n_groups=2, rope_fraction=1.0, chunk_length=16),
    "s4": sw.S4Config(d_state=8),
    "s4-rank-2": sw.S4Config(d_state=8, initialization="legt", rank=2, n_systems=None, n_heads=2, tied_dt=True),
    "s4-bidirectional": sw.S4Config(d_state=8, bidirectional=True, dropout=0.1),
    "s4d": sw.S4DConfig(d_state=8),
    "s4d-real": sw.S4DConfig(d_state=4, initialization="real", method="bilinear", n_heads=2, gated_output=False),
    "s4d-bidirectional": sw.S4DConfig(d_state=8, bidirectional=True, tied_dropout=True, dropout=0.1),
    "lssl": sw.LSSLConfig(d_state=4),
    "lssl-fixed": sw.LSSLConfig(d_state=4, learn_A=False, alpha=1.0, n_heads=2),
    "gss": sw.GSSConfig(d_state=8),
    "h3": sw.H3Config(d_state=8),
    "h3-heads": sw.H3Config(d_state=8, d_head=4, d_shift=5, method="zoh", bias=False),
    "h3-one-tap": sw.H3Config(d_state=4, d_shift=1),
    "lmu": sw.LMUConfig(theta=12, d_state=4),
    "lmu-full": sw.LMUConfig(
        theta=9.5, d_state=4, d_memory=2, d_hidden=6, hidden_to_memory=True, memory_to_memory=True, input_to_hidden=True
    ),
    "lmu-parallel": sw.LMUConfig(theta=12, d_state=4, d_memory=3, parallel=True, input_to_hidden=True),
}


@dataclass
class Case:
    """One module, and how to make inputs for it and to call it.

    draw:       (batch, length) -> x
    options:    x -> further arguments of a call
    has_starts: whether it takes ``starts``
    shortest:   how many steps a row needs from rest
    """

    module: nn.Module
    draw: Callable[[int, int], Tensor]
    options: Callable[[Tensor], dict[str, Tensor]] = lambda x: {}
    has_starts: bool = True
    shortest: int = 1

    def call(self, x: Tensor, state: Any, **masks: Tensor) -> tuple[Tensor, Any]:
        y, state = self.module(x, state, **masks, **self.options(x))
        return y, state


def digest(tensors: Any) -> str:
    """Of all numbers, shapes and dtypes in the tree."""
    total = hashlib.sha256()
    for leaf in pytree.tree_leaves(tensors):
        if isinstance(leaf, Tensor):
            total.update(f"{leaf.dtype} {tuple(leaf.shape)};".encode())
            total.update(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            total.update(repr(leaf).encode())
    return total.hexdigest()


def measured(case: Case, x: Tensor, state: Any, masks: dict[str, Tensor]) -> Digests:
    """One call and its backward pass."""
    x = x.clone().requires_grad_(x.is_floating_point())
    state = pytree.tree_map_only(Tensor, lambda m: m.detach().clone().requires_grad_(m.is_floating_point()), state)
    torch.manual_seed(2)  # of dropout
    y, after = case.call(x, state, **masks)
    outputs = [m for m in pytree.tree_leaves((y, after)) if isinstance(m, Tensor) and m.requires_grad]
    generator = torch.Generator().manual_seed(3)
    loss = sum((m.double().nan_to_num() * _noise(m.shape, generator)).sum() for m in outputs)
    leaves = [x, *pytree.tree_leaves(state), *case.module.parameters()]
    leaves = [m for m in leaves if isinstance(m, Tensor) and m.requires_grad]
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True) if outputs else None
    return {"outputs": digest(y), "state": digest(after), "gradients": digest(gradients)}


def _noise(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def calls(case: Case, length: int) -> Iterator[tuple[str, Digests]]:
    """Calls of every kind; where the module has no state, those from rest."""
    batch = 4
    x, y = case.draw(batch, length), case.draw(batch, 11)
    lengths = torch.tensor([length, length // 2, case.shortest, length - 1])
    starts = torch.zeros(batch, length, dtype=torch.bool)
    starts[0, ::7], starts[1, 0], starts[3, length // 2] = True, True, True
    kinds: dict[str, dict[str, Tensor]] = {"plain": {}, "lengths": {"lengths": lengths}}
    if case.has_starts:
        kinds |= {"starts": {"starts": starts}, "both": {"lengths": lengths, "starts": starts}}
    for kind, masks in kinds.items():
        yield f"rest, {kind}", measured(case, x, None, masks)
    try:
        rest = case.module.initial_state(batch)  # type: ignore[operator]
    except sw.InputError:
        return
    yield "initial state", {"state": digest(rest)}
    with torch.no_grad():
        torch.manual_seed(4)
        _, warm = case.call(y, rest, lengths=torch.tensor([11, 3, 0, 8]))
    for kind, masks in kinds.items():
        yield f"state, {kind}", measured(case, x, warm, masks)
    with torch.no_grad():
        state, outputs = warm, []
        torch.manual_seed(5)
        for t in range(5):
            now: dict[str, Tensor] = {"lengths": torch.tensor([1, 1, 0, 1])} if t == 3 else {}
            if t == 2 and case.has_starts:
                now = {"starts": torch.tensor([[True], [False], [False], [True]])}
            out, state = case.call(y[:, t : t + 1], state, **now)
            outputs.append(out)
    yield "steps", {"outputs": digest(outputs), "state": digest(state)}


def mixer_cases() -> Iterator[tuple[str, Callable[[], Iterator[tuple[str, Digests]]]]]:
    """Each mixer in each dtype, short and long, in training and frozen."""
    for name, config in MIXERS.items():
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for length in (13, 70):
                if length == 13 or dtype == torch.float32:
                    kind = str(dtype).removeprefix("torch.")
                    yield f"{name}, {kind}, {length}", lambda c=config, d=dtype, n=length: calls(_mixer(c, d), n)
        yield f"{name}, autocast", lambda c=config: _under_autocast(c)
        yield f"{name}, frozen", lambda c=config: calls(_mixer(c, torch.float32, frozen=True), 13)


def _mixer(config: sw.MixerConfig, dtype: torch.dtype, *, frozen: bool = False) -> Case:
    torch.manual_seed(0)
    mixer: Any = config.build(WIDTH)
    with torch.no_grad():
        for parameter in mixer.parameters():  # biases that are not zero, signals that are not small
            parameter.add_(0.2 * torch.randn_like(parameter))
    mixer = mixer.to(dtype)
    mixer = mixer.freeze() if frozen else mixer.train()
    generator = torch.Generator().manual_seed(1)
    return Case(mixer, lambda batch, length: torch.randn(batch, length, WIDTH, generator=generator).to(dtype))


def _under_autocast(config: sw.MixerConfig) -> Iterator[tuple[str, Digests]]:
    with torch.autocast("cpu", torch.bfloat16):
        yield from calls(_mixer(config, torch.float32), 13)


def model_cases() -> Iterator[tuple[str, Callable[[], Iterator[tuple[str, Digests]]]]]:
    """Each preset, float32; recomputed in the backward pass as well where it is small."""
    for name, make in MODEL_PRESETS.items():
        yield f"model {name}", lambda make=make: calls(_language_model(_smaller(make(vocab_size=97))), 21)
    for name, make_run in RUN_PRESETS.items():
        yield f"run {name}", lambda make=make_run: calls(_model(make().model), 29)
    tiny = MODEL_PRESETS["tiny"]
    yield "model tiny, recomputed", lambda: calls(_language_model(tiny(vocab_size=97), recompute=True), 21)
    yield "classifier of tokens, pairs", lambda: calls(_model(_pairs()), 29)
    yield "classifier, frames and batch norm", lambda: calls(_model(_frames()), 29)
    yield (
        "language model, learned positions",
        lambda: calls(
            _language_model(
                sw.LanguageModelConfig(vocab_size=97, d_model=16, layers=(MIXERS["mamba"],), max_positions=64)
            ),
            21,
        ),
    )


def _smaller(config: Any) -> Any:
    """At most one layer of each kind, and as narrow as its heads allow."""
    kinds: dict[str, Any] = {}
    for layer in config.layers:
        kinds.setdefault(repr(layer), layer)
    attention = [m for m in (getattr(c, "mixer", c) for c in kinds.values()) if isinstance(m, sw.AttentionConfig)]
    width = min(config.d_model, 192)
    if attention and attention[0].d_head is None:
        width = attention[0].n_heads * (attention[0].d_rotary or 8)
    return replace(config, d_model=width, layers=tuple(kinds.values()))


def _language_model(config: Any, *, recompute: bool = False) -> Case:
    torch.manual_seed(0)
    model = config.build().train()
    model.gradient_checkpointing = recompute
    generator = torch.Generator().manual_seed(1)
    return Case(model, lambda batch, length: torch.randint(config.vocab_size, (batch, length), generator=generator))


def _pairs() -> Any:
    layers = (sw.BlockConfig(mixer=MIXERS["s4-bidirectional"], norm="batch", placement="post"),)
    return sw.PairClassifierConfig(n_classes=3, vocab_size=31, d_model=16, layers=layers)


def _frames() -> Any:
    layers = (sw.BlockConfig(mixer=MIXERS["s4d"], mlp=sw.MLPConfig(), norm="batch"), MIXERS["mamba2"])
    return sw.SequenceClassifierConfig(n_classes=3, d_input=2, frame_length=3, d_model=16, layers=layers)


def _model(config: Any) -> Case:
    torch.manual_seed(0)
    if isinstance(config, sw.LanguageModelConfig):
        return _language_model(config)
    model, generator = config.build().train(), torch.Generator().manual_seed(1)
    if isinstance(config, sw.ForecasterConfig):
        return Case(
            model,
            lambda batch, length: torch.randn(batch, length, config.d_target, generator=generator),
            options=lambda x: _covariates(config, x),
            has_starts=False,
        )
    if config.d_input is None:
        vocab = config.vocab_size
        case = Case(model, lambda batch, length: torch.randint(vocab, (batch, length), generator=generator))
    else:
        case = Case(model, lambda batch, length: torch.randn(batch, length, config.d_input, generator=generator))
    case.has_starts, case.shortest = config.pooling is None, config.frame_length
    return case


def _covariates(config: Any, x: Tensor) -> dict[str, Tensor]:
    generator, batch = torch.Generator().manual_seed(6), x.shape[0]
    seen = config.d_covariates + config.d_past_covariates
    return {
        "covariates": torch.randn(batch, x.shape[1], seen, generator=generator),
        "future_covariates": torch.randn(batch, config.horizon, config.d_covariates, generator=generator),
    }


def all_digests(only: str = "", tell: Callable[[str], None] = lambda text: None) -> dict[str, Digests]:
    """Of every call of the cases whose name contains ``only``."""
    found: dict[str, Digests] = {}
    for cases in (mixer_cases(), model_cases()):
        for name, run in cases:
            if only not in name:
                continue
            tell(name)
            found |= {f"{name}: {call}": digests for call, digests in run()}
    return found


def differences(before: dict[str, Digests], after: dict[str, Digests]) -> list[str]:
    """One line for each case that is not the same in both."""
    lines = [f"{name}: only {'before' if name in before else 'after'}" for name in sorted(before.keys() ^ after.keys())]
    for name in before.keys() & after.keys():
        parts = sorted(k for k in before[name].keys() | after[name].keys() if before[name].get(k) != after[name].get(k))
        if parts:
            lines.append(f"{name}: other {', '.join(parts)}")
    return sorted(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the digests to this file")
    parser.add_argument("--against", type=Path, help="compare with the digests in this file")
    parser.add_argument("--only", default="", help="the cases whose name contains this")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    digests = all_digests(given.only, lambda name: print(name, file=sys.stderr, flush=True))
    if given.out is not None:
        record = {"torch": torch.__version__, "digests": digests}
        given.out.write_text(json.dumps(record, indent=0, sort_keys=True) + "\n")
    print(f"{len(digests)} calls, {sum(map(len, digests.values()))} digests")
    if given.against is None:
        return 0
    before = json.loads(given.against.read_text())["digests"]
    lines = differences({name: value for name, value in before.items() if given.only in name}, digests)
    print("\n".join(lines) if lines else "no number differs")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
