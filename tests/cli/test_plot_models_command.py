"""`statewise plot poles RUN` and its neighbours: a picture of each kind, or one line that says why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import Run

import statewise as sw

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a layer of each kind, that reads bytes."""
    torch.manual_seed(0)
    layers = (
        sw.AttentionConfig(n_heads=2),
        sw.S4DConfig(d_state=4),
        sw.MambaConfig(d_state=4),
        sw.Mamba2Config(d_state=4, d_head=4),
        sw.H3Config(d_state=4),
    )
    folder = tmp_path_factory.mktemp("saved") / "model"
    model = sw.LanguageModelConfig(vocab_size=257, d_model=8, layers=layers).build()
    sw.save(model, folder, tokenizer=sw.ByteTokenizer())
    return folder


DRAWN = [
    ("impulse-response", ["--channels", "0,3", "--length", "32"]),
    ("frequency-response", ["--layer", "4"]),
    ("poles", ["--layer", "3"]),
    ("step-sizes", ["--text", "a text"]),
    ("half-lives", ["--text", "a text", "--layer", "3"]),
    ("hidden-attention", ["--text", "a text", "--layer", "3", "--heads", "0 1"]),
    ("semiseparable", []),
    ("semiseparable", ["--text", "a text", "--layer", "3", "--chunk-length", "2"]),
    ("lookup", ["--ids", "97,51,98,53,97"]),
    ("states", ["--text", "a text", "--layer", "2", "--head", "1"]),
]


@pytest.mark.parametrize(("what", "options"), DRAWN, ids=[" ".join([what, *options]) for what, options in DRAWN])
def test_a_picture_of_each_kind(what: str, options: list[str], saved: Path, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "x.svg"
    assert run("plot", what, saved, *options, "--out", out).out == f"{out}\n"
    assert "<svg" in out.read_text("utf-8")


def test_hippo_needs_no_run(run: Run, refused: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "hippo.png"
    assert run("plot", "hippo", "legt", "--n", "8", "--out", out).out == f"{out}\n"
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "there is no measure 'legz'" in refused("plot", "hippo", "legz", "--out", tmp_path / "b.png")


def test_where_a_picture_goes_and_what_it_never_replaces(saved: Path, run: Run, refused: Callable[..., str]) -> None:
    place = saved / "poles.png"
    assert run("plot", "poles", saved).out == f"{place}\n"
    before = place.read_bytes()
    assert "poles.png exists already; give a new name, or replace it with --overwrite" in refused(
        "plot", "poles", saved
    )
    assert place.read_bytes() == before
    assert run("plot", "poles", saved, "--layer", "4", "--overwrite").code == 0
    assert place.read_bytes() != before
    assert "a figure cannot be written to" in refused("plot", "poles", saved, "--out", "a.gif")
    place.unlink()


def test_what_a_model_does_not_have(saved: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    out = ["--out", tmp_path / "x.png"]
    said = refused("plot", "poles", saved, "--layer", "0", *out)
    assert "layer 0 is Attention, which has no poles; layers that have: 1, 2, 3, 4" in said
    said = refused("plot", "impulse-response", saved, "--layer", "2", *out)
    assert "layer 2 is Mamba, which has no impulse response; layers that have: 1, 4" in said
    said = refused("plot", "step-sizes", saved, "--layer", "1", "--text", "a", *out)
    assert "layer 1 is S4D, which has no selection; layers that have: 2, 3" in said
    assert "layer=9 is not one of this LanguageModel" in refused("plot", "poles", saved, "--layer", "9", *out)
    assert "what Mamba2 does depends on its input" in refused("plot", "semiseparable", saved, "--layer", "3", *out)
    assert "say what the model is to read: --text" in refused("plot", "states", saved, *out)
    assert "there is nothing to read" in refused("plot", "states", saved, "--text", "", *out)
    assert "--heads 'a' is not a list of numbers" in refused(
        "plot", "hidden-attention", saved, "--text", "a", "--heads", "a", *out
    )
    assert "heads has 99; this layer has heads 0 to" in refused(
        "plot", "hidden-attention", saved, "--text", "a", "--heads", "99", *out
    )
    assert "a picture of a matrix has 2 to 256 steps" in refused(
        "plot", "semiseparable", saved, "--text", "a", "--layer", "3", *out
    )
    assert not list(tmp_path.iterdir())


def test_a_model_that_reads_no_text(refused: Callable[..., str], tmp_path: Path) -> None:
    config = sw.SequenceClassifierConfig(
        d_input=2, d_model=8, layers=(sw.Mamba2Config(d_state=4, d_head=4),), n_classes=2
    )
    sw.save(config.build(), tmp_path / "model")
    said = refused("plot", "step-sizes", tmp_path / "model", "--text", "a", "--out", tmp_path / "a.png")
    assert "holds a SequenceClassifier, which reads no text; draw it in Python" in said
