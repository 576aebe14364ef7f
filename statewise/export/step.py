"""Which parts of a model can be exported, and its step as one exported program."""

from __future__ import annotations

from torch import nn
from torch.export import ExportedProgram

from statewise.errors import InputError
from statewise.export.parts import Part, forecast_part, piece_part, step_part, whole_part
from statewise.export.program import trace
from statewise.kernels.exact.owner import exact_in
from statewise.models.encoder import SequenceModel
from statewise.models.forecaster import Forecaster
from statewise.models.language_model import LanguageModel
from statewise.models.pair_classifier import PairClassifier

PARTS = ("step", "prefill", "stream", "whole")


def export_step(model: nn.Module, *, batch: int = 1) -> ExportedProgram:
    """The step ``outputs, *leaves = program.module()(tokens, *leaves)``, for a fixed number of rows.

    The model is a language model, a classifier or a regressor. The leaves are those of ``model.initial_state(batch)``
    in the order of ``torch.utils._pytree.tree_leaves``, named by :func:`state_names`; the state that a model returns
    after a prompt works too. The program shares the parameters' memory with the model, and what a frozen model
    computes once is constant in it: like ``model.freeze()`` it is a snapshot, until ``torch.export.save`` writes it to
    a file. It has only plain ATen operators on real numbers: each kernel of Statewise is written out as its
    definition, each complex number as its two parts. So you can load and run it where Statewise is not installed.
    The program does not check ids or positions: outside the vocabulary, or beyond ``max_positions``, the result
    depends on the runtime.
    For attention with a window, the leaves are the last ``window - 1`` keys and values (at least one of each) and the
    position, which are zero at rest.

    Shapes:  tokens: (batch,) int64, or x: (batch, d_input) -> logits (batch, vocab_size) of a language model; logits
             and probabilities (batch, n_classes) of a classifier; values (batch, d_output) of a regressor; the leaves
             as they are given
    Cost:    seconds, a few for each layer.
    Numerics: the model's own definition, in its dtype; states float32 or wider.
    Errors:  InputError for a batch below 1, and for a model that :func:`refusal` refuses, with the layer.
    """
    require_program(model)
    return trace(build_part(model, "step", batch))


def default_part(model: nn.Module) -> str:
    """The part of a model that is exported by default."""
    return "step" if isinstance(model, LanguageModel) else "whole"


def build_part(model: nn.Module, name: str, batch: int | None = None) -> Part:
    """Errors:  InputError for an unknown part, one that the model does not have, and a batch that it does not take."""
    if name not in PARTS:
        raise InputError(f"part={name!r} is unknown; use one of {', '.join(PARTS)}")
    batch = 1 if batch is None and name == "step" else batch
    if name != "step" and batch is not None:
        raise InputError(f'batch={batch!r} with part="{name}", which reads any number of rows; leave batch out')
    if name == "step" and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise InputError(
            f"batch={batch!r}; expected an integer of at least 1: an exported step has a fixed number of rows"
        )
    reason = refusal(model, name)
    if reason is not None:
        raise InputError(f'part="{name}" of this model cannot be exported: {reason}')
    if isinstance(model, Forecaster):
        return forecast_part(model)
    if name == "whole":
        assert isinstance(model, SequenceModel)
        return whole_part(model)
    assert isinstance(model, (LanguageModel, SequenceModel))
    return piece_part(model) if batch is None else step_part(model, batch)


def refusal(model: nn.Module, part: str = "step") -> str | None:
    """Why a part of a model cannot be exported, in one line; None if it can."""
    name = type(model).__name__
    if exact_in(model):
        return f"this {name} has exact=True, and no program is exact; set exact = False"
    for i, block in enumerate(getattr(model, "blocks", ())):
        if block.mixer.reads_memory:
            return f"layers[{i}] reads a memory, for which a file has no input; export the model without it"
    if isinstance(model, LanguageModel):
        if part in ("step", "prefill"):
            return None
        return f'a language model reads tokens and continues from a state; use part="step" or "prefill", not "{part}"'
    if isinstance(model, Forecaster) and part != "whole":
        return f'a {name} forecasts from whole histories; use part="whole"'
    if not isinstance(model, (SequenceModel, Forecaster)):
        return f"a {name} is not a network that reads sequences; use it in Python"
    if part == "whole":
        return None
    if part == "prefill":
        return f'a {name} has no prompt; use part="stream" for pieces of its rows, or "whole"'
    assert isinstance(model, SequenceModel)
    if isinstance(model, PairClassifier):
        return 'a PairClassifier compares whole rows; use part="whole"'
    raw = model.config.input
    if raw is not None and raw.whole_rows is not None:
        return f'it reads whole rows, since {raw.whole_rows}; use part="whole"'
    for i, block in enumerate(model.blocks):
        if not block.mixer.is_causal:
            return f'layers[{i}] reads in both directions and has no state; use part="whole"'
    return None


def require_program(model: nn.Module) -> None:
    """Errors:  InputError for a step whose shapes are not fixed, naming the layer: it leaves as ONNX alone."""
    for i, block in enumerate(model.blocks if isinstance(model, (LanguageModel, SequenceModel)) else ()):
        if not block.mixer.bounded_state:
            raise InputError(
                f"this model's step cannot be exported as a program: layers[{i}] is attention, whose history grows "
                "with each token, but a program has fixed shapes; write FILE.onnx, or use a window"
            )
