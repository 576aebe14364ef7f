"""Every type that a GGUF file has numbers in: read bit for bit, and written with the package's own quantisers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_blocks import random_blocks
from gguf_examples import build, read, write
from gguf_quantisers import QUANTISERS

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.gguf import read_gguf
from statewise.checkpoints.convert.gguf_file import StoredTensor, read_file, widened, write_file
from statewise.checkpoints.convert.gguf_types import NUMBERS, QUANTISATIONS, READ, WRITTEN, bits
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.errors import CheckpointError, InputError

gguf = pytest.importorskip("gguf")
from gguf.quants import _type_traits, dequantize, quantize  # noqa: E402

MATRICES = ("token_embd.weight", "ssm_in.weight", "ssm_out.weight")
# Mean size of the error in one of the mean size of a number, for normal numbers
ERRORS = {
    "Q8_0": 0.008,
    "Q6_K": 0.03,
    "Q5_K": 0.06,
    "Q5_0": 0.06,
    "Q5_1": 0.06,
    "Q4_K": 0.12,
    "Q4_0": 0.13,
    "Q4_1": 0.12,
}
ERRORS |= {"BF16": 0.003, "F16": 0.001, "MXFP4": 0.2, "Q3_K": 0.25, "Q2_K": 0.45, "IQ4_NL": 0.12, "IQ4_XS": 0.13}


def test_the_table_is_of_all_types_that_the_package_can_widen() -> None:
    known = {kind.name for kind in _type_traits}
    assert known | {"F32", "F16", "F64"} == set(READ)
    sizes = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {name: (q.block, q.n_bytes) for name, q in QUANTISATIONS.items()} == {n: sizes[n] for n in QUANTISATIONS}
    assert {name: bits(name) for name in READ} == {name: 8 * sizes[name][1] / sizes[name][0] for name in READ}
    kept = set(READ) | set(NUMBERS)  # of the others, Q8_1 and Q8_K are never in files
    assert {kind.name for kind in gguf.GGMLQuantizationType} - kept == {"Q8_1", "Q8_K", "Q1_0"}
    for name, number in WRITTEN.items():
        assert any(name in kind.name and kind == number for kind in gguf.LlamaFileType), name
        quantize(np.ones((2, 256), np.float32), gguf.GGMLQuantizationType[name])


def test_the_page_has_the_table() -> None:
    page = Path(__file__).parents[2].joinpath("docs/checkpoints.md").read_text("utf-8")
    section = page.split("## Quantised files: GGUF")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    known = []
    for name in READ:
        form = QUANTISATIONS.get(name)
        step = ["float32", "32"]
        if form is not None:
            width = int(form.packed.removeprefix("int")) + 32 * (1 + form.offset) / form.group
            step = [f"{form.packed}, groups of {form.group}" + ", offsets" * form.offset, f"{width:g}"]
        known.append([name, f"{bits(name):g}", "yes" if name in WRITTEN else "no", *step])
    assert rows[2 : 2 + len(READ)] == known


@pytest.mark.parametrize("kind", READ)
def test_every_type_is_read_as_the_package_widens_it(kind: str, tmp_path: Path) -> None:
    """In a file, as the package's own reader finds it; the values of each row lie where they were put."""
    raw = random_blocks(kind, 5, 512)
    file = tmp_path / "one.gguf"
    write_file(file, {"general.architecture": "mamba"}, {"x.weight": StoredTensor(kind, (5, 512), raw)})
    found = read_file(file)
    assert found.tensors["x.weight"].type == kind
    known = raw.astype(np.float32)
    if kind not in ("F32", "F64"):
        known = dequantize(gguf.GGUFReader(file).tensors[0].data, gguf.GGMLQuantizationType[kind])
    assert np.isfinite(known).all()
    assert len(np.unique(known)) > 2
    tensor = found.read("x.weight")
    assert tensor.dtype == torch.float32
    assert np.array_equal(tensor.numpy(), known.reshape(5, 512))


