"""Steps on tensors that stay where they are: as the model's, for any hybrid, and nothing waits for a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import MIXERS
from no_host_reads import NoHostReads
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from written_models import ids_of

import statewise as sw
from statewise.decoding import dequantised, static
from statewise.decoding.static import StaticRun, why_not_recorded
from statewise.decoding.static_history import histories
from statewise.errors import InputError
from statewise.generation import generate, stepping
from statewise.models.presets import PRESETS
from statewise.models.quantised import is_quantised

VOCABULARY = 11
HYBRIDS = {
    **{name: (config, config) for name, config in MIXERS.items()},
    "all in one": (MIXERS["Mamba"], MIXERS["attention"], MIXERS["S4D"], MIXERS["attention, window"], MIXERS["Mamba-2"]),
}
RECORDED = sorted(set(HYBRIDS) - {"Kalman", "Kalman innovations"})


def build(name: str, **options: Any) -> sw.LanguageModel:
    torch.manual_seed(0)
    config = sw.LanguageModelConfig(
        vocab_size=VOCABULARY, d_model=8, layers=HYBRIDS[name], embedding_std=1.0, **options
    )
    return config.build().eval()


def warm(model: sw.LanguageModel, batch: int = 3) -> sw.LanguageModelState:
    """The state of rows that have read different numbers of tokens."""
    tokens, lengths = torch.randint(VOCABULARY, (batch, 9)), torch.tensor([9, 4, 0])[:batch]
    state = model(tokens, model.initial_state(batch), lengths=lengths)[1]
    assert state is not None
    return state


def fake_recorder(call: Callable[[], None], warm_up: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """As CUDA's: warm-ups, and then a recording, in which nothing may wait; but each replay computes again."""
    for _ in range(2):
        warm_up()

    def replay() -> None:
        with NoHostReads():
            call()

    return replay


