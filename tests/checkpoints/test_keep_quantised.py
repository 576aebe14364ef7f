"""A GGUF file's model with its matrices as they are in the file: the same numbers, in the memory of the file."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from decoded_models import needs_library
from gguf_examples import build, write
from gguf_quantisers import QUANTISERS

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.gguf_file import StoredTensor, read_file, write_file
from statewise.checkpoints.convert.gguf_types import QUANTISATIONS
from statewise.checkpoints.states import weights_digest
from statewise.decoding import Decoder
from statewise.errors import CheckpointError, InputError
from statewise.generation import generate, read
from statewise.models.language_model import LanguageModel
from statewise.models.quantised import QuantisedTensor, is_quantised

TOKENS = torch.arange(12)[None] * 7 % 260


def quantised_file(kind: str, path: Path, model: str = "mamba") -> Path:
    """A model with its wide matrices in a type, by the package or by the tests' own quantisers."""
    built = build(model, d_model=256)
    if kind not in QUANTISERS:
        return write(built, path, type=kind)
    plain = read_file(write(built, path.with_suffix(".plain.gguf")))
    tensors: dict[str, torch.Tensor | StoredTensor] = {}
    for name in plain.tensors:
        tensor = plain.read(name)
        wide = name.endswith(("ssm_in.weight", "ssm_out.weight", "token_embd.weight"))
        tensors[name] = tensor
        if wide:
            tensors[name] = StoredTensor(kind, tuple(tensor.shape), QUANTISERS[kind](tensor.numpy()))
    write_file(path, plain.metadata, tensors)
    return path


def both(path: Path) -> tuple[LanguageModel, LanguageModel]:
    """Widened, and as it is in the file."""
    wide, kept = sw.load(path), sw.load(path, keep_quantised=True)
    assert isinstance(wide, LanguageModel)
    assert isinstance(kept, LanguageModel)
    return wide, kept


@pytest.mark.parametrize("model", ["mamba", "mamba2"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_1", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"])
def test_the_model_is_the_same_in_the_memory_of_the_file(kind: str, model: str, tmp_path: Path) -> None:
    wide, kept = both(quantised_file(kind, tmp_path / "model.gguf", model))
    weight = kept.blocks[0].mixer.in_proj.weight
    assert isinstance(weight, QuantisedTensor)
    assert isinstance(weight, torch.nn.Parameter)
    assert weight.blocks.n_bytes == weight.numel() // QUANTISATIONS[kind].block * QUANTISATIONS[kind].n_bytes
    assert kept.head.weight is kept.embedding.weight
    assert is_quantised(kept)
    assert not is_quantised(wide)
    assert torch.equal(weight.widened(), wide.blocks[0].mixer.in_proj.weight)
    with torch.inference_mode():
        assert torch.equal(kept(TOKENS)[0], wide(TOKENS)[0])
        assert torch.equal(copy.deepcopy(kept)(TOKENS)[0], wide(TOKENS)[0])
        assert torch.equal(pickle.loads(pickle.dumps(kept))(TOKENS)[0], wide(TOKENS)[0])
    assert weights_digest(kept) == weights_digest(wide)


@needs_library
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "TQ2_0"])
def test_the_decoder_has_the_integers_of_the_file(kind: str, tmp_path: Path) -> None:
    """Its logits are those of the widened model to the rounding of x; its memory is that of the integers."""
    wide, kept = both(quantised_file(kind, tmp_path / "model.gguf"))
    decoder, exact = Decoder(kept), Decoder(wide)
    assert decoder.weights == "stored"
    state, other = decoder.initial_state(1), exact.initial_state(1)
    for token in TOKENS[0]:
        logits, state = decoder(token[None], state)
        known, other = exact(token[None], other)
        assert (logits - known).abs().max() < 5e-4 * known.abs().max()
    form = QUANTISATIONS[kind]
    width = 4 if form.packed == "int4" else 8
    packed = next(p for p in decoder._packed if p.n_columns == 256 and p.n_rows == 1024)
    assert packed.n_bytes * 8 == packed.n_rows * 256 * (width + 32 * (1 + form.offset) / form.group)
    assert decoder.n_bytes < exact.n_bytes / 2
    assert torch.equal(pickle.loads(pickle.dumps(decoder))(TOKENS[0, :1])[0], decoder(TOKENS[0, :1])[0])
    for weights in ("int8", "float32"):
        found, known = (Decoder(model, weights)(TOKENS[0, :1])[0] for model in (kept, wide))
        assert torch.equal(found, known)


