"""Quantised matrices of a GGUF file in the C step: the file's own whole numbers, its own values, in few bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoded_models import needs_library

pytest.importorskip("gguf")
from gguf_blocks import random_blocks

from statewise import native
from statewise.checkpoints.convert.gguf_file import StoredTensor, widened
from statewise.checkpoints.convert.gguf_integers import HALVES, GGUFBlocks
from statewise.checkpoints.convert.gguf_types import QUANTISATIONS
from statewise.decoding.packing import STORED, pack
from statewise.decoding.product import Product
from statewise.decoding.reading import WAYS
from statewise.models.quantised import Blocks, QuantisedTensor


def stored(kind: str, n_rows: int = 35, n_columns: int = 768) -> StoredTensor:
    return StoredTensor(kind, (n_rows, n_columns), random_blocks(kind, n_rows, n_columns))


@pytest.mark.parametrize("kind", QUANTISATIONS)
def test_whole_numbers_with_their_scales_are_the_values(kind: str) -> None:
    """Bit for bit as the package widens them: no type is quantised again."""
    raw, form = stored(kind), QUANTISATIONS[kind]
    integers = GGUFBlocks(raw).integers(slice(None))
    assert torch.equal(integers.weight(), widened(raw))
    assert torch.equal(QuantisedTensor(GGUFBlocks(raw)).widened(), widened(raw))
    assert integers.group == form.group
    assert (integers.offsets is not None) is form.offset
    most = {"int8": 127, "int4": 15 if form.offset else 7}[form.packed]
    least = 0 if form.offset else -1 - most
    assert least <= int(integers.q.min()) <= int(integers.q.max()) <= most


@pytest.mark.parametrize("kind", QUANTISATIONS)
def test_scales_that_are_no_numbers_are_found(kind: str) -> None:
    raw = stored(kind)
    assert GGUFBlocks(raw).are_finite()
    if kind == "NVFP4":  # all of its scales are numbers
        return
    form, data = QUANTISATIONS[kind], raw.data.copy()
    block = data.reshape(-1, form.n_bytes)[3]
    if kind == "MXFP4":
        block[0] = 255
    elif kind == "IQ1_M":  # a half in the upper four bits of four words
        block[49::2] = block[49::2] & 0x0F | np.array([0x00, 0x00, 0xC0, 0x70], np.uint8)
    else:
        at = HALVES[kind][-1]
        block[at : at + 2] = (0, 0x7C)
    assert not GGUFBlocks(raw._replace(data=data)).are_finite()


def test_pieces_of_the_rows_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = QuantisedTensor(GGUFBlocks(stored("Q4_K", 50)))
    whole, packed = tensor.widened(), pack(tensor, STORED)
    monkeypatch.setattr(Blocks, "at_once", 1)
    assert [rows.start for rows in tensor.blocks.pieces()] == [0, 16, 32, 48]
    assert torch.equal(tensor.widened(), whole)
    again = pack(tensor, STORED)
    assert again.scales is not None
    assert again.offsets is not None
    assert packed.scales is not None
    assert packed.offsets is not None
    assert torch.equal(again.data, packed.data)
    assert torch.equal(again.scales, packed.scales)
    assert torch.equal(again.offsets, packed.offsets)


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "TQ2_0", "MXFP4"])
def test_a_product_is_its_definition(kind: str, instructions: str) -> None:
    """To the rounding of x, as for int8 and int4; the same bits in every way and in any batch."""
    torch.manual_seed(0)
    raw = stored(kind)
    exact = widened(raw).double()
    packed = pack(QuantisedTensor(GGUFBlocks(raw)), STORED)
    assert packed.precision == QUANTISATIONS[kind].packed
    with native.forced(instructions):
        product = Product(packed)
        for batch in (1, 3, 8):
            x = torch.randn(batch, 768)
            found = product(x)
            step = torch.cat([t.double().abs().amax(1, keepdim=True).expand(t.shape) for t in x.split(256, 1)], 1)
            size = x.double().abs() @ exact.abs().T
            least = x.double().abs() @ torch.ones_like(exact).T * exact.abs().amax()  # offsets cancel
            bound = 1e-6 * (size + least) + (step * 0.5001 / 32767) @ exact.abs().T
            assert ((found - x.double() @ exact.T).abs() <= bound).all()
            others = [product(x, way, n_threads=1, vnni=False) for way in WAYS[:2]]
            assert all(torch.equal(found, other) for other in (*others, product(x, WAYS[-1], n_threads=3)))
            assert torch.equal(found[:1], product(x[:1]))


@needs_library
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "Q8_0"])
def test_a_transposed_product_is_its_definition(kind: str) -> None:
    torch.manual_seed(0)
    raw = stored(kind)
    product = Product(pack(QuantisedTensor(GGUFBlocks(raw)), STORED), transposed=True)
    weight, x = widened(raw).double(), torch.randn(2, 35)
    most = x.double().abs() @ weight.abs()
    for instructions in native.instruction_sets():
        with native.forced(instructions):
            assert bool(((product(x).double() - x.double() @ weight).abs() <= 2e-6 * most).all())
