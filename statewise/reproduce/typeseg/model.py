"""The model of PyPI's ``typeseg``: six layers over bytes that label each with its kind of text, from our operators."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.errors import DataError
from statewise.files.arrays import read_npz
from statewise.operators import CausalConvolution, SelectiveDiagonal, bidirectional

VERSION = "0.2.7"
N_LAYERS, DT_RANK, D_STATE = 6, 16, 16
LEAST_STEP = 1e-4  # added to every step size
N_BYTES = 128  # what is no ASCII is read as one more


def folder() -> Path:
    """Where the package keeps its weights; it is found, and not imported.

    Errors:  DataError if it is not installed.
    """
    spec = importlib.util.find_spec("typeseg")
    if spec is None or spec.origin is None:
        raise DataError(
            "the trained model is in the package typeseg, which is not installed; "
            f"pip install --no-deps typeseg=={VERSION}"
        )
    return Path(spec.origin).parent / "data"


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