def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = StoredTensor("Q4_K", (7, 512), random_blocks("Q4_K", 7, 512))
    whole = widened(stored)
    monkeypatch.setattr("statewise.checkpoints.convert.gguf_file.PIECE", 1024)
    assert torch.equal(widened(stored), whole)


@pytest.mark.parametrize("kind", [*QUANTISERS, *(kind for kind in WRITTEN if kind in ERRORS)])
def test_quantised_numbers_are_near(kind: str) -> None:
    """By the package's quantisers, and by those of the tests for the types that it has none for."""
    x = np.random.default_rng(0).normal(size=(64, 512)).astype(np.float32)
    made: Callable[[np.ndarray], np.ndarray] | None = QUANTISERS.get(kind)
    raw = quantize(x, gguf.GGMLQuantizationType[kind]) if made is None else made(x)
    found = widened(StoredTensor(kind, x.shape, raw)).numpy()
    assert np.abs(found - x).mean() / np.abs(x).mean() < ERRORS[kind]


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
@pytest.mark.parametrize("stored", [kind for kind in WRITTEN if kind in QUANTISATIONS or kind == "BF16"])
def test_a_model_is_written_in_each_type(kind: str, stored: str, tmp_path: Path) -> None:
    model = build(kind, d_model=256)
    path = save_as(model, tmp_path / "model.gguf", "gguf", type=stored)
    file = read_file(path)
    assert file.metadata["general.file_type"] == WRITTEN[stored]
    assert ("general.quantization_version" in file.metadata) is (stored in QUANTISATIONS)
    for name, found in file.tensors.items():
        if name.endswith(MATRICES):
            assert found.type == stored
        elif len(found.shape) < 2 or name.endswith(("conv1d.weight", "ssm_a", "ssm_d", "norm.weight")):
            assert found.type == "F32"
        else:
            block = QUANTISATIONS[stored].block if stored in QUANTISATIONS else 1
            assert found.type == ("F16" if found.shape[1] % block else stored), name
    config, tensors = read_gguf(path)
    assert config == model.config
    for name, tensor in stored_tensors(model).items():
        if name.endswith(("in_proj.weight", "embedding.weight")):
            raw = quantize(tensor.detach().numpy(), gguf.GGMLQuantizationType[stored])
            assert np.array_equal(tensors[name], dequantize(raw, gguf.GGMLQuantizationType[stored])), name
    sw.load(path)


@pytest.mark.parametrize("stored", ["Q8_0", "Q4_0", "Q5_1"])
def test_logits_of_a_quantised_file_are_near(stored: str, tmp_path: Path) -> None:
    model = build("mamba", d_model=64)
    tokens = torch.arange(30)[None] * 7 % 260
    with torch.inference_mode():
        known = model(tokens)[0]
        found = read(write(model, tmp_path / "model.gguf", type=stored))(tokens)[0]
    assert (found - known).norm() / known.norm() < {"Q8_0": 0.03, "Q4_0": 0.4, "Q5_1": 0.2}[stored]


def test_what_is_no_type_to_write(tmp_path: Path) -> None:
    model = build("mamba")
    for options, message in (
        ({"type": "Q4_K"}, r"type='Q4_K' cannot be written in a GGUF file; use one of F32, F16, BF16, Q4_0"),
        ({"type": "Q8_0", "dtype": torch.float32}, r"type='Q8_0' and dtype=torch.float32 cannot be written"),
    ):
        with pytest.raises(InputError, match=message):
            write(model, tmp_path / "model.gguf", **options)
    with pytest.raises(InputError, match="type='Q8_0' is for gguf; transformers has a dtype"):
        save_as(model, tmp_path / "folder", "transformers", type="Q8_0")
    with torch.no_grad():
        model.embedding.weight[0, 0] = 1e9
    with pytest.raises(CheckpointError, match=r"token_embd\.weight in Q8_0 has .* not finite"):
        write(model, tmp_path / "model.gguf", type="Q8_0")
