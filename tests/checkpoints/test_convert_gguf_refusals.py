"""What GGUF cannot hold or Statewise does not read: one clear error each, also for files that are damaged."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_examples import KINDS, build, write
from torch import Tensor

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.gguf import _advice, gguf_tokenizer, read_gguf, write_gguf
from statewise.checkpoints.convert.gguf_file import read_file, write_file
from statewise.checkpoints.tensor_files import stored_tensors
from statewise.errors import CheckpointError, InputError
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.mlp import MLPConfig


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(build("mamba", vocab_size=20, d_model=8), tmp_path_factory.mktemp("gguf") / "model.gguf")


def rewritten(path: Path, to: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> Path:
    file = read_file(path)
    tensors = {name: file.read(name) for name in file.tensors}
    change(file.metadata, tensors)
    write_file(to, file.metadata, tensors)
    return to


CHANGES: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Tensor]], object]]] = {
    "missing tensor": (r"blk\.1\.ssm_d is missing", lambda _, t: t.pop("blk.1.ssm_d")),
    "renamed tensor": (
        r"blk\.1\.ssm_out\.weight is missing; there is blk\.1\.ssm_outs\.weight",
        lambda _, t: t.update({"blk.1.ssm_outs.weight": t.pop("blk.1.ssm_out.weight")}),
    ),
    "extra tensor": (r"blk\.2\.ssm_d does not belong to", lambda _, t: t.update({"blk.2.ssm_d": torch.ones(16)})),
    "wrong shape": (
        r"ssm_x\.weight|x_proj\.weight has shape",
        lambda _, t: t.update({"blk.0.ssm_x.weight": torch.ones(3, 16)}),
    ),
    "flat D": (r"blk\.0\.ssm_d has shape \(16, 1\)", lambda _, t: t.update({"blk.0.ssm_d": torch.ones(16, 1)})),
    "A above 0": (r"ssm_a has values of 0 or more", lambda _, t: t["blk.0.ssm_a"].zero_()),
    "no embedding": (r"token_embd\.weight is missing", lambda _, t: t.pop("token_embd.weight")),
    "flat embedding": (
        r"token_embd\.weight has shape \(160,\)",
        lambda _, t: t.update({"token_embd.weight": torch.ones(160)}),
    ),
    "missing key": (r"the key mamba\.ssm\.state_size is missing", lambda m, _: m.pop("mamba.ssm.state_size")),
    "unknown key": (r"mamba\.logit_scale=2\.0 is unknown", lambda m, _: m.update({"mamba.logit_scale": 2.0})),
    "many layers": (
        r"block_count=4000000000, but there are tensors for 2 layers: blk\.2\. is missing",
        lambda m, _: m.update({"mamba.block_count": 4_000_000_000}),
    ),
    "no layers": (r"mamba\.block_count=0; expected an integer", lambda m, _: m.update({"mamba.block_count": 0})),
    "eps": (
        r"epsilon=-1\.0; expected a number above 0",
        lambda m, _: m.update({"mamba.attention.layer_norm_rms_epsilon": -1.0}),
    ),
    "flag": (r"dt_b_c_rms=1; expected true or false", lambda m, _: m.update({"mamba.ssm.dt_b_c_rms": 1})),
    "width": (r"inner_size=17; expected a multiple", lambda m, _: m.update({"mamba.ssm.inner_size": 17})),
    "architecture": (
        r"architecture llama with tensors in F32; Statewise reads mamba, mamba2, rwkv7, gpt2, .*, kimi-linear$",
        lambda m, _: m.update({"general.architecture": "llama"}),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_does_not_fit_is_refused_by_name(name: str, path: Path, tmp_path: Path) -> None:
    message, change = CHANGES[name]
    changed = rewritten(path, tmp_path / "changed.gguf", change)
    with pytest.raises(CheckpointError, match=message) as caught:
        sw.load(changed)
    assert str(changed) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_heads_have_to_divide_the_width(tmp_path: Path) -> None:
    plain = write(build("mamba2"), tmp_path / "model.gguf")
    for heads, message in ((5, "time_step_rank=5; as the number of heads"), (4, "shape")):  # 4 divides, but not these
        changed = rewritten(
            plain, tmp_path / f"{heads}.gguf", lambda m, _, n=heads: m.update({"mamba2.ssm.time_step_rank": n})
        )
        with pytest.raises(CheckpointError, match=message):
            read_gguf(changed)


def test_a_quantisation_that_is_not_read_is_named_with_the_architecture(tmp_path: Path) -> None:
    """A tensor's type is the number before its place, behind its name and shape."""
    wide = write(build("mamba", d_model=256), tmp_path / "wide.gguf")  # a block of Q8_K is 256 wide
    data = bytearray(wide.read_bytes())
    at = data.index(b"blk.0.ssm_in.weight") + len("blk.0.ssm_in.weight") + 4 + 2 * 8
    for number, message in (
        (15, "architecture mamba with tensors in F32, Q8_K; Statewise reads .* F32, F16, .*: Q8_K must be made again"),
        (24, "architecture mamba with tensors in F32, I8; Statewise reads .* F32, F16, .*: I8 must be written as F32"),
        (99, r"newer than the gguf package: .*99.* is not a valid"),
    ):
        data[at : at + 4] = number.to_bytes(4, "little")
        (tmp_path / "quantised.gguf").write_bytes(data)
        with pytest.raises(CheckpointError, match=message):
            read_gguf(tmp_path / "quantised.gguf")


