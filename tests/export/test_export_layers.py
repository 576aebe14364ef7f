"""Every layer and every kind of model: what leaves of it is as in PyTorch, and what does not is refused in a line."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported_models import VOCAB_SIZE, build
from families import MIXERS
from in_onnxruntime import Loaded, difference
from places import ROOT

import statewise as sw
from statewise.errors import InputError
from statewise.estimation.structural import Irregular, Level
from statewise.export import PARTS, export_file, export_onnx, refusal
from statewise.export.step import require_program
from statewise.mixers.attention import Attention
from statewise.mixers.base import MixerConfig
from statewise.models.pair_classifier import PairClassifierConfig
from statewise.models.raw_input import InputConfig
from statewise.models.registry import CONFIG_TYPES
from statewise.models.structural import StructuralForecasterConfig

TOLERANCE = 4e-6  # of the largest output
BIDIRECTIONAL = {
    "S4 in both directions": sw.S4Config(d_state=4, initialization="legt", rank=2, bidirectional=True),
    "S4D in both directions": sw.S4DConfig(d_state=4, n_heads=2, bidirectional=True),
    "S5 in both directions": sw.S5Config(d_state=8, bidirectional=True),
    "LSSL in both directions": sw.LSSLConfig(d_state=4, bidirectional=True),
    "Mamba in both directions": sw.MambaConfig(
        d_state=4, bidirectional=True, tied_directions=False, combine="concatenate"
    ),
    "Mamba-2 in both directions": sw.Mamba2Config(d_state=4, d_head=4, bidirectional=True, tied_directions=False),
    "H3 in both directions": sw.H3Config(d_state=4, d_head=2, bidirectional=True),
    "GSS in both directions": sw.GSSConfig(d_state=4, bidirectional=True),
    "attention in both directions": sw.AttentionConfig(n_heads=2, bidirectional=True),
    "attention in both directions, window": sw.AttentionConfig(n_heads=2, window=5, bidirectional=True),
    "linear attention in both directions": sw.LinearAttentionConfig(n_heads=2, bidirectional=True),
    "structured masked attention in both directions": sw.StructuredMaskedAttentionConfig(n_heads=2, bidirectional=True),
}
READERS = {name: config for name, config in MIXERS.items() if config.build(8).reads_memory}
EVERY = {
    **{name: config for name, config in MIXERS.items() if name not in READERS},
    **BIDIRECTIONAL,
    "Mamba complex, exact hold, one tap": sw.MambaConfig(d_state=4, initialization="lin", method="zoh", n_taps=1),
    "S4D real": sw.S4DConfig(d_state=4, initialization="real", gated_output=False),
    "linear attention, Taylor": sw.LinearAttentionConfig(n_heads=2, feature_map="taylor", d_feature=2),
    "attention, window, learned, convolved": sw.AttentionConfig(
        n_heads=2, window=5, positions="learned", max_positions=200, n_taps=3
    ),
}


def classifier(layer: Any, config: Any = sw.SequenceClassifierConfig, **fields: Any) -> Any:
    torch.manual_seed(0)
    outputs = {"d_output": 3} if config is sw.SequenceRegressorConfig else {"n_classes": 3}
    fields = {**outputs, "d_model": 8, "layers": (layer,), **fields}
    return config(**({"d_input": 2, **fields} if "vocab_size" not in fields else fields)).build().eval()


# ---- the table of docs/export.md, and what is refused


def page() -> dict[str, dict[str, str]]:
    """The rows of the page's tables whose first cell is code, by it: each cell by its heading."""
    found, heads = {}, []
    for line in (ROOT / "docs/export.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            heads = []
        elif not heads:
            heads = cells
        elif cells[0].startswith("`"):
            for name in cells[0].split(","):
                found[name.strip().strip("`")] = dict(zip(heads[1:], cells[1:]))
    return found


def test_the_page_has_every_layer_and_says_what_leaves() -> None:
    rows = page()
    layers = {name for name, cls in CONFIG_TYPES.items() if issubclass(cls, MixerConfig)}
    assert {type(config).__name__ for config in (*EVERY.values(), *READERS.values())} == layers
    for config in READERS.values():
        for part in ("whole", "stream", "step"):
            assert refusal(classifier(config), part) == (
                "layers[0] reads a memory, for which a file has no input; export the model without it"
            )
        assert next(iter(rows[type(config).__name__].values())).startswith("no: ")
    assert layers <= set(rows)
    for config in EVERY.values():
        row = rows[type(config).__name__]
        both = getattr(config, "bidirectional", False)
        model = classifier(config)
        assert refusal(model, "whole") is None
        assert row["whole rows"] == "yes"
        for part in ("stream", "step"):
            assert (refusal(model, part) is None) != both
        assert row["stream, prefill, step"].startswith("yes")
        assert ("in one direction" in row["stream, prefill, step"]) == hasattr(config, "bidirectional")
        mixer = config.build(8)
        attends = any(isinstance(part, Attention) for part in mixer.parts())
        without_window = "yes" if mixer.bounded_state else "no"
        assert row["step as `.pt2`"] == ("with a window" if attends else without_window)
        if not mixer.bounded_state:
            with pytest.raises(InputError, match=r"layers\[0\] is attention, .* write FILE\.onnx, or use a window$"):
                require_program(model)
        else:
            require_program(model)


def test_the_page_says_which_parts_each_model_has() -> None:
    layer = sw.LinearAttentionConfig(n_heads=2)
    models = {
        "LanguageModel": build((layer,)),
        "SequenceClassifier": classifier(layer),
        "SequenceRegressor": classifier(layer, sw.SequenceRegressorConfig),
        "PairClassifier": classifier(layer, PairClassifierConfig),
        "Forecaster": sw.ForecasterConfig(horizon=2, d_model=8, layers=(layer,)).build(),
        "StructuralForecaster": StructuralForecasterConfig(horizon=2, components=(Level(), Irregular())).build(),
    }
    rows = page()
    for name, model in models.items():
        assert type(model).__name__ == name
        for part in PARTS:
            assert (refusal(model, part) is None) == (part in rows[name]["parts"]), (name, part)


def test_refusals(tmp_path: Path) -> None:
    layer = sw.LinearAttentionConfig(n_heads=2)
    path = tmp_path / "m.onnx"
    whole_rows = classifier(layer, input=InputConfig(scaling="series"))
    for model, options, message in (
        (classifier(layer), {"part": "wohle"}, "part='wohle' is unknown; use one of step, prefill, stream, whole"),
        (classifier(layer), {"batch": 2}, 'batch=2 with part="whole", which reads any number of rows; leave batch out'),
        (classifier(layer), {"part": "prefill"}, 'has no prompt; use part="stream"'),
        (build((layer,)), {"part": "whole"}, 'use part="step" or "prefill"'),
        (whole_rows, {"part": "stream"}, "it scales each row over all steps of the row; use"),
        (classifier(sw.S4DConfig(d_state=4, bidirectional=True)), {"part": "step"}, r"layers\[0\] reads in both"),
        (classifier(layer, PairClassifierConfig), {"part": "stream"}, "compares whole rows"),
        (classifier(layer).double(), {}, "ONNX files are written from float32"),
    ):
        with pytest.raises(InputError, match=message) as told:
            export_onnx(model, path, **options)
        assert "\n" not in str(told.value)
    with pytest.raises(InputError, match="pt2 holds a step"):
        export_file(classifier(layer), tmp_path / "m.pt2", part="whole")
    assert not list(tmp_path.iterdir())


def test_a_step_of_a_classifier_as_a_program() -> None:
    """Each step gives the answer to all that was read."""
    model = classifier(sw.GSSConfig(d_state=4), pooling="attention")
    program = sw.export.export_step(model, batch=2).module()
    x, leaves = torch.randn(2, 9, 2), torch.utils._pytree.tree_leaves(model.initial_state(2))
    for now in x.unbind(1):
        logits, probabilities, *leaves = program(now, *leaves)
    with torch.no_grad():
        torch.testing.assert_close(logits, model(x)[0])
    torch.testing.assert_close(probabilities, logits.softmax(-1))


# ---- each in onnxruntime

needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("onnx", "onnxscript", "onnxruntime"))),
    reason='needs pip install "statewise[onnx]"',
)


