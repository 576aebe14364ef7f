"""Where the time of a step goes: training, reading a prompt, writing tokens, by part.

PyTorch's profiler tells the time that each operator spends by itself. An operator belongs to the kernel it runs
inside, to the optimiser, or to the module that called it; in the backward pass to what its forward operator belonged
to. What is in no operator is Python and dispatch.
"""

from __future__ import annotations

import os
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import record_function
from torch.autograd.profiler_util import FunctionEvent

from statewise.benchmark.timing import time_once
from statewise.benchmark.workloads.models import prompt, training_action
from statewise.mixers.attention import Attention
from statewise.models.language_model import LanguageModel
from statewise.reproduce.hardware import environment

STEPS = ("training", "prefill", "decoding")
ROOT = "statewise step"
MARK = "statewise part: "
PYTHON = "Python and dispatch"
DECODER = "decoding kernel"

KERNELS = (  # of registered operators, by the beginning of their names
    (r"statewise::(selective_scan|linear_scan)", "scan"),
    (r"statewise::ssd", "SSD"),
    (r"statewise::short_convolution", "short convolution"),
    (r"statewise::(gated_rms_norm|rms_norm)", "norms"),
    (r"statewise::linear_cross_entropy", "loss"),
    (r"statewise::linear", "matrix products"),
    (r"statewise::(fft_convolution|vandermonde|cauchy)", "long convolution"),
    (r"statewise::", "other kernels"),
)
OPERATORS = (  # of PyTorch, where no kernel, optimiser or module says more
    (r"aten::(_?scaled_dot_product|_flash_attention)", "attention"),
    (r"aten::(native_layer_norm|native_batch_norm|rms_norm|_fused_rms_norm|_batch_norm)", "norms"),
    (r"aten::(cross_entropy|_?log_softmax|nll_loss)", "loss"),
    (r"aten::(copy_|clone|contiguous|cat|stack|_to_copy|index|embedding|gather|scatter|slice_backward)", "copies"),
    (r"aten::(empty|zeros|new_|resize|zero_|fill_|full|ones|select_backward|detach)", "copies"),
    (r"aten::", "elementwise"),
)
PRODUCTS = re.compile(r"(aten::(mm|addmm|bmm|baddbmm|mv|addmv|dot|linear|matmul|einsum|_?addmm_activation)|mkldnn::)")
VIEWS = re.compile(r"aten::(view|reshape|t$|transpose|permute|expand|slice|select|unsqueeze|squeeze|as_strided|split)")

Step = Callable[[], object]


def profile_model(
    model: LanguageModel,
    *,
    steps: Sequence[str] = STEPS,
    batch: int = 1,
    length: int = 512,
    repeats: int = 3,
) -> dict[str, Any]:
    """For each kind of step its ``milliseconds`` (a median, not profiled), ``tokens`` and ``parts`` with their shares.

    The shares are those of the profiled steps, which are slower by about a microsecond for each operator.
    """
    makers = {"training": _training, "prefill": _prefill, "decoding": _decoding}
    record: dict[str, Any] = {"batch": batch, "length": length, "steps": {}, "hardware": environment()}
    for kind in steps:
        step, n_tokens = makers[kind](model, batch, length)
        step()
        milliseconds = 1e3 * statistics.median(time_once(step) for _ in range(repeats))
        shares = profile_step(model, step, repeats)
        record["steps"][kind] = {
            "milliseconds": milliseconds,
            "tokens": n_tokens,
            "parts": {
                part: {"milliseconds": share * milliseconds, "share": share}
                for part, share in sorted(shares.items(), key=lambda item: -item[1])
            },
        }
        model.zero_grad(set_to_none=True)
    return record