def test_it_generates_what_the_widened_model_does(tmp_path: Path) -> None:
    wide, kept = both(quantised_file("Q4_K", tmp_path / "model.gguf"))
    for n in (3, 24):  # also with few, for which a plain model is not packed
        texts = [[int(t.ids) for t in generate(m, [1, 2, 3], max_new_tokens=n, temperature=0)] for m in (wide, kept)]
        assert texts[0] == texts[1]
    reading = read(kept, [1, 2, 3])
    assert torch.equal(reading.logits, read(wide, [1, 2, 3]).logits)
    assert len(list(generate(kept, state=reading, max_new_tokens=3, seed=0))) == 3
    with sw.kernels.use("torch"):
        found = [int(t.ids) for t in generate(kept, [1, 2, 3], max_new_tokens=3, temperature=0)]
    assert found == texts[0][:3]


def test_what_cannot_be_done_with_it(tmp_path: Path) -> None:
    path = quantised_file("Q8_0", tmp_path / "model.gguf")
    kept = sw.load(path, keep_quantised=True)
    for call in (lambda: sw.save(kept, tmp_path / "a"), lambda: save_as(kept, tmp_path / "b.gguf", "gguf")):
        with pytest.raises(InputError, match=r"embedding\.weight is in Q8_0; load"):
            call()
    with pytest.raises(InputError, match="a matrix in Q8_0 cannot be changed; load the model without keep_quantised"):
        kept.embedding.weight.data.zero_()  # type: ignore[union-attr, operator]
    for options in ({"dtype": torch.bfloat16}, {"device": "meta"}):
        with pytest.raises(InputError, match="keep_quantised=True is for the CPU, in the types of the file; leave"):
            sw.load(path, keep_quantised=True, **options)  # type: ignore[arg-type]
    assert not any(parameter.requires_grad for parameter in kept.parameters() if isinstance(parameter, QuantisedTensor))
    assert repr(kept.embedding.weight) == "QuantisedTensor((260, 256), Q8_0)"  # type: ignore[union-attr]
    sw.save(build("mamba"), tmp_path / "ours")
    assert not is_quantised(sw.load(tmp_path / "ours", keep_quantised=True))  # nothing is quantised there


def test_values_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = quantised_file("Q8_0", tmp_path / "model.gguf")
    file = read_file(path)
    stored = file.tensors["blk.0.ssm_in.weight"]
    data = stored.data.copy()
    data[3, :2] = (0, 0x7C)  # infinity, in float16
    tensors: dict[str, torch.Tensor | StoredTensor] = {name: file.read(name) for name in file.tensors}
    tensors["blk.0.ssm_in.weight"] = replace_data(stored, data)
    write_file(tmp_path / "infinite.gguf", file.metadata, tensors)
    with pytest.raises(CheckpointError, match=r"layers\.0\.mixer\.in_proj\.weight has .* not finite"):
        sw.load(tmp_path / "infinite.gguf", keep_quantised=True)


def replace_data(stored: StoredTensor, data: object) -> StoredTensor:
    return stored._replace(data=data)  # type: ignore[arg-type]


PEAK = """
import re, sys
import torch, statewise as sw
import statewise.checkpoints.convert.gguf_file
from statewise.decoding import Decoder
torch.zeros(1) @ torch.zeros(1)
sw.load(sys.argv[2], keep_quantised=True)  # what is imported on the way
def most():  # resource's figure would begin with that of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
before = most()
model = sw.load(sys.argv[1], keep_quantised=sys.argv[3] == "keep")
decoder = Decoder(model)
print((most() - before) * 1024)
"""


@needs_library
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc")
def test_loading_and_packing_take_less_than_the_float32_size(tmp_path: Path) -> None:
    """In processes of their own: the peak of loading and packing a Q4_0 file."""
    layer = sw.MambaConfig(d_state=8)
    config = sw.LanguageModelConfig(vocab_size=8192, d_model=512, layers=(layer,) * 6)
    model = config.build()
    n_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    write(model, tmp_path / "large.gguf", type="Q4_0")
    write(replace(config, vocab_size=32, layers=(layer,)).build(), tmp_path / "small.gguf", type="Q4_0")
    found = {}
    for how in ("keep", "widen"):
        arguments = [sys.executable, "-c", PEAK, str(tmp_path / "large.gguf"), str(tmp_path / "small.gguf"), how]
        found[how] = int(subprocess.run(arguments, capture_output=True, check=True, text=True).stdout)
    assert found["keep"] < 0.7 * n_bytes
    assert found["widen"] > 1.5 * n_bytes