def check_whole(model: Any, path: Path, *, offset: float = 0.0, lengths: tuple[tuple[int, ...], ...] = ()) -> None:
    assert export_onnx(model, path).largest_difference < TOLERANCE
    loaded, rng = Loaded(path), np.random.default_rng(0)
    for given in lengths or ((1,), (64, 3, 33), (40, 40), (100,)):
        n = np.array(given)
        if model.config.d_input is None:
            x = rng.integers(0, model.config.vocab_size, (len(n), n.max()))
        else:
            x = rng.normal(size=(len(n), n.max(), 2)) + offset
        dtype = loaded.session.get_inputs()[0].type
        x = x.astype(np.float32) if dtype == "tensor(float)" else x
        with torch.no_grad():
            want = model(torch.from_numpy(x), lengths=torch.from_numpy(n))[0].numpy()
        masks = {"lengths": n} if len(loaded.session.get_inputs()) > 1 else {}
        (got, *_) = loaded(**{loaded.session.get_inputs()[0].name: x, **masks}).values()
        if model.config.pooling is None:
            got, want = (m[np.arange(n.max()) < n[:, None]] for m in (got, want))
        assert difference(got, want) < TOLERANCE, given


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_whole_rows(name: str, tmp_path: Path) -> None:
    lengths = ((1,), (64, 3, 33), (20, 20)) if "learned" in name else ()  # of 64 positions
    check_whole(classifier(EVERY[name]), tmp_path / "m.onnx", lengths=lengths)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EVERY if name not in BIDIRECTIONAL])