def profile_step(model: nn.Module, step: Step, repeats: int = 3) -> dict[str, float]:
    """The share of each part in the time of a step."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it tells standard error that it begins and ends
    with (
        _marked(model),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
    ):
        for _ in range(repeats):
            with record_function(ROOT):
                step()
    events = [event for event in profiler.events() if _root_of(event)]
    marks = {event.sequence_nr: part for event in events if event.sequence_nr >= 0 and (part := _mark_of(event))}
    seconds: dict[str, float] = defaultdict(float)
    for event in events:
        seconds[_part(event, marks)] += event.self_cpu_time_total
    total = sum(seconds.values())
    return {part: value / total for part, value in seconds.items() if value > 0}


@contextmanager
def _marked(model: nn.Module) -> Iterator[None]:
    """Norms and attention say who they are, since their operators could be anybody's."""
    running: list[Any] = []

    def begin(part: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any) -> None:
            running.append(record_function(MARK + part))
            running[-1].__enter__()

        return hook

    def end(module: nn.Module, inputs: Any, output: Any) -> None:
        running.pop().__exit__(None, None, None)

    with ExitStack() as stack:
        for module in model.modules():
            part = "attention" if isinstance(module, Attention) else "norms" if _is_norm(module) else None
            if part is not None:
                stack.callback(module.register_forward_pre_hook(begin(part)).remove)
                stack.callback(module.register_forward_hook(end).remove)
        yield


def _is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__


def _ancestors(event: FunctionEvent) -> Iterator[FunctionEvent]:
    """The event itself and all that it is inside of."""
    here: FunctionEvent | None = event
    while here is not None:
        yield here
        here = here.cpu_parent


def _root_of(event: FunctionEvent) -> bool:
    return any(outer.name == ROOT for outer in _ancestors(event))


def _mark_of(event: FunctionEvent) -> str | None:
    names = (outer.name for outer in _ancestors(event))
    return next((name.removeprefix(MARK) for name in names if name.startswith(MARK)), None)


def _part(event: FunctionEvent, marks: dict[int, str]) -> str:
    outer = list(_ancestors(event))
    if any(o.name.startswith("Optimizer.") or o.name == MARK + "optimizer" for o in outer):
        return "optimizer"
    for o in outer:
        if part := _match(o.name, KERNELS):
            return part
    if any(PRODUCTS.match(o.name) for o in outer):
        return "matrix products"
    mark = _mark_of(event)
    if mark is None:  # of the backward pass: what its forward operator was
        numbers = (o.sequence_nr for o in outer if o.name.startswith("autograd::"))
        mark = next((marks[number] for number in numbers if number in marks), None)
    if event.name.startswith(("autograd::", MARK)) or event.name == ROOT or VIEWS.match(event.name):
        return mark if mark == DECODER else PYTHON
    if mark is not None:
        return mark
    for o in outer:
        if part := _match(o.name, OPERATORS):
            return part
    return PYTHON


def _match(name: str, rules: Sequence[tuple[str, str]]) -> str | None:
    return next((part for pattern, part in rules if re.match(pattern, name)), None)


def _training(model: LanguageModel, batch: int, length: int) -> tuple[Step, int]:
    return training_action(model, prompt(model, length + 1, batch)), batch * length


def _prefill(model: LanguageModel, batch: int, length: int) -> tuple[Step, int]:
    tokens = prompt(model, length, batch)

    def read() -> object:
        model.eval()
        features, state = model.features(tokens, model.initial_state(batch))
        return model.head(features[:, -1]), state

    return torch.inference_mode()(read), batch * length


def _decoding(model: LanguageModel, batch: int, length: int) -> tuple[Step, int]:
    """One token, through the decoder in C where there is one for the model, as in `generate`."""
    from statewise.decoding import Decoder, why_not

    model.eval()
    token = torch.zeros(batch, dtype=torch.int64)
    if why_not(model) is not None:
        state = model.initial_state(batch)
        return torch.inference_mode()(lambda: model(token[:, None], state)), batch
    decoder = Decoder(model)
    running = decoder.run(decoder.initial_state(batch))

    def decode() -> object:
        with record_function(MARK + DECODER):
            return running.step(token)

    return torch.inference_mode()(decode), batch
