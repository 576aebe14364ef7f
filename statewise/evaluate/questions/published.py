"""Published numbers to print next to ours.

Source:  Fu et al. 2023, "Hungry hungry hippos: towards language modeling with state space models", arXiv:2212.14052.
         Its prompts are not published; ours are lm-eval's. The baselines are the paper's own runs of published models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statewise.mixers.attention import AttentionConfig
from statewise.mixers.h3 import H3Config
from statewise.models.language_model import LanguageModelConfig

SUPERGLUE_ORDER = ("wsc", "wic", "rte", "cb", "multirc", "record", "boolq", "copa")

# How many questions its validation splits have: of MultiRC answers, of ReCoRD queries, that are asked about each.
SUPERGLUE_SIZES = {
    "wsc": 104,
    "wic": 638,
    "rte": 277,
    "cb": 56,
    "multirc": 4_848,
    "record": 10_000,
    "boolq": 3_270,
    "copa": 100,
}

# By number of shots: the eight tasks in that order, then the average as printed; per cent.
SUPERGLUE: dict[int, dict[str, tuple[float, ...]]] = {
    0: {
        "OPT-125M": (39.4, 52.0, 48.7, 37.4, 58.9, 44.9, 59.6, 60.0, 50.1),
        "GPT-Neo-125M": (36.5, 53.6, 53.1, 41.1, 59.9, 39.6, 62.2, 60.0, 50.8),
        "Hybrid H3-125M": (39.4, 51.4, 59.2, 48.2, 51.4, 55.0, 59.6, 67.0, 53.9),
        "GPT-2 medium (355M)": (50.0, 52.0, 51.3, 28.6, 59.5, 53.3, 61.0, 65.0, 52.6),
        "OPT-350M": (53.5, 50.8, 53.4, 35.7, 58.9, 51.4, 60.9, 60.0, 53.1),
        "Hybrid H3-355M": (37.5, 51.7, 55.2, 41.1, 59.5, 62.3, 61.5, 69.0, 54.7),
        "OPT-1.3B": (36.5, 49.5, 53.4, 39.3, 58.3, 61.8, 55.0, 69.0, 52.9),
        "GPT-Neo-1.3B": (41.3, 50.0, 52.3, 33.9, 57.9, 55.5, 59.9, 66.0, 52.1),
        "Hybrid H3-1.3B": (52.9, 50.3, 53.4, 33.9, 58.2, 67.8, 61.7, 74.0, 56.5),
        "OPT-2.7B": (51.0, 50.8, 50.5, 41.1, 57.4, 65.9, 60.9, 66.0, 55.5),
        "GPT-Neo-2.7B": (37.5, 50.0, 52.3, 50.0, 59.1, 60.0, 61.1, 67.0, 54.6),
        "Hybrid H3-2.7B": (36.5, 51.3, 57.0, 37.5, 58.7, 71.3, 61.1, 81.0, 56.8),
    },
    3: {
        "OPT-125M": (36.5, 50.2, 47.3, 44.6, 57.9, 44.9, 41.9, 60.0, 47.9),
        "GPT-Neo-125M": (38.5, 50.0, 53.1, 17.9, 56.3, 39.6, 62.1, 60.0, 47.2),
        "Hybrid H3-125M": (43.3, 49.1, 58.1, 51.8, 48.9, 55.0, 56.1, 67.0, 53.7),
        "GPT-2 medium (355M)": (36.5, 50.5, 48.0, 8.9, 43.5, 53.3, 58.8, 65.0, 45.6),
        "OPT-350M": (37.5, 50.0, 45.8, 44.6, 49.8, 51.4, 61.7, 60.0, 50.1),
        "Hybrid H3-355M": (42.3, 47.5, 50.5, 28.6, 59.7, 62.3, 60.5, 69.0, 52.6),
        "OPT-1.3B": (44.2, 51.1, 53.4, 16.1, 59.9, 62.1, 38.3, 70.0, 49.4),
        "GPT-Neo-1.3B": (35.6, 50.6, 47.3, 32.1, 59.9, 55.7, 61.2, 67.0, 51.2),
        "Hybrid H3-1.3B": (36.5, 49.2, 55.2, 23.2, 59.3, 67.6, 56.9, 76.0, 53.0),
        "OPT-2.7B": (44.2, 50.5, 53.4, 17.9, 59.2, 66.0, 62.0, 71.0, 53.0),
        "GPT-Neo-2.7B": (49.0, 51.9, 51.6, 21.4, 57.0, 60.0, 56.0, 68.0, 51.9),
        "Hybrid H3-2.7B": (36.5, 45.6, 47.3, 46.4, 59.4, 71.1, 60.6, 77.0, 55.5),
    },
}

# Perplexity a token of GPT-2's tokenizer. The GPT-2 models were not trained on the Pile, the others were.
PERPLEXITY: dict[str, dict[str, float]] = {
    "pile": {
        "GPT-2 small (125M)": 19.0,
        "GPT-Neo-125M": 9.4,
        "Hybrid H3-125M": 8.8,
        "GPT-2 medium (355M)": 13.9,
        "Hybrid H3-355M": 7.1,
        "GPT-2 XL (1.5B)": 12.4,
        "GPT-Neo-1.3B": 6.2,
        "Hybrid H3-1.3B": 6.0,
        "GPT-Neo-2.7B": 5.7,
        "Hybrid H3-2.7B": 5.4,
    },
    "openwebtext": {
        "GPT-2 small (125M)": 22.6,
        "GPT-Neo-125M": 22.6,
        "Hybrid H3-125M": 20.9,
        "GPT-2 medium (355M)": 17.0,
        "Hybrid H3-355M": 15.9,
        "GPT-2 XL (1.5B)": 12.9,
        "GPT-Neo-1.3B": 13.1,
        "Hybrid H3-1.3B": 12.4,
        "GPT-Neo-2.7B": 11.7,
        "Hybrid H3-2.7B": 11.0,
    },
    "wikitext103": {
        "GPT-2 small (125M)": 29.9,
        "GPT-Neo-125M": 26.3,
        "Hybrid H3-125M": 23.7,
        "GPT-2 medium (355M)": 21.8,
        "Hybrid H3-355M": 16.9,
        "GPT-2 XL (1.5B)": 17.0,
        "GPT-Neo-1.3B": 13.3,
        "Hybrid H3-1.3B": 12.5,
        "GPT-Neo-2.7B": 11.5,
        "Hybrid H3-2.7B": 10.6,
    },
}

# Where the weights of each row are published, on the Hugging Face hub
WEIGHTS: dict[str, str] = {
    "GPT-2 small (125M)": "openai-community/gpt2",
    "GPT-2 medium (355M)": "openai-community/gpt2-medium",
    "GPT-2 XL (1.5B)": "openai-community/gpt2-xl",
    **{f"GPT-Neo-{size}": f"EleutherAI/gpt-neo-{size.replace('M', 'm')}" for size in ("125M", "1.3B", "2.7B")},
    **{f"OPT-{size}": f"facebook/opt-{size.lower()}" for size in ("125M", "350M", "1.3B", "2.7B")},
    **{f"Hybrid H3-{size}": f"danfu09/H3-{size}" for size in ("125M", "355M", "1.3B", "2.7B")},
}
# By the width and the number of layers; H3's 125M to 2.7B, and the others' names of the same sizes
_SIZES = {(768, 12): "125M", (1024, 24): "355M", (2048, 24): "1.3B", (2560, 32): "2.7B"}
_KINDS = {"GPT-Neo": "gpt_neo", "OPT": "opt"}  # as transformers names them
_GPT2 = {(768, 12): "small (125M)", (1024, 24): "medium (355M)", (1600, 48): "XL (1.5B)"}


def has_sizes_of(row: str, config: Mapping[str, Any]) -> bool:
    """Whether a published config.json has the architecture, width and number of layers of a row; True where it does not
    say.

    >>> has_sizes_of("GPT-2 small (125M)", {"n_embd": 768, "n_layer": 12})
    True
    >>> has_sizes_of("OPT-350M", {"hidden_size": 64})
    False
    >>> has_sizes_of("GPT-Neo-1.3B", {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 24})
    False
    """
    family, _, label = row.replace("350M", "355M").rpartition("-") if "GPT-2" not in row else ("", "", row[6:])
    wanted = next(sizes for sizes, name in (_SIZES if family else _GPT2).items() if name == label)
    names = (("n_embd", "hidden_size", "d_model"), ("n_layer", "num_layers", "num_hidden_layers"))
    found = [next((config[name] for name in each if name in config), None) for each in names]
    kind = "gpt2" if "GPT-2" in row else _KINDS.get(family)
    named = config.get("model_type") if kind else None  # that of H3 has none
    return named in (None, kind) and all(value in (None, size) for value, size in zip(found, wanted))


def row_of(config: LanguageModelConfig) -> str | None:
    """The row of the published tables that is a model of this architecture and these sizes; whether it has its weights
    no config says. None: there is no such row.

    >>> from statewise.models.presets import PRESETS
    >>> row_of(PRESETS["h3-355m"]())
    'Hybrid H3-355M'
    """
    sizes = (config.d_model, len(config.layers))
    mixers = [block.mixer for block in config.blocks]
    if any(isinstance(mixer, H3Config) for mixer in mixers):
        name = f"Hybrid H3-{_SIZES.get(sizes)}"
    elif not all(isinstance(mixer, AttentionConfig) for mixer in mixers) or config.max_positions is None:
        return None
    elif config.position_offset:
        name = f"OPT-{_SIZES.get(sizes)}".replace("355M", "350M")
    elif all(isinstance(mixer, AttentionConfig) and mixer.scale == 1.0 for mixer in mixers):
        name = f"GPT-Neo-{_SIZES.get(sizes)}"
    else:
        name = f"GPT-2 {_GPT2.get(sizes)}"
    return name if name in WEIGHTS else None


def superglue_rows(n_shots: int, names: Mapping[str, object]) -> dict[str, dict[str, float]]:
    """By model, the published per cent of those tasks that are among ``names``, with "superglue" for the average.

    Nothing for a number of shots that nobody published.

    >>> superglue_rows(3, {"copa": 1, "superglue": 2})["Hybrid H3-125M"]
    {'copa': 67.0, 'superglue': 53.7}
    """
    columns = (*SUPERGLUE_ORDER, "superglue")
    rows = {
        model: {name: value for name, value in zip(columns, values, strict=True) if name in names}
        for model, values in SUPERGLUE.get(n_shots, {}).items()
    }
    return {model: values for model, values in rows.items() if values}
