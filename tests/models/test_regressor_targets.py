"""A regressor whose targets lie far from 0: the head's numbers are multiplied and moved, in every precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import statewise as sw
from statewise.errors import ConfigError
from statewise.models.regressor import TargetHead

CONFIG = sw.SequenceRegressorConfig(d_output=2, d_input=1, d_model=8, layers=(sw.S4DConfig(d_state=4),))
SCALED = replace(CONFIG, target_mean=(1e6, -3.0), target_deviation=(1e3, 0.5))


def pair() -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    plain = CONFIG.build().eval()
    scaled = SCALED.build().eval()
    scaled.load_state_dict(plain.state_dict())
    return plain, scaled


def test_outputs_are_the_plain_ones_multiplied_and_moved() -> None:
    plain, scaled = pair()
    x = torch.randn(3, 10, 1)
    expected = plain(x)[0] * torch.tensor([1e3, 0.5]) + torch.tensor([1e6, -3.0])
    torch.testing.assert_close(scaled(x)[0], expected)
    frozen = scaled.freeze()
    assert torch.equal(frozen(x)[0], scaled(x)[0])
    state = scaled.initial_state(3)
    for step in x.split(1, 1):
        so_far, state = scaled(step, state)
    torch.testing.assert_close(so_far, expected)


def test_the_numbers_keep_their_digits_and_are_in_no_file(tmp_path: Path) -> None:
    _, scaled = pair()
    sw.save(scaled, tmp_path / "model")
    again = sw.load(tmp_path / "model")
    x = torch.randn(1, 10, 1)
    assert torch.equal(again(x)[0], scaled(x)[0])
    assert set(scaled.state_dict()) == set(CONFIG.build().state_dict())
    narrow = scaled.bfloat16()
    assert isinstance(narrow.head, TargetHead)
    assert narrow.head.mean.tolist() == [1e6, -3.0]
    assert narrow(x.bfloat16())[0].dtype == torch.float32


@pytest.mark.parametrize("fields", [{"target_mean": (1.0,)}, {"target_mean": (1.0,), "target_deviation": (1.0,)}])
def test_one_for_every_output(fields: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ConfigError, match="give one of each for every output"):
        replace(CONFIG, **fields)
    with pytest.raises(ConfigError, match="target_deviation"):
        replace(CONFIG, target_mean=(0.0, 0.0), target_deviation=(1.0, 0.0))
