"""The step as an ONNX file: equal in onnxruntime over a thousand tokens, and enough to write text with."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_models import VOCAB_SIZE, build, named

import statewise as sw
from statewise.errors import CheckpointError, InputError
from statewise.export import ExportedFile, export_onnx, onnx_file, state_names
from statewise.models.registry import model_from_dict

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason='needs pip install "statewise[onnx]"')


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[sw.LanguageModel, ExportedFile]:
    torch.manual_seed(4)
    model = named()
    return model, export_onnx(model, tmp_path_factory.mktemp("onnx") / "step.onnx")


def session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class Loaded:
    """As in docs/export.md: the file, onnxruntime and numpy alone."""

    def __init__(self, path: Path) -> None:
        import numpy as np

        self.session = session(path)
        self.metadata = self.session.get_modelmeta().custom_metadata_map
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.state = {m["name"]: np.zeros(m["shape"], m["dtype"]) for m in json.loads(self.metadata["statewise.state"])}

    def step(self, token: int) -> Any:
        import numpy as np

        found = self.session.run(None, {"tokens": np.array([token]), **self.state})
        after = dict(zip(self.outputs, found))
        self.state = {name: after[f"next.{name}"] for name in self.state}
        return after["logits"][0]


def test_a_thousand_steps(written: tuple[sw.LanguageModel, ExportedFile]) -> None:
    """Beside the model, which reads all of them at once."""
    model, file = written
    tokens = torch.randint(VOCAB_SIZE, (1000,), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        want = model(tokens[None])[0][0]
        double = model.double()(tokens[None])[0][0]
    model.float()
    step = Loaded(file.path).step
    got = torch.stack([torch.from_numpy(step(int(token))) for token in tokens])
    for right in (want, double):
        difference = (got - right).abs().amax(1) / right.abs().max()
        assert difference.max() < 2e-5
        assert difference[900:].max() < 2e-5
    assert torch.equal(got.argmax(-1), want.argmax(-1))
    print(f"largest difference over 1,000 steps: {float(difference.max()):.1e}")


def test_greedy_tokens(written: tuple[sw.LanguageModel, ExportedFile]) -> None:
    model, file = written
    prompt = [5, 17, 3, 42]
    want = [int(token.ids) for token in sw.generate(model, prompt, max_new_tokens=100, temperature=0)]
    loaded, tokens = Loaded(file.path), []
    for token in prompt:
        logits = loaded.step(token)
    for _ in range(100):
        tokens.append(int(logits.argmax()))
        logits = loaded.step(tokens[-1])
    assert tokens == want


def test_what_the_file_says(written: tuple[sw.LanguageModel, ExportedFile]) -> None:
    model, file = written
    loaded = Loaded(file.path)
    assert tuple(loaded.state) == state_names(model)
    assert loaded.outputs == ["logits", *(f"next.{name}" for name in state_names(model))]
    inputs = {given.name: given for given in loaded.session.get_inputs()}
    assert list(inputs) == ["tokens", *state_names(model)]
    for name, array in loaded.state.items():
        assert inputs[name].shape == list(array.shape)
    assert loaded.metadata["statewise.vocab_size"] == str(VOCAB_SIZE)
    assert loaded.metadata["statewise.batch"] == "1"
    assert model_from_dict(json.loads(loaded.metadata["statewise.model"])) == model.config.in_full()
    assert file.largest_difference < 1e-5
    assert file.n_bytes == file.path.stat().st_size
    assert file.n_operations > 50
    assert [path.name for path in file.path.parent.iterdir()] == ["step.onnx"]


def test_large_weights_lie_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(6)
    model = build((sw.GSSConfig(d_state=4, expand=1),))
    monkeypatch.setattr(onnx_file, "ONE_FILE", 1000)
    file = export_onnx(model, tmp_path / "step.onnx", batch=2)
    assert {path.name for path in tmp_path.iterdir()} == {"step.onnx", "step.onnx.data"}
    weights = tmp_path / "step.onnx.data"
    assert file.n_bytes == file.path.stat().st_size + weights.stat().st_size
    assert session(file.path).get_inputs()[0].shape == [2]
    for taken, free in (("step.onnx", "step.onnx.data"), ("step.onnx.data", "step.onnx")):
        folder = tmp_path / f"without-{free}"
        folder.mkdir()
        (folder / taken).write_bytes(b"")
        with pytest.raises(CheckpointError, match="exists and is not overwritten"):
            export_onnx(model, folder / "step.onnx")


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build((sw.MambaConfig(d_state=4),))
    for dtype in (torch.bfloat16, torch.float64):
        with pytest.raises(InputError, match=rf"is {dtype} on cpu, .* use model\.float\(\)\.cpu\(\)"):
            export_onnx(build((sw.MambaConfig(d_state=4),)).to(dtype), tmp_path / "step.onnx")

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name, name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=r'onnx, which is not installed; pip install "statewise\[onnx\]"'):
        export_onnx(model, tmp_path / "step.onnx")
    assert not list(tmp_path.iterdir())
