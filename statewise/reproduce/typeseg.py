"""A trained Mamba that nobody here trained: our operators' logits compared with its own ONNX file's, on real files.

The model of PyPI's ``typeseg``: six layers over bytes that label each with its kind of text.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise import native
from statewise.configuration.types import AtLeastTwo, Count, Natural
from statewise.data.sources import find_documents
from statewise.errors import DataError, package_folder
from statewise.files.arrays import read_npz
from statewise.operators import CausalConvolution, SelectiveDiagonal, bidirectional
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.page import told
from statewise.reproduce.report import Bar, Report
from statewise.reproduce.settings import Settings
from statewise.reproduce.work import Job, Work
from statewise.training.report import Reporter

VERSION = "0.2.7"
N_LAYERS, DT_RANK, D_STATE = 6, 16, 16
LEAST_STEP = 1e-4  # added to every step size
N_BYTES = 128  # what is no ASCII is read as one more
MOST = 1e-4  # that a logit may be off


@dataclass(frozen=True, kw_only=True)
class TypesegSettings(Settings):
    """n_bytes: half of this package's own files (Python and C), half of the standard library's, chosen by ``seed``
    longest: of a file, so many bytes from its beginning are read at most, at once
    """

    n_bytes: AtLeastTwo = 100_000
    longest: Count = 10_000
    seed: Natural = 0


def folder() -> Path:
    """Where the package keeps its weights; it is found, and not imported.

    Errors:  DataError if it is not installed.
    """
    remedy = f"pip install --no-deps typeseg=={VERSION}"
    return package_folder("typeseg", "dev", "the trained model is in the package", DataError, remedy=remedy) / "data"


def labels() -> list[str]:
    """The names of its classes."""
    names: list[str] = json.loads((folder() / "manifest.json").read_text("utf-8"))["labels"]
    return names


class TrainedMamba:
    """``model(tokens)``: tokens (batch, length), bytes -> logits (batch, length, 35).

    One set of weights reads forward and backward, and both are added before the gate, so that D counts twice. The
    convolution is centred, dt has a least value, every linear map a bias: no ``Mamba`` layer of mamba_ssm, but the
    operators are the same.

    lengths: of right-padded rows, (batch,)   form: of the selective operator
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        arrays = read_npz(folder() / "mamba_al.npz")
        self.weights = {name.replace("__", "/"): torch.tensor(m).to(dtype) for name, m in arrays.items()}

    def __call__(self, tokens: Tensor, lengths: Tensor | None = None, form: str = "scan") -> Tensor:
        h = self.weights["Embed_0/embedding"][tokens.clamp(max=N_BYTES)]
        real = torch.ones_like(tokens, dtype=torch.bool).unsqueeze(-1)
        if lengths is not None:
            real = (torch.arange(tokens.shape[1]) < lengths[:, None]).unsqueeze(-1)
        for i in range(N_LAYERS):
            h = h + self._layer(f"CheckpointMambaBlock1D_{i}", h, real, lengths, form)
        return self._linear("Dense_0", self._norm("LayerNorm_0", h))

    def _layer(self, at: str, h: Tensor, real: Tensor, lengths: Tensor | None, form: str) -> Tensor:
        x, z = self._linear(f"{at}/Dense_0", self._norm(f"{at}/LayerNorm_0", h)).chunk(2, -1)
        x = F.silu(self._convolution(f"{at}/Conv_0", x * real))
        dt, B, C = self._linear(f"{at}/Dense_1", x).split([DT_RANK, D_STATE, D_STATE], -1)
        dt = F.softplus(self._linear(f"{at}/Dense_2", dt)) + LEAST_STEP
        A, D = -self.weights[f"{at}/A_log"].exp(), self.weights[f"{at}/D"]
        operator = SelectiveDiagonal(dt, A, B.unsqueeze(2), C.unsqueeze(2), D=D)
        if form == "scan":
            y, _ = bidirectional(operator)(x, lengths=lengths)
        else:
            behind = SelectiveDiagonal(dt.flip(1), A, B.flip(1).unsqueeze(2), C.flip(1).unsqueeze(2), D=D)
            y = operator(x, form=form)[0] + behind(x.flip(1), form=form)[0].flip(1)
        return self._linear(f"{at}/Dense_3", y * F.silu(z))

    def _linear(self, at: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{at}/kernel"] + self.weights[f"{at}/bias"]

    def _norm(self, at: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{at}/scale"], self.weights[f"{at}/bias"], 1e-6)

    def _convolution(self, at: str, x: Tensor) -> Tensor:
        """Four taps, of which the newest is two steps ahead: a causal convolution, read two steps late."""
        y, _ = CausalConvolution(self.weights[f"{at}/kernel"][:, 0].T.flip(1))(F.pad(x, (0, 0, 0, 2)))
        return y[:, 2:] + self.weights[f"{at}/bias"]


def choose(config: TypesegSettings) -> dict[str, bytes]:
    """Texts by name, together ``n_bytes``: files in random order, until their half is full.

    Errors:  DataError if there is no file, or they have fewer bytes.
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


def trials(config: TypesegSettings, work: Work) -> dict[str, Job]:
    folder()
    package_folder("onnxruntime", "onnx", "the model's own file runs in", DataError)
    return {f"text-{i:02}": Job(compare, text) for i, text in enumerate(choose(config).items())}


def compare(name: str, text: bytes, reporter: Reporter) -> dict[str, Any]:
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


def report(config: TypesegSettings, found: Found) -> Report:
    texts = {text["name"]: text for text in found.values()}
    total, other = (sum(text[what] for text in texts.values()) for what in ("n_bytes", "n_other_labels"))
    worst = max(text["largest_difference"] for text in texts.values())
    together = {"name": "all", "n_bytes": total, "largest_difference": worst, "n_other_labels": other}
    what = f"{MOST:g}, over the largest difference of a logit"
    bars = [
        Bar(what=what, ours=MOST / max(worst, 1e-12), bar=1, unit="x"),
        Bar(what="bytes with the same label", ours=100 * (total - other) / total, bar=100, unit=" %"),
    ]
    return told(
        "typeseg",
        {"VERSION": VERSION, "total": total},
        [*texts.values(), {**together, "largest_logit": "", "label": ""}],
        figures={"texts": texts, "largest_difference": worst, "n_bytes": total, "n_other_labels": other},
        bars=bars if config.n_bytes >= TypesegSettings().n_bytes else [],
    )


CLAIM = Claim(
    summary="a trained Mamba that others published, rebuilt from our operators, beside its own ONNX file",
    duration="2 minutes",
    source=f"typeseg {VERSION} on PyPI",
    settings=TypesegSettings,
    quick="n_bytes=4000 longest=1000",
    trials=trials,
    report=report,
)