def test_prefill_and_step(name: str, tmp_path: Path) -> None:
    from test_export_prefill import Written

    torch.manual_seed(0)
    model = sw.LanguageModelConfig(vocab_size=VOCAB_SIZE, d_model=8, layers=(EVERY[name],)).build().eval()
    written = Written(model, tmp_path, 3)
    for pieces in (((7, 3, 5), (1, 1, 1), (40, 12, 0)), ((1, 1, 1), (33, 32, 1)), ((50, 5, 50),)):
        if name == "attention, learned positions":  # of 64
            pieces = tuple(tuple(min(n, 9) for n in piece) for piece in pieces)
        assert written.check(pieces) < TOLERANCE


KINDS: dict[str, dict[str, Any]] = {
    "tokens": {"vocab_size": 30},
    "an output for every step": {"pooling": None},
    "the last step": {"pooling": "last"},
    "attention over the steps": {"pooling": "attention"},
    "a regressor": {"config": sw.SequenceRegressorConfig, "norm": "batch"},
    "rows cut": {"input": InputConfig(max_length=37), "lengths": ((20, 37), (60, 38, 3))},
    "rows scaled by themselves": {"input": InputConfig(scaling="series"), "offset": 1000.0},
    "scaled": {"input": InputConfig(scaling="dataset", scale=(0.5, 2.0), shift=(-500, -2000.0)), "offset": 1000.0},
    "permuted": {"input": InputConfig(order=tuple(range(39, -1, -1))), "lengths": ((40,), (40, 40, 40))},
    "pairs": {"config": PairClassifierConfig, "lengths": ((9, 4), (33, 1, 2, 70))},
    "frames": {"frame_length": 4, "lengths": ((4,), (63, 5, 30))},
}


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_models(kind: str, tmp_path: Path) -> None:
    fields = dict(KINDS[kind])
    checked = {name: fields.pop(name) for name in ("lengths", "offset") if name in fields}
    model = classifier(sw.S4DConfig(d_state=4), **fields)
    check_whole(model, tmp_path / "m.onnx", **checked)
    if kind == "permuted":
        with pytest.raises(Exception, match="Expected: 40"):
            Loaded(tmp_path / "m.onnx")(x=np.zeros((1, 39, 2), np.float32))
    for part in ("stream", "step"):
        if refusal(model, part) is None:
            assert export_onnx(model, tmp_path / f"{part}.onnx", part=part).largest_difference < TOLERANCE


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("covariates", [False, True])
def test_forecasts(covariates: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"quantiles": (0.1, 0.5, 0.9)}
    if covariates:
        options = {"d_covariates": 2, "d_past_covariates": 1, "scaling_steps": 20, "d_target": 2}
    config = sw.ForecasterConfig(horizon=5, d_model=8, layers=(sw.KalmanConfig(d_state=3, d_head=4),), **options)
    model = config.build().eval()
    torch.nn.init.normal_(model.head.weight)
    assert export_onnx(model, tmp_path / "m.onnx").largest_difference < TOLERANCE
    rng, loaded = np.random.default_rng(0), Loaded(tmp_path / "m.onnx")
    for lengths in ([1], [40, 3, 33]):
        n = np.array(lengths)
        history = rng.normal(size=(len(n), n.max(), config.d_target)).cumsum(1)
        history[:, 1:][rng.random(history[:, 1:].shape) < 0.2] = np.nan
        given = {"history": history}
        if covariates:
            given |= {"covariates": rng.normal(size=(*history.shape[:2], 3))}
            given |= {"future_covariates": rng.normal(size=(len(n), 5, 2))}
        given = {name: m.astype(np.float64 if name == "history" else np.float32) for name, m in given.items()}
        with torch.no_grad():
            tensors = {name: torch.from_numpy(m) for name, m in given.items()}
            want = model(**tensors, lengths=torch.from_numpy(n))[0]
        assert difference(loaded(**given, lengths=n)["forecasts"], want) < TOLERANCE
        higher = loaded(**{**given, "history": given["history"] + 1e8}, lengths=n)["forecasts"]
        assert difference(higher - 1e8, want) < TOLERANCE


@needs_onnx
@pytest.mark.slow
def test_missing_numbers_of_a_filter(tmp_path: Path) -> None:
    """NaN is a step without an observation to a model of filters; to others it is what a runtime makes of it."""
    model = classifier(sw.KalmanConfig(d_state=3, d_head=4))
    export_onnx(model, tmp_path / "m.onnx")
    x = torch.randn(2, 30, 2)
    x[0, 4:9] = torch.nan
    with torch.no_grad():
        want = model(x)[0]
    assert difference(Loaded(tmp_path / "m.onnx")(x=x.numpy(), lengths=np.full(2, 30))["logits"], want) < TOLERANCE
