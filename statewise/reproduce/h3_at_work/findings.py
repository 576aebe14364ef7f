"""What a trained H3 layer has learned of associative recall, in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.data.synthetic_languages import LanguageSplit
from statewise.mixers.h3 import H3
from statewise.models.language_model import LanguageModel
from statewise.reproduce.h3_at_work.inside import (
    Signals,
    h3_layers,
    half_reach,
    score,
    signals,
    systems,
    with_shift_taps,
    without_heads,
)

SHOWN = 8  # heads in the table and in the pictures
SIGNALS = ("Q", "K", "shifted", "V", "entering", "state", "output")


def findings(model: LanguageModel, split: LanguageSplit, *, max_rows: int, example: int) -> dict[str, Any]:
    """JSON data of a model that was trained on associative recall: how well it does on the first rows of a split, what
    each head is good for, and in the H3 layer that costs most when it is left out what its heads store, their filters,
    how well it does with a part of the shift SSM's taps, and the signals of one row.
    """
    rows = np.arange(min(len(split), max_rows))
    tokens, targets, answers = (torch.from_numpy(array) for array in split.read(rows))
    answers = answers & (torch.arange(tokens.shape[1]) == tokens.shape[1] - 1)  # the last token's, as published
    whole = score(model, tokens, targets, answers)
    heads = _heads(model, tokens, targets, answers, whole)
    layer = max(h3_layers(model), key=lambda i: _nats_without_layer(model, i, tokens, targets, answers))
    names = split.language.symbols
    shown = [head["head"] for head in heads if head["layer"] == layer][:SHOWN]
    described = _described(model, layer, shown, tokens, names)
    taps = {
        "all": whole,
        "only a step back": score(with_shift_taps(model, layer, [1]), tokens, targets, answers),
        "only the present step and a step back": score(with_shift_taps(model, layer, [0, 1]), tokens, targets, answers),
        "all but a step back": score(with_shift_taps(model, layer, [1], others=True), tokens, targets, answers),
    }
    one = {
        "tokens": [names[int(token)] for token in tokens[example]],
        "answer": names[int(targets[example][answers[example]])],
        "heads": shown,
        **_example(signals(model, layer, tokens[example : example + 1]), shown),
    }
    return {
        "test": whole,
        "layer": layer,
        "heads": heads,
        "described": described,
        "shift_taps": taps,
        "filters": _filters(h3_layers(model)[layer], shown, tokens.shape[1]),
        "example": one,
    }


def _heads(
    model: LanguageModel, tokens: Tensor, targets: Tensor, answers: Tensor, whole: Mapping[str, float]
) -> list[dict[str, Any]]:
    """What removing each head costs, the dearest first."""
    found = []
    for layer, mixer in h3_layers(model).items():
        for head in range(mixer.n_heads):
            with without_heads(mixer, [head]):
                left = score(model, tokens, targets, answers)
            lost, nats = whole["accuracy"] - left["accuracy"], left["nats"] - whole["nats"]
            found.append({"layer": layer, "head": head, "lost": lost, "nats": nats})
    return sorted(found, key=lambda head: (-head["lost"], -head["nats"]))


def _nats_without_layer(model: LanguageModel, layer: int, tokens: Tensor, targets: Tensor, answers: Tensor) -> float:
    mixer = h3_layers(model)[layer]
    with without_heads(mixer, range(mixer.n_heads)):
        return score(model, tokens, targets, answers)["nats"]


def _described(
    model: LanguageModel, layer: int, heads: Sequence[int], tokens: Tensor, names: Sequence[str]
) -> list[dict[str, Any]]:
    """For each head what enters its state where a value follows a key: the mean for every pair of the two.

    The pair that differs most from the head's mean over all pairs is what it stores before all others. The figure is
    the norm of the d_head x d_head entries, which are one number for d_head = 1, then with its sign.
    """
    found = signals(model, layer, tokens)
    n_keys = (len(names) - 2) // 2
    keys, values = range(1, n_keys + 1), range(n_keys + 1, len(names) - 1)
    before, now = tokens[:, :-2], tokens[:, 1:-1]  # without the "=>" and the key behind it
    is_pair = (before >= 1) & (before <= n_keys) & (now > n_keys) & (now < len(names) - 1)
    described = []
    for head in heads:
        entering = found.entering[:, 1:-1, head].flatten(-2)[is_pair]  # (pairs, entries)
        reading = found.Q[:, -1].unflatten(-1, (found.entering.shape[2], -1))[:, head]  # (rows, d_head)
        means = [
            _mean(entering, (before == key)[is_pair] & (now == value)[is_pair]) for key in keys for value in values
        ]
        table = torch.stack(means).unflatten(0, (len(keys), len(values)))  # (keys, values, entries)
        sizes = (table - table.mean((0, 1))).norm(dim=-1)
        key, value = divmod(int(sizes.argmax()), sizes.shape[1])
        asked = torch.stack([_mean(reading, tokens[:, -1] == k) for k in keys])
        signed = table[..., 0] if table.shape[-1] == 1 else table.norm(dim=-1)
        described.append(
            {
                "head": head,
                "stores": {"key": names[1 + key], "value": names[1 + n_keys + value]},
                "pairs": signed.tolist(),
                "query": (asked[:, 0] if asked.shape[1] == 1 else asked.norm(dim=-1)).tolist(),
                "read_by": names[1 + int(asked.norm(dim=-1).argmax())],
            }
        )
    return described


def _mean(values: Tensor, where: Tensor) -> Tensor:
    """Over the rows that are chosen; zero where there is none."""
    return values[where].sum(0) / where.sum().clamp(min=1)


def _example(found: Signals, heads: Sequence[int]) -> dict[str, Any]:
    """The signals of one row for these heads: (heads d_head, length) each; a head's K'V and state as norms."""
    shown: dict[str, Any] = {}
    for name in SIGNALS:
        signal = getattr(found, name)[0]
        if name in ("entering", "state"):
            kept = signal[:, list(heads)]
            kept = kept[..., 0, 0] if kept.shape[-1] == 1 else kept.flatten(-2).norm(dim=-1)
        else:
            kept = signal.unflatten(-1, (found.entering.shape[2], -1))[:, list(heads)].flatten(1)
        shown[name] = kept.T.tolist()
    return shown


def _filters(mixer: H3, heads: Sequence[int], length: int) -> dict[str, Any]:
    with torch.no_grad():
        shift, diagonal = systems(mixer)
        d_head = mixer.config.d_head
        channels = [head * d_head for head in heads]  # the first of each head
        long = diagonal.impulse_response(8 * length)
        decay = diagonal.A.abs()
        dt = mixer.dynamics.diagonal.dt(1.0)
    return {
        "shift": shift.taps[channels, :length].tolist(),
        "diagonal": long[list(heads)].tolist(),
        "shift_largest": shift.taps[channels].abs().argmax(1).tolist(),
        "half_reach": half_reach(long)[list(heads)].tolist(),
        "half_life": (torch.log(torch.tensor(0.5)) / decay.amax(1).log())[list(heads)].tolist(),
        "dt": dt[list(heads)].tolist(),
    }
