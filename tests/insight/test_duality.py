"""A head's map as a matrix: by steps, as mask times scores, and in blocks whose ranks are the state's order."""

from __future__ import annotations

import pytest
import torch

import statewise as sw
from statewise.errors import InputError
from statewise.insight import attention_form
from statewise.semiseparable import chunk_ranks

WIDTH, LENGTH = 8, 12


@pytest.mark.parametrize(
    ("config", "d_state"),
    [
        (sw.Mamba2Config(d_state=3, d_head=4, n_groups=2), 3),
        (sw.MambaConfig(d_state=3), 3),
        (sw.MambaConfig(d_state=4, initialization="lin"), 4),
        (sw.Mamba3Config(d_state=4, d_head=4), 4),
        (sw.S4DConfig(d_state=4), 4),
        (sw.S4Config(d_state=4), 4),
        (sw.LSSLConfig(d_state=3), 3),
        (sw.H3Config(d_state=4, d_shift=3), 4),
    ],
)
def test_blocks_below_the_diagonal_have_the_rank_of_the_state(config: sw.MixerConfig, d_state: int) -> None:
    torch.manual_seed(0)
    mixer = config.build(WIDTH).double()
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    varies = isinstance(config, (sw.MambaConfig, sw.Mamba2Config, sw.Mamba3Config))
    found = attention_form(mixer, x, head=1, row=1) if varies else attention_form(mixer, length=LENGTH, head=1)
    assert found.d_state == d_state
    ranks = chunk_ranks(found.matrix, 5, tolerance=1e-12)
    assert int(ranks.tril(-1).max()) <= d_state
    if varies:
        torch.testing.assert_close(found.matrix, sw.insight.hidden_attention(mixer, x, [1])[1, 0])
    else:
        *_, operator = sw.insight.systems_of(mixer).values()
        y, _ = operator(torch.eye(LENGTH, dtype=torch.float64)[None, :, None].expand(1, LENGTH, WIDTH, LENGTH))
        y = y.squeeze(3) if y.ndim == 5 else y
        torch.testing.assert_close(found.matrix, y[0, :, 1])


def test_mamba2_is_a_mask_times_scores() -> None:
    torch.manual_seed(0)
    mixer = sw.Mamba2Config(d_state=3, d_head=4).build(WIDTH).double()
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    found = attention_form(mixer, x, head=2)
    operator = sw.insight.selected(mixer, x).operator
    for t in range(LENGTH):
        for s in range(t + 1):
            kept = operator.log_a[0, s + 1 : t + 1, 2].sum().exp()
            score = operator.dt[0, s, 2] * (operator.C[0, t, 0] @ operator.B[0, s, 0])
            torch.testing.assert_close(found.mask[t, s], kept)
            torch.testing.assert_close(found.scores[t, s], score)
            torch.testing.assert_close(found.matrix[t, s], kept * score)


def test_ranks_of_chunks() -> None:
    torch.manual_seed(0)
    low = torch.randn(7, 2, dtype=torch.float64) @ torch.randn(2, 7, dtype=torch.float64)
    ranks = chunk_ranks(low.tril(), 3)
    assert ranks.tolist() == [[3, 0, 0], [2, 3, 0], [1, 1, 1]]
    with pytest.raises(InputError, match=r"chunk_length=0; expected a whole number"):
        chunk_ranks(low.tril(), 0)
    with pytest.raises(InputError, match=r"chunk_ranks takes one matrix"):
        chunk_ranks(low.tril()[None], 3)


def test_what_is_refused() -> None:
    mamba2 = sw.Mamba2Config(d_state=3, d_head=4).build(WIDTH)
    with pytest.raises(InputError, match=r"what Mamba2 does depends on its input; give x"):
        attention_form(mamba2)
    with pytest.raises(InputError, match=r"head=9 is not there; this layer has heads 0 to 3"):
        attention_form(mamba2, torch.randn(1, 4, WIDTH), head=9)
    with pytest.raises(InputError, match=r"S4D needs a length for its matrix; give length=64"):
        attention_form(sw.S4DConfig(d_state=4).build(WIDTH))
    with pytest.raises(InputError, match=r"DiagonalMIMO mixes its channels"):
        attention_form(sw.S5Config(d_state=4).build(WIDTH), length=4)
    with pytest.raises(InputError, match=r"Attention has no poles"):
        attention_form(sw.AttentionConfig(n_heads=2).build(WIDTH), length=4)
