"""Frozen mixers and models: the same outputs and laws, operators built once, and nothing that could make them stale."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from laws import check_mixer_laws

import statewise as sw
from statewise.errors import InputError
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.lmu import LMUConfig
from statewise.mixers.lssl import LSSLConfig
from statewise.mixers.prepared import PreparableMixer
from statewise.mixers.rate import set_rate
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.freezing import freeze, has_operators_to_prepare

CONFIGS: dict[str, MixerConfig] = {
    "S4": S4Config(d_state=4, n_heads=2),
    "S4D": S4DConfig(d_state=4),
    "S4D real": S4DConfig(d_state=3, initialization="real"),
    "S4D bidirectional": S4DConfig(d_state=4, bidirectional=True),
    "LSSL": LSSLConfig(d_state=3),
    "H3": H3Config(d_state=4),
    "H3 wide heads": H3Config(d_state=4, d_head=2, d_shift=3),
    "LMU": LMUConfig(theta=9, d_state=4),
    "LMU parallel": LMUConfig(theta=9, d_state=4, parallel=True),
}


@pytest.fixture(params=CONFIGS)
def mixer(request: pytest.FixtureRequest) -> Mixer:
    torch.manual_seed(0)
    return CONFIGS[request.param].build(4)


def hybrid() -> sw.LanguageModel:
    torch.manual_seed(0)
    layers = (
        S4DConfig(d_state=4),
        sw.Mamba2Config(d_state=4, d_head=4),
        sw.BlockConfig(mixer=S4Config(d_state=4), mlp=sw.MLPConfig(), norm="batch", dropout=0.5),
        LMUConfig(theta=5, d_state=3),
    )
    return sw.LanguageModelConfig(vocab_size=11, d_model=8, layers=layers, embedding_std=1.0).build()


def test_a_frozen_mixer_says_the_same(mixer: Mixer) -> None:
    frozen = mixer.freeze()
    x = torch.randn(2, 30, 4)
    torch.testing.assert_close(frozen(x)[0], mixer(x)[0], atol=1e-5, rtol=1e-4)
    if not mixer.is_causal:
        return
    state, same = mixer.initial_state(2), frozen.initial_state(2)
    for piece in x.split([20, 1, 1, 8], 1):
        y, state = mixer(piece, state)
        z, same = frozen(piece, same)
        torch.testing.assert_close(z, y, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(same, state, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "length"), [("S4", 9), ("S4D", 17), ("H3 wide heads", 5), ("LSSL", 5), ("LMU", 5), ("LMU parallel", 5)]
)
def test_laws(name: str, length: int) -> None:
    torch.manual_seed(0)
    check_mixer_laws(CONFIGS[name].build(2).freeze(), length=length)


def test_operators_are_built_once(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = mixer.freeze()
    state = frozen.initial_state(1) if mixer.is_causal else None

    def never(self: PreparableMixer) -> None:
        raise AssertionError("built again")

    monkeypatch.setattr(type(mixer), "build_operators", never)
    frozen(torch.randn(1, 30, 4))
    if mixer.is_causal:
        frozen(torch.randn(1, 1, 4), state)
    with pytest.raises(AssertionError, match="built again"):
        mixer(torch.randn(1, 30, 4))


def test_memory_is_shared_and_the_original_is_as_it_was(mixer: Mixer) -> None:
    frozen = mixer.freeze()
    assert frozen is not mixer
    ours, theirs = dict(frozen.named_parameters()), dict(mixer.named_parameters())
    assert ours.keys() == theirs.keys()
    assert all(ours[name].data_ptr() == theirs[name].data_ptr() for name in ours)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    assert all(parameter.requires_grad for parameter in mixer.parameters())
    assert mixer.training
    assert not mixer.is_frozen
    assert not frozen.training
    assert frozen.freeze() is frozen


def test_a_frozen_mixer_moves_and_stays_wide(mixer: Mixer) -> None:
    frozen = mixer.freeze()
    assert isinstance(frozen, PreparableMixer)
    x = torch.randn(2, 20, 4)
    want = frozen(x)[0]
    torch.testing.assert_close(copy.deepcopy(frozen).double()(x.double())[0].float(), want, atol=1e-5, rtol=1e-4)
    narrow = copy.deepcopy(frozen).to(torch.bfloat16)
    y = narrow(x.to(torch.bfloat16))[0]
    assert y.dtype == torch.bfloat16
    assert (y.float() - want).abs().max() < 0.1 * want.abs().max()
    for operator in narrow.prepared.operators:
        assert operator._like().dtype in (torch.float32, torch.complex64)
    torch.testing.assert_close(pickle.loads(pickle.dumps(frozen))(x)[0], want)


def test_it_may_be_used_in_inference_mode_first(mixer: Mixer) -> None:
    frozen = mixer.freeze()
    x = torch.randn(1, 30, 4)
    with torch.inference_mode():
        frozen(x)
        if mixer.is_causal:
            frozen(x, frozen.initial_state(1))
    x.requires_grad_()
    for state in (None, frozen.initial_state(1)) if mixer.is_causal else (None,):
        (grad,) = torch.autograd.grad(frozen(x, state)[0].sum(), x)
        assert grad.abs().max() > 0


def test_what_would_make_it_stale_is_refused(mixer: Mixer) -> None:
    frozen = mixer.freeze()
    before = {name: tensor.clone() for name, tensor in mixer.state_dict().items()}
    changes = [
        lambda: frozen.train(),
        lambda: frozen.reset_parameters(),
        lambda: frozen.load_state_dict(mixer.state_dict()),
    ]
    if mixer.rate is not None:
        changes.append(lambda: set_rate(frozen, 2))
    for change in changes:
        with pytest.raises(InputError, match="frozen"):
            change()
    assert not frozen.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in mixer.state_dict().items())
    frozen.eval()


def test_a_mixer_without_such_operators_is_its_own_frozen_form() -> None:
    mixer = sw.Mamba2Config(d_state=4, d_head=4).build(4)
    assert mixer.freeze() is mixer
    assert freeze(mixer) is mixer
    other = H3Config(d_state=4).build(4)
    other.freeze().double()
    assert other.in_proj.weight.dtype == torch.float32  # where it is a copy, what is done to it stays with it


def test_a_frozen_model_says_the_same() -> None:
    model, tokens = hybrid(), torch.randint(0, 11, (2, 20))
    frozen = model.freeze()
    assert model.training
    model.eval()
    torch.testing.assert_close(frozen(tokens)[0], model(tokens)[0])
    logits, state = frozen(tokens[:, :12], frozen.initial_state(2))
    rest, _ = frozen(tokens[:, 12:], state)
    torch.testing.assert_close(torch.cat([logits, rest], 1), model(tokens)[0])
    assert frozen.head.weight is frozen.embedding.weight
    assert frozen.embedding.weight.data_ptr() == model.embedding.weight.data_ptr()
    norm = model.blocks[2].mixer_norm
    assert frozen.blocks[2].mixer_norm.running_mean.data_ptr() == norm.running_mean.data_ptr()
    assert frozen.freeze() is frozen
    assert has_operators_to_prepare(model)
    assert not has_operators_to_prepare(frozen)


def test_a_frozen_model_refuses_to_change() -> None:
    model = hybrid()
    frozen = model.freeze()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for change in (
        lambda: frozen.train(),
        lambda: frozen.reset_parameters(),
        lambda: frozen.load_state_dict(model.state_dict()),
        lambda: set_rate(frozen, 2),
    ):
        with pytest.raises(InputError, match="frozen"):
            change()
    assert not any(module.training for module in frozen.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_frozen_model_belongs_to_its_moment() -> None:
    model, tokens = hybrid().eval(), torch.randint(0, 11, (1, 20))
    frozen = model.freeze()
    before = frozen(tokens)[0]
    with torch.no_grad():
        model.blocks[0].mixer.dynamics.log_dt.add_(1.0)
    torch.testing.assert_close(frozen(tokens)[0], before)
    assert not torch.allclose(model.freeze()(tokens)[0], before)


def test_a_frozen_block_and_a_mixer_in_two_places() -> None:
    block = sw.BlockConfig(mixer=S4DConfig(d_state=4)).build(4)
    x = torch.randn(1, 9, 4)
    torch.testing.assert_close(freeze(block)(x)[0], block(x)[0])
    tied = torch.nn.ModuleList([block.mixer, block.mixer])
    frozen = freeze(tied)
    assert frozen[0] is frozen[1]
    assert frozen[0].is_frozen


def test_generation_builds_operators_once_and_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = hybrid()
    prompt = torch.randint(0, 11, (1, 6))
    tokens, expected = prompt, []
    with torch.no_grad():
        for _ in range(12):
            ids = model.eval()(tokens)[0][:, -1].argmax(-1, keepdim=True)
            expected.append(ids.item())
            tokens = torch.cat([tokens, ids], 1)
    model.train()
    built = []
    for cls in {type(block.mixer) for block in model.blocks if isinstance(block.mixer, PreparableMixer)}:

        def counted(self: PreparableMixer, build: object = cls.build_operators) -> object:
            built.append(type(self).__name__)
            return build(self)

        monkeypatch.setattr(cls, "build_operators", counted)
    actual = [t.ids.item() for t in sw.generate(model, prompt, max_new_tokens=12, temperature=0)]
    assert actual == expected
    assert sorted(built) == ["LMU", "S4", "S4D"]
    assert model.training


def test_a_frozen_model_is_saved_as_the_model_is(tmp_path: Path) -> None:
    model = hybrid()
    sw.save(model, tmp_path / "model")
    sw.save(model.freeze(), tmp_path / "frozen")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "model" / name).read_bytes() == (tmp_path / "frozen" / name).read_bytes()
    tokens = torch.randint(0, 11, (1, 20))
    loaded = sw.load(tmp_path / "model")
    torch.testing.assert_close(loaded.eval()(tokens)[0], model.eval()(tokens)[0])
    assert not loaded.is_frozen
