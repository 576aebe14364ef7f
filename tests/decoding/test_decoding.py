"""The decoder: one C call a token equals the model with the same weights, in every precision and layer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from decoded_models import VOCABULARY, build, needs_library, tokens_of
from torch.utils._pytree import tree_map
from training_runs import with_train

import statewise as sw
from statewise import native
from statewise.cli.model_folder import open_model
from statewise.cli.run_task import open_scored
from statewise.decoding import PRECISIONS, Decoder, dequantised, why_not
from statewise.decoding.packing import pack, quantise
from statewise.errors import InputError
from statewise.generation import generate, read
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.training import train_run
from statewise.training.presets import PRESETS as TRAINING_PRESETS


@needs_library
@pytest.mark.parametrize("precision", PRECISIONS)
def test_matrices_wider_than_a_tile(precision: str) -> None:
    """Columns that fill no group and no tile, with one sequence and with several."""
    torch.manual_seed(0)
    layers = (MambaConfig(d_state=4), H3Config(d_state=4, d_shift=7))
    config = sw.LanguageModelConfig(vocab_size=19, d_model=301, layers=layers, embedding_std=0.3)
    model = config.build().eval()
    decoder, reference = Decoder(model, precision), dequantised(model, precision)
    for batch in (1, 5):
        tokens = tokens_of(batch, 2) % 19
        with torch.no_grad():
            wanted, _ = reference(tokens)
        state: Any = decoder.initial_state(batch)
        for t in range(2):
            logits, state = decoder(tokens[:, t], state)
            tolerance = (1e-5 if precision in ("float32", "bfloat16") else 3e-4) * float(wanted.abs().max())
            torch.testing.assert_close(logits, wanted[:, t], rtol=0, atol=tolerance)


@needs_library
def test_logits_can_be_left_out_and_rest_is_none() -> None:
    model = build("hybrid")
    decoder: Any = Decoder(model)
    tokens = tokens_of(2, 2)
    nothing, state = decoder(tokens[:, :1], decoder.initial_state(2), logits=False)
    assert nothing is None
    logits, _ = decoder(tokens[:, 1:], state)
    torch.testing.assert_close(logits, model(tokens)[0][:, 1:], rtol=1e-4, atol=1e-4)
    logits, none = decoder(tokens[:, 0])
    assert none is None
    torch.testing.assert_close(logits, model(tokens[:, :1])[0][:, 0], rtol=1e-4, atol=1e-4)
    empty, _ = decoder(torch.empty(0, 1, dtype=torch.int64), decoder.initial_state(0))
    with pytest.raises(InputError, match="a state needs batch as an integer of at least 0"):
        decoder.initial_state(-1)
    assert empty.shape == (0, 1, VOCABULARY)


@needs_library
@pytest.mark.parametrize("layers", ["mamba", "mamba2", "attention", "h3"])
def test_nan_spoils_its_own_row_until_a_document_begins(layers: str) -> None:
    model = build(layers)
    with torch.no_grad():
        model.embedding.weight[5] = torch.nan
        model.head.weight = torch.nn.Parameter(torch.randn(VOCABULARY, 22))
    decoder: Any = Decoder(model)
    state: Any = decoder.initial_state(3)
    logits, state = decoder(torch.tensor([5, 6, 7]), state)
    assert logits[0].isnan().all()
    assert logits[1:].isfinite().all()
    starts = torch.tensor([True, False, False])
    logits, state = decoder(torch.tensor([8, 5, 7]), state, starts=starts)
    assert logits[[0, 2]].isfinite().all()
    assert logits[1].isnan().all()


def test_int8_is_within_half_a_scale_and_zero_is_zero() -> None:
    torch.manual_seed(0)
    weight = torch.randn(7, 50)
    weight[3] = 0
    found = quantise(weight, "int8")
    error = (found.weight() - weight).abs()
    assert (error <= found.scales.float().abs() * 0.5001 + weight.abs() * 0.004).all()
    assert torch.equal(found.weight()[3], torch.zeros(50))
    assert (quantise(weight, "int8", 8).weight() - weight).square().sum() < error.square().sum()
    rough = (quantise(weight, "int4").weight() - weight).square().mean().sqrt() / weight.square().mean().sqrt()
    assert rough < 0.12


def test_packing_refuses_what_it_cannot_hold() -> None:
    weight = torch.ones(3, 4)
    weight[1, 1] = torch.inf
    with pytest.raises(InputError, match="NaN or infinity"):
        pack(weight, "int4")
    assert pack(weight, "float32").n_bytes == 16 * 4 * 4
    model = build("mamba")
    with pytest.raises(InputError, match="weights='int3' is unknown"):
        dequantised(model, "int3")
    with pytest.raises(InputError, match="group=12"):
        dequantised(model, "int8", group=12)
    with pytest.raises(InputError, match="bfloat16 has no scales"):
        dequantised(model, "bfloat16", group=32)


def test_models_without_a_step_are_refused_by_layer() -> None:
    def why(*layers: Any) -> str | None:
        return why_not(sw.LanguageModelConfig(vocab_size=5, d_model=16, layers=layers).build())

    mamba = MambaConfig()
    assert why(mamba) is None or not native.available()
    if native.available():
        assert "layers[1] is a S4D" in str(why(mamba, sw.S4DConfig()))
        assert "complex A" in str(why(MambaConfig(initialization="lin")))
        assert "float64" in str(why_not(build("mamba").double()))
    model = sw.LanguageModelConfig(vocab_size=5, d_model=16, layers=(mamba, sw.S4DConfig())).build()
    with pytest.raises(InputError, match=r"layers\[1\] is a S4D|C kernels are not available"):
        Decoder(model)
    with pytest.raises(InputError, match=r"weights='int8' needs .* layers\[1\] is a S4D"):
        generate(model, [1], max_new_tokens=3, weights="int8")
    assert len(list(generate(model, [1], max_new_tokens=20, stop_at_document=False))) == 20


@needs_library
def test_bad_calls_are_refused() -> None:
    decoder = Decoder(build("hybrid"))
    state = decoder.initial_state(2)
    ids = torch.tensor([1, 2])
    for wrong, message in (
        (torch.tensor([1, 61]), "id 61"),
        (torch.tensor([-1, 6]), "id -1"),
        (torch.tensor([1.0, 2.0]), "integers"),
        (torch.tensor([[1, 2], [3, 4]]), "one token of each row"),
        (torch.tensor([1, 2, 3]), "the tokens have batch 3"),
    ):
        with pytest.raises(InputError, match=message):
            decoder(wrong, state)
    with pytest.raises(InputError, match="lengths"):
        decoder(ids, state, lengths=torch.tensor([1, 2]))
    with pytest.raises(InputError, match="starts"):
        decoder(ids, state, starts=torch.tensor([1, 0]))
    with pytest.raises(InputError, match="LanguageModelState"):
        decoder(ids, state.layers)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="1 layers"):
        decoder(ids, Decoder(build("hybrid")).initial_state(2)._replace(layers=state.layers[:1]))
    wide = state._replace(layers=(state.layers[1], *state.layers[1:]))
    with pytest.raises(InputError, match="MambaState"):
        decoder(ids, wide)
    for damaged in (
        tree_map(lambda x: x.double() if x.is_floating_point() else x, state),
        tree_map(lambda x: x[..., :-1] if x.ndim > 1 else x, state),
    ):
        with pytest.raises(InputError, match=r"decoding needs state|C needs torch.float32"):
            decoder(ids, damaged)
    attention = state.layers[2]
    beyond = state._replace(layers=(*state.layers[:2], attention._replace(end=attention.end + 9), state.layers[3]))
    with pytest.raises(InputError, match="damaged"):
        decoder(ids, beyond)


@needs_library
@pytest.mark.parametrize("options", [{}, {"max_positions": 40}])
def test_learned_positions_end(options: dict[str, Any]) -> None:
    decoder = Decoder(build("mamba" if options else "attention", **options))
    running = decoder.run(decoder.initial_state(1))
    for _ in range(40):
        running.step(torch.tensor([1]))
    with pytest.raises(InputError, match="max_positions=40"):
        running.step(torch.tensor([1]))
    running.step(torch.tensor([1]), starts=torch.tensor([True]))


@needs_library
@pytest.mark.parametrize("layers", ["mamba", "mamba2", "hybrid"])
def test_generate_says_the_same_with_and_without(layers: str) -> None:
    model = build(layers)
    options: dict[str, Any] = {"max_new_tokens": 30, "stop_at_document": False, "document_token": 3, "seed": 1}
    prompt: Any = [[1, 2, 3], [4], [5, 6, 7, 8]]
    for temperature in (0.0, 1.0):
        with sw.kernels.use("torch"):
            wanted = [t.ids.tolist() for t in generate(model, prompt, temperature=temperature, **options)]
        found = [t.ids.tolist() for t in generate(model, prompt, temperature=temperature, **options)]
        assert found == wanted
    ended = {**options, "stop_at_document": True}
    with sw.kernels.use("torch"):
        wanted = [t.ids.tolist() for t in generate(model, prompt, **ended)]
    assert [t.ids.tolist() for t in generate(model, prompt, **ended)] == wanted


@needs_library
def test_generate_with_weights_by_name_or_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("hybrid")
    decoder = Decoder(model, "int4")

    def greedy(weights: Any) -> list[float]:
        stream = generate(model, [1, 2], max_new_tokens=12, temperature=0, weights=weights)
        return [float(token.log_probabilities) for token in stream]

    wanted = greedy("int4")
    assert greedy(decoder) == wanted
    assert greedy("int8") != wanted
    token = next(iter(generate(model, [1, 2], max_new_tokens=12, temperature=0, weights=decoder)))
    after = read(model, token.ids[:, None], state=token.reading)
    assert len(list(generate(model, state=after, max_new_tokens=3, weights=decoder))) == 3
    monkeypatch.setattr(native, "available", lambda: False)
    assert greedy("int4") == pytest.approx(wanted, abs=1e-4)
    with pytest.raises(InputError, match="a different configuration"):
        generate(build("mamba"), [1], max_new_tokens=3, weights=decoder)


@pytest.mark.parametrize(
    ("budget", "source", "items", "enough"),
    [
        pytest.param({"steps": 20, "minutes": None}, Path(asyncio.__file__).parent, 5_000, 2.0, id="20 steps"),
        pytest.param({"minutes": 2.5}, None, None, 2.3, id="150 s", marks=pytest.mark.slow),
    ],
)
def test_bits_per_byte_of_the_demo(
    budget: dict[str, Any],
    source: Path | None,
    items: int | None,
    enough: float,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The preset `demo` trained on its own data, or on a part of them, read on its test split in every precision."""
    run = TRAINING_PRESETS["demo"]()
    if source is not None:
        run = replace(run, data=replace(run.data, source=str(source)))
    settings = {**budget, "evaluate_items": 1000, "threads": torch.get_num_threads()}
    train_run(with_train(run, **settings), tmp_path / "demo")
    opened = open_model(tmp_path / "demo", device="cpu")
    task = open_scored(opened).task

    def bits(precision: str) -> float:
        record, _ = opened.with_weights(precision).evaluate(
            task, "test", max_items=items, n_streams=8, compressors=False
        )
        return float(record["bits_per_byte"])

    plain = bits("float32")
    assert plain < enough  # it has learned (before, it has 2.7 of `asyncio`), so that the bars say something
    more = {precision: bits(precision) - plain for precision in PRECISIONS[1:]}
    with capsys.disabled():
        print(f"\nbits per byte {plain:.4f}; more in", ", ".join(f"{name}: {x:+.5f}" for name, x in more.items()))
    assert more["int8"] < 0.01
    assert more["int4"] < 0.05
