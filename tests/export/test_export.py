"""The exported step: one call for a token, in plain operators on real numbers, equal to the model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_models import VOCAB_SIZE, build, named, others
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

import statewise as sw
from statewise.cli.commands.export import export
from statewise.errors import CheckpointError, InputError
from statewise.export import export_file, export_onnx, export_step, state_names
from statewise.export import files as export_files
from statewise.export.real import Pair, RealArithmetic
from statewise.export.step import build_part

BATCH = 3


def steps(program: ExportedProgram, tokens: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    module = program.module()
    logits = []
    for now in tokens.unbind(1):
        out, *leaves = module(now, *leaves)
        logits.append(out)
    return torch.stack(logits, 1), list(leaves)


@pytest.fixture(scope="module")
def tiny() -> sw.LanguageModel:
    torch.manual_seed(0)
    return build((sw.MambaConfig(d_state=4),))


@pytest.fixture(scope="module", params=[named, others], ids=["named", "others"])
def exported(request: pytest.FixtureRequest) -> tuple[sw.LanguageModel, ExportedProgram]:
    torch.manual_seed(1)
    model = request.param().double()
    return model, export_step(model, batch=BATCH)


def test_equal_in_float64(exported: tuple[sw.LanguageModel, ExportedProgram]) -> None:
    """From rest, and from the state that the model has after a prompt; logits and every leaf."""
    model, program = exported
    tokens = torch.randint(VOCAB_SIZE, (BATCH, 40))
    with torch.no_grad():
        whole, _ = model(tokens)
        _, state = model(tokens[:, :15], model.initial_state(BATCH))
        _, final = model(tokens, model.initial_state(BATCH))
    assert state is not None
    for begin, before in ((0, model.initial_state(BATCH)), (15, state)):
        logits, leaves = steps(program, tokens[:, begin:], tree_leaves(before))
        assert (logits - whole[:, begin:]).abs().max() < 1e-10 * whole.abs().max()
        for leaf, want in zip(leaves, tree_leaves(final), strict=True):
            assert leaf.dtype == want.dtype
            assert leaf.shape == want.shape
            assert not want.numel() or (leaf - want).abs().max() <= 1e-9 * want.abs().max().clamp(min=1)


def test_filters() -> None:
    """Their gains follow the input, so that nothing is computed beforehand."""
    torch.manual_seed(0)
    model = build((sw.KalmanConfig(d_state=3), sw.KalmanConfig(adaptive=False, output="innovation"))).double()
    program, tokens = export_step(model, batch=BATCH), torch.randint(VOCAB_SIZE, (BATCH, 20))
    with torch.no_grad():
        whole, final = model(tokens, model.initial_state(BATCH))
    logits, leaves = steps(program, tokens, tree_leaves(model.initial_state(BATCH)))
    torch.testing.assert_close(logits, whole)
    torch.testing.assert_close(leaves, tree_leaves(final))
    values = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    assert not any(value.is_complex() for value in values)


def test_plain_operators_on_real_numbers(exported: tuple[sw.LanguageModel, ExportedProgram]) -> None:
    model, program = exported
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    assert all("statewise" not in str(node.target) for node in nodes)
    values = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    assert not any(value.is_complex() for value in values)
    assert all(isinstance(size, int) for value in values for size in value.shape)
    assert not any("log_dt" in name for name in program.state_dict)  # what a frozen model has computed already
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_names(tiny: sw.LanguageModel) -> None:
    assert state_names(tiny) == ("position", "layers.0.convolution.inputs", "layers.0.ssm.h")
    assert state_names(named())[-1] == "layers.3.ssm.h"


def test_file_runs_without_this_package(
    tiny: sw.LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written by the command, read by PyTorch alone."""
    path = tmp_path / "step.pt2"
    sw.save(tiny, tmp_path / "model")
    export(tmp_path / "model", path, part=None, batch=2, which="best")
    assert f"{path.stat().st_size:,} bytes" in capsys.readouterr().out
    code = (
        "import json, sys, torch\n"
        "extra = {'statewise.json': ''}\n"
        "step = torch.export.load(sys.argv[1], extra_files=extra).module()\n"
        "state = json.loads(json.loads(extra['statewise.json'])['statewise.state'])\n"
        "leaves = [torch.zeros(leaf['shape'], dtype=getattr(torch, leaf['dtype'])) for leaf in state]\n"
        "for token in (3, 1, 4):\n"
        "    logits, *leaves = step(torch.tensor([token, 0]), *leaves)\n"
        "assert not any(name.startswith('statewise') for name in sys.modules)\n"
        "print(json.dumps(logits[0].tolist()))\n"
    )
    words = [sys.executable, "-W", "ignore", "-c", code, str(path)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    with torch.no_grad():
        want = tiny(torch.tensor([[3, 1, 4]]))[0][0, -1]
    assert torch.allclose(torch.tensor(json.loads(result.stdout)), want, atol=1e-5)
    with pytest.raises(CheckpointError, match="exists and is not overwritten"):
        export_file(tiny, path)
    with pytest.raises(InputError, match=r"FILE\.onnx or FILE\.pt2"):
        export_file(tiny, tmp_path / "step.bin")
    with pytest.raises(InputError, match=r"exported as FILE\.onnx;"):
        export_onnx(tiny, tmp_path / "step.bin")


def test_bfloat16(tmp_path: Path) -> None:
    """As the model computes it: matrices in bfloat16, states in float32."""
    torch.manual_seed(2)
    model = build((sw.Mamba2Config(d_state=8, d_head=8),)).bfloat16()
    path = tmp_path / "step.pt2"
    assert export_file(model, path).largest_difference < 0.03
    tokens = torch.randint(VOCAB_SIZE, (1, 20))
    logits, leaves = steps(torch.export.load(path), tokens, tree_leaves(model.initial_state(1)))
    assert logits.dtype == torch.bfloat16
    assert {leaf.dtype for leaf in leaves} == {torch.int64, torch.float32}
    state, want = model.initial_state(1), []
    with torch.no_grad():
        for now in tokens.unbind(1):
            out, state = model(now[:, None], state)
            want.append(out[:, 0])
    expected = torch.stack(want, 1).float()
    assert (logits.float() - expected).abs().max() < 0.02 * expected.abs().max()


def test_attention_is_refused_without_a_window() -> None:
    model = build((sw.MambaConfig(d_state=4), sw.AttentionConfig(n_heads=4)))
    with pytest.raises(InputError, match=r"layers\[1\] is attention, .* fixed shapes"):
        export_step(model)


@pytest.mark.parametrize("window", [1, 8])
def test_attention_with_a_window(window: int) -> None:
    torch.manual_seed(0)
    model = build((sw.AttentionConfig(n_heads=4, n_kv_heads=2, window=window),))
    tokens, history = torch.randint(VOCAB_SIZE, (BATCH, 20)), torch.zeros(BATCH, max(window - 1, 1), 2, 8)
    position = torch.zeros(BATCH, dtype=torch.int64)
    logits, leaves = steps(export_step(model, batch=BATCH), tokens, [position, history, history, position])
    with torch.no_grad():
        torch.testing.assert_close(logits, model(tokens)[0])
    assert leaves[1].shape == history.shape


def test_other_refusals(tiny: sw.LanguageModel) -> None:
    for batch in (0, True, 1.5):
        with pytest.raises(InputError, match="expected an integer of at least 1"):
            export_step(tiny, batch=batch)  # type: ignore[arg-type]


def test_a_step_that_differs_is_not_written(
    tiny: sw.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_files, "largest_difference", lambda *_: float("nan"))
    with pytest.raises(CheckpointError, match="nothing was written"):
        export_files._write(
            tiny, build_part(tiny, "step"), tmp_path / "step.pt2", 1, lambda hidden: lambda inputs: inputs
        )
    assert not list(tmp_path.iterdir())


class Formulas(nn.Module):
    """Every rule of complex arithmetic that the steps need."""

    def forward(self, z: Tensor, w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        square = z.unsqueeze(0) @ w.unsqueeze(0)
        chosen = torch.where(z.abs() < 1, z, x)
        joined = torch.cat([z, w.conj()], 1)[:, 1:3].sum(1)
        sums = (z + 1, z - x, x - z, 2 * z, z * w, z / 3, z / w, x / w, -z, z.exp(), torch.ones_like(z) * w, z @ w)
        turned = z.permute(1, 0).reshape(-1).clone()
        parts = torch.complex(x, 2 * x).to(torch.complex128), x.to(torch.complex128) * z
        return tuple(torch.view_as_real(m) for m in (square, chosen, joined, *sums, turned, *parts))


class Unruly(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return torch.view_as_real(z.sin())


def test_complex_numbers_as_pairs() -> None:
    def graph(module: nn.Module, *inputs: Tensor) -> Any:
        return torch.export.export(module, inputs, strict=False).run_decompositions().graph_module

    torch.manual_seed(3)
    z, w = (torch.randn(3, 3, dtype=torch.complex128) for _ in range(2))
    x = torch.randn(3, 3, dtype=torch.float64)
    pairs = [Pair(m.real, m.imag) for m in (z, w)]
    got = RealArithmetic(graph(Formulas(), z, w, x)).run(*pairs, x)
    for mine, right in zip(got, Formulas()(z, w, x), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12)
    with pytest.raises(InputError, match=r"aten\.sin\.default on complex numbers"):
        RealArithmetic(graph(Unruly(), z)).run(pairs[0])
