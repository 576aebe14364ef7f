"""A trained S4D with fewer states: the test accuracy of the preset `digits` before and after balanced truncation.

    python experiments/reduced_s4d.py --seeds 0 1 --output reduced_s4d.json        # one or two minutes a seed

It trains `statewise train --preset digits` (scikit-learn's digits, pixel by pixel: three S4D layers of 64 channels, 32
states each), reduces every layer by `reduce_model` to a half, a quarter, an eighth and a sixteenth of its states, and
scores each model on the test split. No model is trained after its reduction. Beside each: the same number of
states where each channel keeps the poles with the largest |B C / Re A|, unchanged, which you might try first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import statewise as sw
from statewise.data.labelled import open_labelled
from statewise.evaluate import evaluate_classifier
from statewise.mixers.s4d import S4D
from statewise.models.classifier import SequenceClassifier
from statewise.models.reduction import with_mixers
from statewise.reproduce.hardware import measured
from statewise.training.presets import PRESETS

PARTS = (2, 4, 8, 16)


def largest_kept(mixer: nn.Module, n_states: int) -> S4D:
    assert isinstance(mixer, S4D)
    small = replace(mixer.config, d_state=n_states).build(mixer.d_model)
    state = mixer.state_dict()
    residue = torch.linalg.vector_norm(state["dynamics.B"], dim=-1) * state["readout.C"][:, 0].norm(dim=-1)
    kept = (residue / state["dynamics.log_decay"].exp()).topk(n_states // 2, -1).indices
    for name in ("dynamics.log_decay", "dynamics.frequency"):
        state[name] = state[name].gather(1, kept)
    pairs = kept.unsqueeze(-1).expand(-1, -1, 2)
    state["dynamics.B"] = state["dynamics.B"].gather(1, pairs)
    state["readout.C"] = state["readout.C"].gather(2, pairs.unsqueeze(1))
    small.load_state_dict(state)
    return small.eval()


def one_seed(seed: int, folder: Path) -> dict[str, Any]:
    run = sw.train("digits", None, seed=seed, out=folder / f"seed-{seed}", progress=False)
    model, rows = run.model, open_labelled(PRESETS["digits"]().data).splits["test"]
    assert isinstance(model, SequenceClassifier)
    d_state = model.layers[0].mixer.config.d_state
    record: dict[str, Any] = {"seed": seed, "d_state": d_state, "n_test": len(rows)}
    record["accuracy"] = evaluate_classifier(model, rows).accuracy
    record["reduced"] = []
    for part in PARTS:
        n_states = d_state // part
        balanced, layers = sw.reduce_model(model, n_states)
        cut = with_mixers(model, {name: largest_kept(model.get_submodule(name), n_states) for name in layers})
        reduced = list(layers.values())
        relative = torch.cat([r.bound / r.hankel[:, 0] for r in reduced])
        record["reduced"].append(
            {
                "n_states": n_states,
                "accuracy": evaluate_classifier(balanced, rows).accuracy,
                "largest_kept_accuracy": evaluate_classifier(cut, rows).accuracy,
                "median_bound_by_largest_hankel_value": relative.median().item(),
                "largest_bound_by_largest_hankel_value": relative.max().item(),
                "mean_order": torch.cat([r.order for r in reduced]).double().mean().item(),
                "largest_condition": torch.cat([r.condition for r in reduced]).max().item(),
            }
        )
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--output", type=Path, help="also write it as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        record = measured(lambda: {"seeds": [one_seed(seed, Path(name)) for seed in given.seeds]})
    text = json.dumps(record, indent=2)
    print(text)
    if given.output:
        given.output.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
