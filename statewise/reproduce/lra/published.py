"""What is published of the Long Range Arena: accuracies, and the settings of S4 and S4D, task by task.

S4: github.com/state-spaces/s4, ``configs/experiment/lra/s4-*.yaml`` (version 4), with the defaults of its model, layer,
    optimiser and scheduler; the settings of Gu et al. 2023, arXiv:2206.12037.
S4D: the same code, ``configs/experiment/lra/old/v3-s4-*.yaml``, with a diagonal A: the settings of Gu et al. 2022,
    arXiv:2206.11893. Of Path-X a comment there says that the paper itself had a rate of 5e-4 and an epoch of warm-up.
H3: arXiv:2212.14052 gives accuracies; neither its code nor safari's has settings for these tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "path-x")
TITLES = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder": "Pathfinder",
    "path-x": "Path-X",
}
CHANCE = (10.0, 50.0, 50.0, 10.0, 50.0, 50.0)  # one of so many classes

# Accuracies in % in the order of TASKS, None where training failed.
ACCURACY: dict[str, tuple[float | None, ...]] = {
    "Transformer (Tay et al. 2021)": (36.37, 64.27, 57.46, 42.44, 71.40, None),
    "S4 (arXiv:2206.12037)": (59.60, 86.82, 90.90, 88.65, 94.20, 96.35),
    "S4, the log of its code": (59.5, 86.5, 91.0, 88.5, 94.0, 96.0),
    "S4D-LegS (arXiv:2206.11893)": (60.5, 86.2, 89.5, 88.2, 93.1, 91.9),
    "S4D-Inv": (60.2, 87.3, 91.1, 87.8, 93.8, 92.8),
    "S4D-Lin": (60.52, 86.97, 90.96, 87.93, 93.96, None),
    "S4D, as H3's paper quotes it": (58.3, 87.3, 90.7, 87.5, 93.6, 92.3),
    "H3 (arXiv:2212.14052)": (57.5, 88.2, 91.0, 87.3, 93.0, 91.8),
    "S5 (arXiv:2208.04933)": (62.2, 89.3, 91.4, 88.0, 95.3, 98.6),
}

AVERAGE = {  # as published, of accuracies with more digits; the log of S4's code has none
    "Transformer (Tay et al. 2021)": "53.66",
    "S4 (arXiv:2206.12037)": "86.09",
    "S4D-LegS (arXiv:2206.11893)": "84.89",
    "S4D-Inv": "85.50",
    "S4D-Lin": "78.39",
    "S4D, as H3's paper quotes it": "85.0",
    "H3 (arXiv:2212.14052)": "84.8",
    "S5 (arXiv:2208.04933)": "87.5",
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How one task is trained.

    n_systems: how many A and B there are; None: as many as channels    d_state: N
    norm, placement: of the blocks, and with "pre" also of the norm after the last
    dropout:   of whole features, in the layer and in the residual branch
    lr:        of everything but A, B and dt; these have ``dynamics_lr``, with ``dt_apart`` A and B alone
    epochs:    that ``steps`` were meant to be; warmup: steps at the beginning
    """

    d_model: int
    d_state: int
    placement: str
    batch_size: int
    lr: float
    steps: int
    warmup: int
    epochs: int
    n_layers: int = 6
    n_systems: int | None = None
    norm: str = "batch"
    dropout: float = 0.0
    dt_range: tuple[float, float] = (1e-3, 1e-1)
    dynamics_lr: float = 1e-3
    dt_apart: bool = False
    weight_decay: float = 0.05

    @property
    def looks_every(self) -> int:
        """Steps of an epoch: the published runs look at the validation split after each."""
        return self.steps // self.epochs


S4: dict[str, Setting] = {
    "listops": Setting(
        d_model=256,
        d_state=4,
        n_systems=1,
        placement="post",
        batch_size=32,
        lr=0.01,
        dt_apart=True,
        steps=120_000,
        warmup=12_000,
        epochs=40,
    ),
    "text": Setting(
        d_model=256,
        d_state=4,
        n_systems=1,
        placement="pre",
        batch_size=16,
        lr=0.01,
        dt_apart=True,
        steps=50_000,
        warmup=5_000,
        epochs=32,
    ),
    "retrieval": Setting(
        d_model=256,
        d_state=4,
        n_systems=1,
        placement="pre",
        batch_size=64,
        lr=0.01,
        dt_apart=True,
        steps=50_000,
        warmup=5_000,
        epochs=20,
    ),
    "image": Setting(
        d_model=512,
        d_state=64,
        n_systems=1,
        placement="post",
        dropout=0.1,
        batch_size=50,
        lr=0.01,
        steps=180_000,
        warmup=18_000,
        epochs=200,
    ),
    "pathfinder": Setting(
        d_model=256,
        d_state=64,
        placement="pre",
        batch_size=64,
        lr=0.004,
        steps=500_000,
        warmup=50_000,
        epochs=200,
    ),
    "path-x": Setting(
        d_model=256,
        d_state=64,
        placement="pre",
        dt_range=(1e-4, 1e-1),
        batch_size=16,
        lr=0.001,
        steps=500_000,
        warmup=50_000,
        epochs=50,
    ),
}

_LARGE = {task: replace(setting, d_state=64, n_systems=None) for task, setting in S4.items()}
S4D: dict[str, Setting] = {
    "listops": replace(_LARGE["listops"], d_model=128, n_layers=8, batch_size=50, steps=80_000, warmup=1_000),
    "text": replace(_LARGE["text"], warmup=1_000),
    "retrieval": replace(_LARGE["retrieval"], warmup=2_500),
    "image": replace(_LARGE["image"], norm="layer", n_systems=2, dt_apart=True, warmup=900),
    "pathfinder": replace(_LARGE["pathfinder"], weight_decay=0.03, warmup=2_500),
    "path-x": replace(_LARGE["path-x"], dynamics_lr=5e-4),
}

SETTINGS = {"s4": S4, "s4d": S4D, "h3": S4D}  # for H3 none are published: those of S4D, its layer in the place of S4D's
