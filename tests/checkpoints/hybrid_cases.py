"""A random checkpoint of a hybrid that ``transformers`` saved, and all that has to hold of it here.

The truth is that library's run of one whole row without padding: where it reads from a state or padded rows, it is
wrong in places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.integrations.transformers import from_statewise
from statewise.models.language_model import LanguageModel

transformers.logging.set_verbosity_error()

VOCABULARY = 67
PIECES = [9, 1, 20, 1, 1, 13]
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
Case = tuple[str, dict[str, Any]]  # model_type, fields of their config


def build(kind: str, fields: dict[str, Any]) -> Any:
    """A model of that library whose parameters all matter: its own are zeros and ones in places, and small."""
    torch.manual_seed(0)
    plain = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "vocab_size": VOCABULARY}
    config = transformers.AutoConfig.for_model(kind, **plain | fields)
    model = transformers.AutoModelForCausalLM.from_config(config, **EAGER).eval()
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "mup_vector" in name or "inv_freq" in name or tensor.ndim == 0:
                continue
            if tensor.ndim == 1:
                tensor.add_(0.3 * torch.randn_like(tensor))
            elif "conv1d" in name:
                tensor.normal_(std=0.5)
            elif "embed" in name:
                tensor.normal_(std=0.05)  # or a token says most about the next one where the head is tied
            elif "lm_head" in name:
                tensor.normal_()
            else:
                tensor.normal_(std=max(tensor.shape[-2:]) ** -0.5)
    return model


def saved(case: Case, folder: Path) -> Path:
    """The folder of the case's checkpoint, made once."""
    kind, fields = case
    return _saved(kind, json.dumps(fields, sort_keys=True), folder)


@cache
def _saved(kind: str, fields: str, folder: Path) -> Path:
    target = folder / f"{kind}-{len(list(folder.iterdir()))}"
    build(kind, json.loads(fields)).save_pretrained(target)
    return target


