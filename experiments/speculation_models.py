"""The two models of ``speculation.py``: a hybrid, and a draft of it ten times smaller, trained on the same text.

    python experiments/speculation_models.py runs/large --size large --minutes 25
    python experiments/speculation_models.py runs/small --size small --minutes 4

Both read the source of Python's standard library byte by byte, with the optimiser of the demo.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import statewise as sw
from statewise.data.text import TextDataConfig
from statewise.training.presets import PRESETS

VOCABULARY = 257  # bytes, and what stands between documents


def large() -> sw.LanguageModelConfig:
    mamba = sw.Mamba2Config(d_state=64, d_head=64)
    attention = sw.AttentionConfig(n_heads=8, n_kv_heads=2, d_head=64)
    layers = (mamba, mamba, attention, mamba, mamba, mamba)
    return sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=512, layers=layers)


def small() -> sw.LanguageModelConfig:
    mamba = sw.Mamba2Config(d_state=64, d_head=64)
    attention = sw.AttentionConfig(n_heads=5, n_kv_heads=1, d_head=32, window=128)
    return sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=160, layers=(mamba, mamba, attention, mamba, mamba))


SIZES = {"large": large, "small": small}


def train(folder: Path, size: str, minutes: float) -> None:
    demo = PRESETS["demo"]()
    run = replace(demo, model=SIZES[size](), data=TextDataConfig())
    settings: dict[str, object] = {"train.reporting.evaluate_items": 8192}  # all would take longer than the training
    if size == "small":  # many small steps: it has few minutes
        settings |= {"train.batch_size": 4, "train.length": 128}
    sw.train(run, out=folder, minutes=minutes, set=settings, progress=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    options = parser.parse_args()
    train(options.out, options.size, options.minutes)


if __name__ == "__main__":
    main()