def test_every_file_that_is_cut_short_is_refused(path: Path, tmp_path: Path) -> None:
    from gguf import GGUFReader

    data = path.read_bytes()
    n_header = GGUFReader(path).data_offset
    for n in [*range(0, n_header, 29), n_header, len(data) // 2, len(data) - 100]:
        (tmp_path / "cut.gguf").write_bytes(data[:n])
        with pytest.raises(CheckpointError, match="is not a GGUF file, is damaged, or is newer"):
            read_gguf(tmp_path / "cut.gguf")


def test_a_header_of_any_bytes_is_read_or_refused_at_once(path: Path, tmp_path: Path) -> None:
    """Also where it claims 2**60 values: no other error, no endless loop."""
    from gguf import GGUFReader

    data = path.read_bytes()
    n_header = GGUFReader(path).data_offset
    generator = torch.Generator().manual_seed(0)
    began = time.perf_counter()
    for at in range(4, n_header, 4):
        changed = bytearray(data)
        changed[at] ^= int(torch.randint(1, 256, (), generator=generator))
        (tmp_path / "changed.gguf").write_bytes(changed)
        for reader in (gguf_tokenizer, read_gguf) if at % 32 == 0 else (gguf_tokenizer,):  # the first reads all of it
            with contextlib.suppress(CheckpointError):
                reader(tmp_path / "changed.gguf")
    assert time.perf_counter() - began < 60


def test_other_versions_and_names_that_are_there_twice(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    for version, message in ((b"\1\0\0\0", "version 1 "), (b"\0\0\0\3", "ends before")):
        (tmp_path / "version.gguf").write_bytes(data[:4] + version + data[8:])
        with pytest.raises(CheckpointError, match=message):
            read_gguf(tmp_path / "version.gguf")
    for old, new in ((b"blk.0.ssm_a", b"blk.1.ssm_a"), (b"mamba.ssm.inner_size", b"mamba.ssm.state_size")):
        (tmp_path / "twice.gguf").write_bytes(data.replace(old, new))
        with pytest.raises(CheckpointError, match=f"[Dd]uplicate.* {new.decode()}"):
            read_gguf(tmp_path / "twice.gguf")
    with pytest.raises(CheckpointError, match="cannot read"):
        read_gguf(tmp_path / "nothing.gguf")


BLOCK = BlockConfig(mixer=MambaConfig())
UNWRITTEN: dict[str, dict[str, Any]] = {
    "norm='layer'": {"norm": "layer"},
    "max_positions=9": {"max_positions": 9},
    r"layers\[1\].mlp": {"layers": (BLOCK, replace(BLOCK, mlp=MLPConfig()))},
    r"layers\[1\].norm='layer'": {"layers": (BLOCK, replace(BLOCK, norm="layer"))},
    r"layers\[0\].norm_eps=1e-06": {"layers": (replace(BLOCK, norm_eps=1e-6),)},
    "placement='post'": {"layers": (replace(BLOCK, placement="post"),)},
    r"layers\[1\].mixer='Mamba2Config'": {"layers": (BLOCK, Mamba2Config(d_head=8))},
    r"ssm.state_size=4; it needs 8": {"layers": (MambaConfig(d_state=8), MambaConfig(d_state=4))},
    "mixer.bias=True": {"layers": (MambaConfig(bias=True),)},
    "convolution_bias=False": {"layers": (Mamba2Config(d_head=8, convolution_bias=False),)},
    "expand=3": {"layers": (MambaConfig(expand=3),)},
    "method='zoh'": {"layers": (MambaConfig(method="zoh"),)},
    "initialization='lin'": {"layers": (MambaConfig(initialization="lin"),)},
    "norm_before_gate=True": {"layers": (Mamba2Config(d_head=8, norm_before_gate=True),)},
    "dt_limit=": {"layers": (Mamba2Config(d_head=8, dt_limit=(0.0, 1.0)),)},
    "head_pattern='multi_key'": {"layers": (Mamba2Config(d_head=8, head_pattern="multi_key"),)},
    "norm_groups=1": {"layers": (Mamba2Config(d_head=8, n_groups=2, norm_groups=1),)},
    "mixer.norm_eps=1e-06": {"layers": (Mamba2Config(d_head=8, norm_eps=1e-6),)},
    "no architecture with layers of S4D, as": {"layers": (sw.S4DConfig(),)},
}


@pytest.mark.parametrize("message", UNWRITTEN)
def test_a_model_that_gguf_has_no_form_for_is_refused_by_field(message: str, tmp_path: Path) -> None:
    model = replace(build("mamba", vocab_size=20, d_model=8).config, **UNWRITTEN[message]).build()
    with pytest.raises(CheckpointError, match=message):
        write(model, tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


def test_what_is_not_written(path: Path, tmp_path: Path) -> None:
    model = build("mamba", vocab_size=20, d_model=8)
    with pytest.raises(InputError, match=r"cannot be written in torch\.bfloat16"):
        write(model, tmp_path / "model.gguf", dtype=torch.bfloat16)
    with pytest.raises(FileExistsError):
        write(model, path)
    tensors = dict(stored_tensors(model))
    large = tensors | {"embedding.weight": torch.full_like(tensors["embedding.weight"], 1e5)}
    with pytest.raises(CheckpointError, match=r"token_embd\.weight has values beyond float16"):
        write_gguf(model.config, large, tmp_path / "model.gguf", dtype=torch.float16)
    del tensors["norm.weight"]
    with pytest.raises(CheckpointError, match=r"norm\.weight is missing"):
        write_gguf(model.config, tensors, tmp_path / "model.gguf")
    classifier = sw.SequenceClassifierConfig(n_classes=2, d_model=8, layers=(KINDS["mamba"],), d_input=1).build()
    with pytest.raises(CheckpointError, match="only a language model can be written"):
        write(classifier, tmp_path / "model.gguf")


@pytest.mark.parametrize("A_log", [95.0, -110.0])
def test_an_A_that_float32_does_not_hold(A_log: float, tmp_path: Path) -> None:
    model = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(sw.MambaConfig(d_state=4),)).build()
    with torch.no_grad():
        model.layers[0].mixer.dynamics.A_log[0, 0] = A_log  # type: ignore[union-attr, index, operator]
    with pytest.raises(CheckpointError, match="is 0 or infinite in float32"):
        save_as(model, tmp_path / "a.gguf", "gguf")


@pytest.mark.parametrize(("own", "others", "kept"), [(1e-6, 1e-5, True), (1e-5, 1e-5, True), (1e-3, 1e-5, False)])
def test_falcon_mambas_own_epsilon(own: float, others: float, kept: bool, tmp_path: Path) -> None:
    mixer = sw.MambaConfig(d_state=4, norm_dt_b_c=True, norm_eps=own)
    block = sw.BlockConfig(mixer=mixer, norm_eps=others)
    model = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(block,), norm_eps=others).build()
    if kept:
        save_as(model, tmp_path / "a.gguf", "gguf")
    else:
        with pytest.raises(CheckpointError, match=r"cannot hold layers\[0\].mixer.norm_eps=0.001; it needs 1e-05"):
            save_as(model, tmp_path / "a.gguf", "gguf")


def test_numbers_in_other_types_are_no_quantisation() -> None:
    assert _advice(["I32"]) == ": I32 must be written as F32"
    assert "from the unquantised model" in _advice(["Q8_K"])
