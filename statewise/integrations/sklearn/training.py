"""One run of ``sw.train`` for an estimator: in a folder that is kept or not, without a trace in the process."""

from __future__ import annotations

import copy
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from statewise.models.base import Model, ModelConfig
from statewise.training.call import train
from statewise.training.environment import choose_device

_ONE_AT_A_TIME = threading.Lock()  # a run seeds the generators of the whole process


def trained_model(
    config: ModelConfig | str, data: Any, *, out: Any, random_state: Any, device: str, **options: Any
) -> Model:
    """The model that ``sw.train(config, data, ...)`` gives, in evaluation mode, on the device it was trained on.

    out:          the folder of the run; None: one that is deleted again
    random_state: as scikit-learn's; the run's seed is drawn from it
    options:      of ``sw.train``

    Errors:  as ``sw.train``; KeyboardInterrupt and SystemExit where a signal ended the run.
    """
    seed = random_state if isinstance(random_state, (int, np.integer)) else _drawn(random_state)
    place = choose_device(device)
    with _ONE_AT_A_TIME, _generators_kept(), _folder(out) as folder:
        run = train(config, data, out=folder, seed=int(seed), device=device, **options)
        if run.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if run.signal is not None:
            raise SystemExit(run.exit_code)
        return run.model.to(place)


def on_the_cpu(state: dict[str, Any]) -> dict[str, Any]:
    """The state of an estimator for a pickle, which is read where there may be no other device."""
    model = state.get("model_")
    if model is not None and any(tensor.device.type != "cpu" for tensor in model.parameters()):
        state["model_"] = copy.deepcopy(model).cpu()
    return state


def _drawn(random_state: Any) -> int:
    return int(check_random_state(random_state).randint(2**31))


@contextmanager
def _folder(out: Any) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="statewise-") as folder:
        yield Path(folder) / "run"


@contextmanager
def _generators_kept() -> Iterator[None]:
    """PyTorch's, Python's and numpy's global generators are as they were at the end: a fit in the midst of somebody's
    program must not repeat what they draw."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