@pytest.mark.parametrize("name", RECORDED)
@torch.inference_mode()
def test_every_mixer_steps_as_the_model_does(name: str) -> None:
    model = build(name).freeze()
    with sw.kernels.use("torch"):  # as on a GPU
        state: Any = warm(model)
        run = StaticRun(model, state, recorder=fake_recorder)
        addresses = [leaf.data_ptr() for leaf in tree_leaves(run.passing_state())]
        for n in range(40):
            tokens = torch.randint(VOCABULARY, (3, 1))
            lengths = torch.tensor([1, n % 3 % 2, 1]) if n % 4 == 1 else None
            starts = torch.tensor([[n % 8 == 1], [False], [n == 21]]) if n % 4 == 1 or n == 26 else None
            want, state = model(tokens, state, lengths=lengths, starts=starts)
            got = run.step(tokens, lengths=lengths, starts=starts)
            read = slice(None) if lengths is None else lengths > 0
            torch.testing.assert_close(got[read], want[read, -1], atol=1e-4, rtol=1e-4)
        assert set(run._programs) == {False, True}
        if not histories(state) or model.config.blocks[0].mixer.__class__ is not sw.AttentionConfig:
            assert [leaf.data_ptr() for leaf in tree_leaves(run.passing_state())] == addresses, "in place"
        # what is left behind is a state as any other
        probe = torch.randint(VOCABULARY, (3, 5))
        left = tree_map(torch.clone, run.passing_state())
        torch.testing.assert_close(model(probe, left)[0], model(probe, state)[0], atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_the_given_state_stays_as_it_was() -> None:
    model = build("all in one").freeze()
    state = warm(model)
    kept = tree_map(torch.clone, state)
    run = StaticRun(model, state, recorder=None)
    for _ in range(20):
        run.step(torch.randint(VOCABULARY, (3, 1)))
    for now, before in zip(tree_leaves(state), tree_leaves(kept)):
        assert now.equal(before)


@torch.inference_mode()
def test_a_full_history_moves_to_a_larger_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statewise.decoding.static_history.ROOM", 4)
    model = build("attention")
    state: Any = warm(model)
    run, sizes = StaticRun(model, state, recorder=fake_recorder), set()
    for _ in range(60):
        tokens = torch.randint(VOCABULARY, (3, 1))
        want, state = model(tokens, state)
        torch.testing.assert_close(run.step(tokens), want[:, -1], atol=1e-5, rtol=1e-5)
        sizes.add(histories(run.passing_state())[0].keys.shape[1])
    assert sizes == {16, 32, 64, 128}


@torch.inference_mode()
def test_positions_are_checked_before_the_step() -> None:
    model = build("Mamba", max_positions=12)
    run = StaticRun(model, warm(model), recorder=None)  # the first row is at 9
    for _ in range(3):
        run.step(torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(InputError, match="a row reaches position 12"):
        run.step(torch.zeros(3, 1, dtype=torch.int64))
    run.step(torch.zeros(3, 1, dtype=torch.int64), lengths=torch.tensor([0, 1, 1]))
    run.step(torch.zeros(3, 1, dtype=torch.int64), starts=torch.tensor([[True], [False], [False]]))


@torch.inference_mode()
def test_a_recording_that_fails_or_errs_is_not_used() -> None:
    def fails(call: Any, warm_up: Any, device: Any) -> Any:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more")

    def errs(call: Any, warm_up: Any, device: Any) -> Any:
        return lambda: None  # a replay that does nothing

    model = build("all in one")
    for recorder, reason in ((fails, "operation not permitted"), (errs, "its first replay is off by")):
        state: Any = warm(model)
        run = StaticRun(model, state, recorder=recorder)
        for n in range(5):
            tokens = torch.randint(VOCABULARY, (3, 1))
            want, state = model(tokens, state)
            if n == 0:
                with pytest.warns(RuntimeWarning, match=reason):
                    got = run.step(tokens)
            else:
                got = run.step(tokens)
            torch.testing.assert_close(got, want[:, -1], atol=1e-5, rtol=1e-5)


def generated(model: sw.LanguageModel, **options: Any) -> Tensor:
    return ids_of(generate(model, [[1, 2, 3], [4]], max_new_tokens=60, seed=0, document_token=9, **options))


def by_static_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, on the CPU and with the fake recording."""

    def make(model: sw.LanguageModel, weights: Any, n_tokens: int) -> Any:
        def begin(reader: sw.LanguageModel, reading: Any) -> Any:
            run = StaticRun(reader, reading.state, recorder=fake_recorder)
            return stepping.partial(stepping.extend_by_one, run)

        return begin

    monkeypatch.setattr("statewise.generation.decode.stepping", make)


@pytest.mark.parametrize("stop_at_document", [True, False])
@pytest.mark.parametrize("name", ["demo", "tiny", "all in one"])
def test_generate_writes_the_same_tokens(name: str, stop_at_document: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = build(name) if name in HYBRIDS else PRESETS[name](VOCABULARY).build()
    options: dict[str, Any] = {"stop_at_document": stop_at_document, "repetition_penalty": 1.1}
    with sw.kernels.use("torch"):
        want = generated(model, **options)
        by_static_run(monkeypatch)
        assert generated(model, **options) == want


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("demo", "tiny")])
def test_every_preset_can_be_recorded(name: str) -> None:
    with torch.device("meta"):
        assert why_not_recorded(PRESETS[name](VOCABULARY).build()) is None


def test_explain_says_how_tokens_are_read() -> None:
    assert "layer 0 is a Kalman" in str(why_not_recorded(build("Kalman")))
    model = build("all in one")
    with sw.kernels.use("torch"):
        told = sw.explain(model)
        assert told.way == "PyTorch"
        assert told.others["CUDA graph"] == "the model is on cpu"
        assert "generate reads tokens by PyTorch" in str(told)
    assert static.record.__module__ == "statewise.kernels.gpu.graphs"


def test_a_step_is_recorded_unless_somebody_asked_for_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend, reason in (("auto", None), ("triton", None), ("torch", 'STATEWISE_KERNELS chose "torch"')):
        with sw.kernels.use(backend):
            found = stepping._not_asked()
            assert found is None if reason is None else reason in str(found)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with sw.kernels.use("auto"):
        assert "AMD" in str(stepping._not_asked())


@pytest.mark.cuda
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_step_is_the_models(name: str, recwarn: pytest.WarningsRecorder) -> None:
    model = build(name).cuda().freeze()
    with torch.inference_mode():
        tokens = torch.randint(VOCABULARY, (2, 9), device="cuda")
        state: Any = model(tokens, model.initial_state(2))[1]
        run = StaticRun(model, state)
        for n in range(12):
            tokens = torch.randint(VOCABULARY, (2, 1), device="cuda")
            lengths = torch.tensor([1, 0], device="cuda") if n == 5 else None
            want, state = model(tokens, state, lengths=lengths)
            got = run.step(tokens, lengths=lengths)
            read = slice(None) if lengths is None else slice(1)
            torch.testing.assert_close(got[read], want[read, -1], atol=1e-3, rtol=1e-3)
    fell = [str(w.message) for w in recwarn.list if "CUDA graph" in str(w.message)]
    assert not fell, fell


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_generate_records_a_step(dtype: torch.dtype, recwarn: pytest.WarningsRecorder) -> None:
    model = build("all in one").to("cuda", dtype)
    for backend in ("auto", "triton"):
        with sw.kernels.use(backend):
            assert sw.explain(model).way == "CUDA graph"
            assert generated(model, temperature=0)
    with sw.kernels.use("torch"):
        assert sw.explain(model).way == "PyTorch"
    fell = [str(w.message) for w in recwarn.list if "CUDA graph" in str(w.message)]
    assert not fell, fell


@pytest.mark.cuda
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_generate_reads_integers(
    weights: str, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("all in one").cuda()
    with sw.kernels.use("torch"):
        want = generated(dequantised(model, weights).eval(), temperature=0)
    with sw.kernels.use("triton"):
        runs: list[bool] = []

        def run(reader: sw.LanguageModel, state: Any) -> StaticRun:
            runs.append(is_quantised(reader))
            return StaticRun(reader, state)

        monkeypatch.setattr(stepping, "StaticRun", run)
        assert generated(model, temperature=0, weights=weights) == want
    assert runs == [True]
    fell = [str(w.message) for w in recwarn.list if "CUDA graph" in str(w.message) or "kernels" in str(w.message)]
    assert not fell, fell