def reference(path: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(path, **EAGER).eval()
    model.config.use_cache = False  # it has none where no layer is of attention
    return model


def loaded(path: Path, dtype: torch.dtype | None = None) -> LanguageModel:
    model = sw.load(path, dtype=dtype)
    assert isinstance(model, LanguageModel)
    return model


@contextmanager
def in_float64() -> Iterator[None]:
    """That library computes in float32 inside a float64 model; here what it asks to be float32 is float64."""
    with pytest.MonkeyPatch.context() as patch:
        to, softmax, arange = Tensor.to, torch.nn.functional.softmax, torch.arange

        def wider(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
            return to(self, *args, **_wide(kwargs))

        patch.setattr(Tensor, "float", Tensor.double)
        patch.setattr(Tensor, "to", wider)
        patch.setattr(Tensor, "type", lambda self, dtype: wider(self, dtype))
        patch.setattr(torch.nn.functional, "softmax", lambda *args, **kwargs: softmax(*args, **_wide(kwargs)))
        patch.setattr(torch, "softmax", lambda *args, **kwargs: softmax(*args, **_wide(kwargs)))
        patch.setattr(torch, "arange", lambda *args, **kwargs: arange(*args, **_wide(kwargs)))
        yield


def _wide(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.float64 if value is torch.float32 else value for name, value in kwargs.items()}


def ids(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def far(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((actual - expected).abs().max() / expected.abs().max())


def in_pieces(model: LanguageModel, tokens: Tensor, pieces: list[int]) -> Tensor:
    logits, state = [], model.initial_state(len(tokens))
    for piece in tokens.split(pieces, 1):
        y, state = model(piece, state)
        logits.append(y)
    return torch.cat(logits, 1)


def _exact(path: Path, tokens: Tensor) -> Tensor:
    """That library's logits in float64."""
    with in_float64():
        theirs = reference(path).double()
        for module in theirs.modules():  # what it computed in float32 when it was made
            if hasattr(module, "compute_default_rope_parameters"):
                module.inv_freq = module.compute_default_rope_parameters(module.config)[0]
        logits: Tensor = theirs(tokens).logits
        return logits


@cache
def tolerance(path: Path) -> float:
    """1e-5, or what rounding makes of that library's own logits, if that is more: where a query misses all keys, a head
    of the delta rule gives almost nothing, and the norm behind it blows it up."""
    tokens = ids(2, sum(PIECES))
    return max(1e-5, 4 * far(reference(path)(tokens).logits.double(), _exact(path, tokens)))


@torch.no_grad()
def check_logits(case: Case, folder: Path) -> None:
    """Whole rows and pieces of them: to 1e-5 in float32."""
    path, tokens = saved(case, folder), ids(2, sum(PIECES))
    expected, model = reference(path)(tokens).logits, loaded(path)
    assert far(model(tokens)[0], expected) < tolerance(path)
    assert far(in_pieces(model, tokens, PIECES), expected) < tolerance(path)
    assert far(in_pieces(model, tokens, [1] * sum(PIECES)), expected) < tolerance(path)


@torch.no_grad()
def check_float64(case: Case, folder: Path) -> None:
    """The same to 1e-9 in float64."""
    path, tokens = saved(case, folder), ids(2, sum(PIECES))
    expected = _exact(path, tokens)
    model = loaded(path, torch.float64)
    assert far(model(tokens)[0], expected) < 1e-9
    assert far(in_pieces(model, tokens, PIECES), expected) < 1e-9


@torch.no_grad()
def check_padding(case: Case, folder: Path) -> None:
    """Padded on the right, on the left as that library's users have it, and packed: each row as it is alone."""
    path = saved(case, folder)
    model, theirs = loaded(path), reference(path)
    tokens, lengths = ids(3, 30), torch.tensor([30, 11, 1])
    single = [theirs(tokens[row : row + 1, :n]).logits[0] for row, n in enumerate(lengths.tolist())]
    beyond = torch.arange(30) >= lengths[:, None]
    padded, state = model(tokens.masked_fill(beyond, 10**6), model.initial_state(3), lengths=lengths)
    for row, n in enumerate(lengths.tolist()):
        assert far(padded[row, :n], single[row]) < tolerance(path)
    assert state is not None
    assert state.position.tolist() == lengths.tolist()
    after = model(ids(3, 4, seed=2), state)[0]
    for row, n in enumerate(lengths.tolist()):
        whole = torch.cat([tokens[row, :n], ids(3, 4, seed=2)[row]])[None]
        assert far(after[row], theirs(whole).logits[0, n:]) < tolerance(path)
    packed = torch.cat([tokens[row, :n] for row, n in enumerate(lengths.tolist())])[None]
    starts = torch.zeros(1, 42, dtype=torch.bool)
    starts[0, [0, 30, 41]] = True
    logits, _ = model(packed, starts=starts)
    assert far(logits[0], torch.cat(single)) < tolerance(path)
    left = torch.stack([row.roll(30 - n) for row, n in zip(tokens, lengths.tolist())])
    seen = torch.stack([torch.arange(30) >= 30 - n for n in lengths.tolist()]).long()
    logits = from_statewise(model)(left, attention_mask=seen).logits
    for row, n in enumerate(lengths.tolist()):
        assert far(logits[row, 30 - n :], single[row]) < tolerance(path)


@torch.no_grad()
def check_greedy(case: Case, folder: Path, n_tokens: int = 256) -> None:
    """Each token that is generated here is the one that one whole run there puts first."""
    path, prompt = saved(case, folder), ids(1, 9)
    tokens = torch.cat([t.ids for t in sw.generate(loaded(path), prompt, max_new_tokens=n_tokens, temperature=0)])
    logits = reference(path)(torch.cat([prompt[0], tokens])[None]).logits[0]
    assert logits[8:-1].argmax(-1).equal(tokens)
    assert len(tokens.unique()) > 2


def _joined(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convolutions of queries, keys and values in one, which that library divides into equal parts of any widths."""
    for name in [name for name in tensors if "q_conv1d" in name]:
        parts = (tensors.pop(name.replace("q_conv1d", f"{letter}_conv1d")) for letter in "qkv")
        tensors[name.replace("q_conv1d", "conv1d")] = torch.cat([*parts])
    return tensors


@torch.no_grad()
def check_written(case: Case, folder: Path) -> None:
    """Written back, that library reads the same tensors and gives the same logits."""
    path, tokens = saved(case, folder), ids(2, 20)
    again = path.with_name(f"{path.name}-again")
    save_as(sw.load(path), again, "transformers")
    before, after = (_joined(load_file(where / "model.safetensors")) for where in (path, again))
    assert after.keys() <= before.keys()
    for name in after:
        assert after[name].equal(before[name]), name
    assert json.loads((again / "config.json").read_text())["model_type"] == case[0]
    assert far(reference(again)(tokens).logits, reference(path)(tokens).logits) < 2e-6


CHECKS = {
    "logits": check_logits,
    "float64": check_float64,
    "padding": check_padding,
    "greedy": check_greedy,
    "written": check_written,
}


def check_all(case: Case, folder: Path) -> None:
    for check in CHECKS.values():
        check(case, folder)


@torch.no_grad()
def theirs_on_cpu(case: Case, folder: Path, n_tokens: int = 8) -> set[str]:
    """In which runs that library's greedy tokens are those of its own whole rows: "cached", and "padded" on the left.
    A run that it refuses is none of them."""
    path, prompt, short = saved(case, folder), ids(1, 9), ids(1, 4, seed=3)
    whole, cached = reference(path), transformers.AutoModelForCausalLM.from_pretrained(path, **EAGER).eval()
    options = {"do_sample": False, "max_new_tokens": n_tokens, "pad_token_id": 0}
    both = torch.cat([prompt, torch.cat([torch.zeros(1, 5, dtype=torch.long), short], 1)])
    seen = torch.tensor([[1] * 9, [0] * 5 + [1] * 4])
    runs = {"cached": (prompt, torch.ones_like(prompt)), "padded": (both, seen)}
    found = set()
    for name, (rows, mask) in runs.items():
        try:
            made = cached.generate(rows, attention_mask=mask, **options)
        except Exception:  # whatever it raises where it cannot
            continue
        alone = (row[-n:][None] for row, n in zip(made, (mask.sum(1) + n_tokens).tolist()))
        if all(_greedy(whole, row, n_tokens) for row in alone):
            found.add(name)
    return found


def _greedy(model: Any, row: Tensor, n_tokens: int) -> bool:
    """Whether each of the last tokens is the one that a whole run puts first, or as near as rounding."""
    logits = model(row).logits[0, -n_tokens - 1 : -1]
    lost = logits.amax(-1) - logits.gather(1, row[0, -n_tokens:, None])[:, 0]
    return bool((lost < 1e-4 * logits.abs().max()).all())
