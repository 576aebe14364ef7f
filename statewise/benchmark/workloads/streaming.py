"""Long signals and long generation: what must not grow with what came before."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from statewise.benchmark.case import OURS, Action, Case, Workload, our_sides

SIGNALS = (16_384, 65_536, 262_144)  # steps
PIECE = 4096
POSITIONS = (1_000, 100_000, 1_000_000)  # tokens read before those that are timed
READ_AT_ONCE, TIMED = 10_000, 64


def read_signal(length: int, width: int) -> Action:
    """A layer of S4D over a signal in pieces, the state passed on, without gradients."""
    from statewise.mixers.s4d import S4DConfig

    torch.manual_seed(0)
    mixer = S4DConfig().build(width).eval()
    x = torch.randn(1, length, width)

    def read() -> Tensor:
        state, y = mixer.initial_state(1), torch.empty_like(x)
        for start in range(0, length, PIECE):
            piece = slice(start, start + PIECE)
            y[:, piece], state = mixer(x[:, piece], state)
        return y

    return torch.inference_mode()(read)


def signals(quick: bool) -> list[Case]:
    width = 4 if quick else 64
    found = []
    for length in SIGNALS:
        action = functools.partial(read_signal, 2 * PIECE if quick else length, width)
        found.append(
            Case(
                name=f"{length:,} steps",
                setting=f"a layer of S4D, {width} channels, pieces of {PIECE:,} steps, no gradient",
                sides=our_sides(action),
                length=2 * PIECE if quick else length,
                rounds=3,
            )
        )
    return found


def decode_after(position: int) -> Action:
    """64 tokens written one by one after ``position`` tokens: every token read, none of them kept."""
    from statewise.decoding import Decoder
    from statewise.mixers.mamba import MambaConfig
    from statewise.models.language_model import LanguageModelConfig

    torch.manual_seed(0)
    config = LanguageModelConfig(vocab_size=257, d_model=64, layers=(MambaConfig(),) * 2)
    model = config.build().eval()
    decoder = Decoder(model)
    with torch.inference_mode():
        state = model.initial_state(1)
        for start in range(0, position, READ_AT_ONCE):
            n = min(READ_AT_ONCE, position - start)
            tokens = torch.arange(start, start + n).remainder(257).unsqueeze(0)
            _, read = model.features(tokens, state)
            assert read is not None  # a state was given
            state = read

    def decode() -> tuple[Tensor, object]:
        running, token = decoder.run(state), torch.zeros(1, dtype=torch.int64)
        for _ in range(TIMED):
            logits = running.step(token)
            assert logits is not None  # they were asked for
            token = logits.argmax(-1)
        return token, running.state

    return torch.inference_mode()(decode)


def positions(quick: bool) -> list[Case]:
    return [
        Case(
            name="positions",
            setting="Mamba, 2 layers of width 64: 64 tokens one by one, after this many were read",
            sides={
                position_side(position): our_sides(
                    functools.partial(decode_after, position // 1000 if quick else position)
                )[OURS]
                for position in POSITIONS
            },
            length=TIMED,
        )
    ]


def position_side(position: int) -> str:
    return f"after {position:,}"


SIGNAL = Workload(
    name="signal",
    summary="a long signal through S4D in pieces: time and memory",
    cases=signals,
    memory=tuple(f"{length:,} steps" for length in SIGNALS),
)
POSITION = Workload(
    name="position",
    summary="decoding after a thousand tokens and after a million",
    cases=positions,
    memory=("positions",),
)
