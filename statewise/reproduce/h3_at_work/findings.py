"""What a trained H3 layer has learned of associative recall, in numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.data.synthetic_languages import LanguageSplit
from statewise.insight import Signals, h3_systems
from statewise.mixers.h3 import H3
from statewise.mixers.prepared import wide
from statewise.models.language_model import LanguageModel
from statewise.reproduce.h3_at_work.inside import (
    h3_layers,
    half_reach,
    score,
    signals,
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
    names, seen = split.language.symbols, signals(model, layer, tokens)
    pairs = pairs_of(tokens, len(names))
    shown = [head["head"] for head in heads if head["layer"] == layer][:SHOWN]
    described = _described(pairs, seen, shown, tokens, names)
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
        "reads": what_is_read(h3_layers(model)[layer], pairs, seen, tokens),
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


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Where the value of a pair stands, (rows, length) booleans for each key and value; keys: the tokens that are."""

    keys: range
    where: list[list[Tensor]]


def pairs_of(tokens: Tensor, n_names: int) -> Pairs:
    """The pairs in (rows, length) tokens of a language with ``n_names`` symbols: ".", the keys, as many values,
    "=>".
    """
    n_keys = (n_names - 2) // 2
    keys, values = range(1, n_keys + 1), range(n_keys + 1, n_names - 1)
    before = F.pad(tokens, (1, 0))[:, :-1]
    stored = torch.arange(tokens.shape[1]) < tokens.shape[1] - 2  # without the "=>" and the key behind it
    return Pairs(keys=keys, where=[[(before == k) & (tokens == v) & stored for v in values] for k in keys])


def _entering(pairs: Pairs, entering: Tensor) -> Tensor:
    """(keys, values, ...): the mean of what enters a state with each pair."""
    return torch.stack([torch.stack([_mean(entering, where) for where in row]) for row in pairs.where])


def _asking(pairs: Pairs, Q: Tensor, tokens: Tensor) -> Tensor:
    """(keys, ...): the mean of the last token's query where it is that key."""
    return torch.stack([_mean(Q[:, -1], tokens[:, -1] == key) for key in pairs.keys])


def what_is_read(mixer: H3, pairs: Pairs, seen: Signals, tokens: Tensor) -> dict[str, Any]:
    """What the query of each key makes the layer give for a pair of each key: all heads together, through W_O.

    Only what distinguishes the values counts: the mean over the values is subtracted. The figure is its root mean
    square over the values and over the steps at which a pair can come before the query. A layer that looks up has its
    largest entries where the two keys are one. Mean signals are multiplied here, which is exact where a head's query
    and entry do not vary together given the keys and the value.

    Shapes:  tokens: (rows, length) -> table: (keys that ask, keys of pairs); own_share: (keys,), of the squares of each
             row the part on the diagonal, 0 for a key that no row asks for
    """
    n_heads, d_head, length = mixer.n_heads, mixer.config.d_head, tokens.shape[1]
    entering = _entering(pairs, seen.entering)  # (keys, values, heads, d_head, d_head)
    queries = _asking(pairs, seen.Q, tokens).unflatten(-1, (n_heads, d_head))
    with torch.no_grad():
        steps = torch.stack([where for row in pairs.where for where in row]).any(0).any(0).nonzero().squeeze(1)
        filters = h3_systems(mixer)[1].impulse_response(length)[:, length - 1 - steps]  # (heads, places)
        told = torch.einsum("khi,mvhij->kmvhj", queries, entering - entering.mean(1, keepdim=True))
        output = wide(mixer.out_proj.weight).unflatten(1, (n_heads, d_head))
        given = torch.einsum("kmvhj,hp,ohj->kmvpo", told, filters.to(told), output.to(told))
    table = given.square().sum(-1).mean((2, 3)).sqrt()
    squares = table.square()
    shares = squares.diagonal() / squares.sum(1).clamp(min=1e-30)
    return {"table": table.tolist(), "own_share": shares.tolist()}


def _described(
    pairs: Pairs, seen: Signals, heads: Sequence[int], tokens: Tensor, names: Sequence[str]
) -> list[dict[str, Any]]:
    """For each head what enters its state where a value follows a key: the mean for every pair of the two.

    The pair that differs most from the head's mean over all pairs is what it stores before all others, and the key
    whose query differs most from their mean is what reads it. The figures are the norm of the d_head x d_head entries
    and of the query, each one number for d_head = 1, then with its sign.
    """
    n_keys, described = len(pairs.keys), []
    entering = _entering(pairs, seen.entering)
    queries = _asking(pairs, seen.Q, tokens).unflatten(-1, (entering.shape[2], -1))
    for head in heads:
        table, asked = entering[:, :, head].flatten(-2), queries[:, head]  # (keys, values, entries), (keys, d_head)
        sizes = (table - table.mean((0, 1))).norm(dim=-1)
        key, value = divmod(int(sizes.argmax()), sizes.shape[1])
        signed = table[..., 0] if table.shape[-1] == 1 else table.norm(dim=-1)
        described.append(
            {
                "head": head,
                "stores": {"key": names[1 + key], "value": names[1 + n_keys + value]},
                "pairs": signed.tolist(),
                "query": (asked[:, 0] if asked.shape[1] == 1 else asked.norm(dim=-1)).tolist(),
                "read_by": names[1 + int((asked - asked.mean(0)).norm(dim=-1).argmax())],
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
        shift, diagonal = h3_systems(mixer)
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
