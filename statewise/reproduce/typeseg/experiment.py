"""A trained Mamba that nobody here trained: our operators' logits beside those of its own ONNX file, on real files."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from statewise import native
from statewise.configuration import Config
from statewise.configuration.types import AtLeastTwo, Count, Natural
from statewise.data.sources import find_documents
from statewise.errors import DataError
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Bar, Report
from statewise.reproduce.typeseg.model import N_BYTES, VERSION, TrainedMamba, folder, labels
from statewise.reproduce.work import Work
from statewise.train.tasks.base import Table

MOST = 1e-4  # that a logit may be off


@dataclass(frozen=True, kw_only=True)
class TypesegSettings(Config):
    """n_bytes: half of this package's own files (Python and C), half of the standard library's, chosen by ``seed``
    longest: of a file, so many bytes from its beginning are read at most, at once
    """

    n_bytes: AtLeastTwo = 100_000
    longest: Count = 10_000
    seed: Natural = 0


def quick() -> TypesegSettings:
    return TypesegSettings(n_bytes=4_000, longest=1_000)


def run(config: TypesegSettings, work: Work) -> Report:
    folder()
    if importlib.util.find_spec("onnxruntime") is None:
        raise DataError(
            'the model\'s own file runs in onnxruntime, which is not installed; pip install "statewise[onnx]"'
        )
    texts = choose(config)
    work.begin(len(texts))
    found = {
        name: work.part(f"text-{i:02}", partial(compare, name, text)) for i, (name, text) in enumerate(texts.items())
    }
    return _report(config, found)


def choose(config: TypesegSettings) -> dict[str, bytes]:
    """Texts by name, together ``n_bytes``: files in random order, until their half is full.

    Errors:  DataError if there is no file, or they are not so many bytes.
    """
    package = Path(native.__file__).parent.parent
    texts: dict[str, bytes] = {}
    for source in (str(package), "stdlib"):
        documents = [d for d in find_documents(source).documents if d.path.suffix in (".py", ".c", ".h")]
        random.Random(config.seed).shuffle(documents)
        left = config.n_bytes // 2 if source != "stdlib" else config.n_bytes - sum(map(len, texts.values()))
        for document in documents:
            text = document.path.read_bytes()[: min(config.longest, left)]
            if not text:
                continue
            texts[f"{'statewise' if source != 'stdlib' else source}/{document.name}"] = text
            left -= len(text)
            if not left:
                break
        if left:
            raise DataError(f"the files of {source} are {left:,} bytes too few; use fewer n_bytes, or a larger longest")
    return texts


def compare(name: str, text: bytes) -> dict[str, Any]:
    """One text through both: how far the logits are apart, and how many labels differ."""
    import onnxruntime

    tokens = torch.tensor(list(text))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(folder() / "mamba_al.onnx"), options, providers=["CPUExecutionProvider"])
    want = torch.from_numpy(session.run(None, {"ids": tokens.clamp(max=N_BYTES).numpy()})[0])
    with torch.no_grad():
        got = TrainedMamba()(tokens.unsqueeze(0))[0]
    chosen = got.argmax(-1)
    (most, _), *_ = Counter(chosen.tolist()).most_common()
    return {
        "name": name,
        "n_bytes": len(text),
        "largest_difference": float((got - want).abs().max()),
        "largest_logit": float(want.abs().max()),
        "n_other_labels": int((chosen != want.argmax(-1)).sum()),
        "label": labels()[most],
    }


def _report(config: TypesegSettings, found: dict[str, dict[str, Any]]) -> Report:
    total = sum(text["n_bytes"] for text in found.values())
    worst = max(text["largest_difference"] for text in found.values())
    same = total - sum(text["n_other_labels"] for text in found.values())
    rows = [
        (name, f"{m['n_bytes']:,}", f"{m['largest_difference']:.1e}", f"{m['largest_logit']:.1f}",
         str(m["n_other_labels"]), m["label"])
        for name, m in found.items()
    ]  # fmt: skip
    rows.append(("all", f"{total:,}", f"{worst:.1e}", "", str(total - same), ""))
    columns = ("file", "bytes", "largest difference", "largest logit", "other labels", "mostly")
    bars = []
    if config.n_bytes >= TypesegSettings().n_bytes:
        bars = [
            Bar(
                what=f"{MOST:g}, over the largest difference of a logit", ours=MOST / max(worst, 1e-12), bar=1, unit="x"
            ),
            Bar(what="bytes with the same label", ours=100 * same / total, bar=100, unit=" %"),
        ]
    return Report(
        title="A trained Mamba of others, from our operators",
        setting=(
            f"The byte-level bidirectional Mamba of typeseg {VERSION}, six layers that label each byte with one of 35 "
            f"kinds of text, float32: {total:,} bytes of real files, our operators beside its own ONNX file in "
            "onnxruntime."
        ),
        tables=[Table("Logits of both", columns, rows)],
        differences=("None is meant: the same weights and the same inputs. What is left is rounding.",),
        figures={"texts": found, "largest_difference": worst, "n_bytes": total, "n_other_labels": total - same},
        bars=bars,
    )


REPRODUCTION = Reproduction(
    summary="a trained Mamba that others published, rebuilt from our operators, beside its own ONNX file",
    duration="2 minutes",
    full=TypesegSettings,
    quick=quick,
    run=run,
)
