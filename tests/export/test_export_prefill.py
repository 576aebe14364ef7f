"""A prompt read at once in onnxruntime, and written on from it by the step's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_models import VOCAB_SIZE, build
from in_onnxruntime import Loaded, difference

import statewise as sw
from statewise.export import export_onnx

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason='needs pip install "statewise[onnx]"')


class Written:
    """A model in its two files."""

    def __init__(self, model: sw.LanguageModel, folder: Path, batch: int) -> None:
        self.model, self.batch = model, batch
        self.paths = {part: folder / f"{part}.onnx" for part in ("prefill", "step")}
        export_onnx(model, self.paths["prefill"], part="prefill")
        export_onnx(model, self.paths["step"], part="step", batch=batch)

    def open(self, batch: int) -> tuple[Loaded, Loaded]:
        return Loaded(self.paths["prefill"], batch), Loaded(self.paths["step"], batch)

    def check(self, pieces: tuple[tuple[int, ...], ...], n_steps: int = 3) -> float:
        """Pieces of ragged lengths and then steps, beside the model, which reads each row at once. How far they are
        apart at most."""
        rng = np.random.default_rng(len(pieces[0]))
        prefill, step = self.open(len(pieces[0]))
        rows: list[list[int]] = [[] for _ in pieces[0]]
        differences = []
        for piece in (*pieces, *[(1,) * len(rows)] * n_steps):
            tokens = rng.integers(0, VOCAB_SIZE, (len(rows), max(piece)))
            for row, new, n in zip(rows, tokens, piece):
                row += new[:n].tolist()
            if len(differences) < len(pieces):
                found, step.state = prefill(tokens=tokens, lengths=np.array(piece)), prefill.state
            else:
                found = step(tokens=tokens[:, 0])
            want = np.stack([_last(self.model, row) for row in rows])
            read = [n > 0 for n in piece]  # a row that read nothing has no logits
            differences.append(difference(found["logits"][read], want[read]))
        return max(differences)


def _last(model: sw.LanguageModel, row: list[int]) -> np.ndarray:
    with torch.no_grad():
        found: Any = model(torch.tensor([row]))[0][0, -1].numpy()
    return found


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Written:
    torch.manual_seed(0)
    layers = (sw.Mamba2Config(d_state=8, d_head=8, n_groups=2), sw.AttentionConfig(n_heads=4, n_kv_heads=2))
    return Written(build(layers, max_positions=300), tmp_path_factory.mktemp("hybrid"), 1)


def test_greedy_tokens(hybrid: Written) -> None:
    """Those of ``sw.generate``, whose prompt the first file has read at once."""
    prompt = np.random.default_rng(0).integers(0, VOCAB_SIZE, 200)
    want = [int(t.ids) for t in sw.generate(hybrid.model, prompt.tolist(), max_new_tokens=40, temperature=0)]
    prefill, step = hybrid.open(1)
    found, tokens = prefill(tokens=prompt[None], lengths=np.array([200])), []
    step.state = prefill.state
    for _ in range(40):
        tokens.append(int(found["logits"][0].argmax()))
        found = step(tokens=np.array(tokens[-1:]))
    assert tokens == want


def test_pieces_and_steps(hybrid: Written) -> None:
    """The history of attention grows by each of them, and rows of unlike lengths have their own."""
    assert hybrid.check(((9,), (1,), (33,))) < 4e-6
    assert hybrid.check(((7, 3, 5), (1, 40, 2), (2, 0, 3)), n_steps=0) < 4e-6
    prefill, _ = hybrid.open(2)
    prefill(tokens=np.zeros((2, 6), int), lengths=np.array([6, 2]))
    assert prefill.state["layers.1.keys"].shape == (2, 6, 2, 8)
    assert prefill.state["layers.1.position"].tolist() == prefill.state["position"].tolist() == [6, 2]


def test_both_files_have_one_layout(hybrid: Written) -> None:
    prefill, step = hybrid.open(1)
    shapes = [{leaf["name"]: leaf["shape"][1:] for leaf in file.leaves} for file in (prefill, step)]
    assert shapes[0] == shapes[1]
    assert list(shapes[0]) == list(sw.export.state_names(hybrid.model))
    assert shapes[0]["layers.1.keys"] == ["history of layers.1", 2, 8]
    assert "statewise.batch" not in prefill.metadata
    assert step.metadata["statewise.batch"] == "1"
