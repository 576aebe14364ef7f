"""H3's published code on its own synthetic languages, several seeds: how often does it find the solution itself?

    git clone https://github.com/HazyResearch/safari
    python experiments/published_h3_synthetics.py safari --task induction_head --model attention --seeds 8
    python experiments/published_h3_synthetics.py safari --task assoc_recall --model h3 --seeds 8

The model, the layers and the rows are those of the checkout, its modules imported as they are; what they import of
Lightning, Hydra and torchvision for other uses is replaced by a few lines here. The loop is that of its configs:
AdamW at 5e-4 with a decay of 0.1 for all but the systems, batches of 32 with a last one of 8, timm's cosine or a
straight line after a warm-up over a tenth. A seed ends once 99.9 % of the test rows have been right for 10 epochs. All
seeds are trained side by side by vmap; that of the rows is 0, as published. Needs einops. Nothing of Statewise is used.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

TASKS: dict[str, dict[str, int]] = {  # configs/experiment/synthetics, associative recall with vocab_size_10.yaml
    "induction_head": {"vocab_size": 20, "input_seq_len": 30, "epochs": 400},
    "assoc_recall": {"vocab_size": 10, "input_seq_len": 20, "epochs": 200},
}
WIDTH, BATCH, ROWS, TEST_ROWS, LR = 32, 32, 5000, 500, 5e-4


class OptimModule(nn.Module):
    """As theirs: a parameter that says its own rate and does not decay."""

    def register(self, name: str, tensor: Tensor, lr: float | None = None, wd: float | None = 0.0) -> None:
        if lr == 0.0:
            self.register_buffer(name, tensor)
            return
        self.register_parameter(name, nn.Parameter(tensor))
        own = {key: value for key, value in (("lr", lr), ("weight_decay", wd)) if value is not None}
        getattr(self, name)._optim = own


class Nothing(nn.Identity):
    """StochasticDepth at a rate of 0."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def open_checkout(folder: Path) -> Callable[[str], Any]:
    """Makes ``src`` of the checkout importable without its packages' own imports; gives the import."""
    if not (folder / "src" / "models" / "sequence" / "simple_lm.py").exists():
        sys.exit(f"{folder} has no src/models/sequence/simple_lm.py; give a checkout of github.com/HazyResearch/safari")

    def package(name: str, **content: Any) -> None:
        module = types.ModuleType(name)
        module.__path__ = [str(folder / name.replace(".", "/"))]
        vars(module).update(content)
        sys.modules[name] = module

    for name in ("src", "src.models", "src.models.sequence", "src.models.sequence.ssm", "src.ops", "src.dataloaders"):
        package(name)
    package("src.utils", instantiate=None)
    package("src.utils.registry")
    package("src.utils.train", OptimModule=OptimModule, get_logger=lambda *_: types.SimpleNamespace(**QUIET))
    package("src.dataloaders.base", SequenceDataset=object)
    package("torchvision")
    package("torchvision.ops", StochasticDepth=Nothing)
    package("opt_einsum", contract=torch.einsum)
    return importlib.import_module


QUIET = dict.fromkeys(("info", "warning", "error"), lambda *_: None)


def build(load: Callable[[str], Any], model: str, vocab_size: int, length: int) -> nn.Module:
    module = load("src.models.sequence.simple_lm")
    if model == "attention":
        attention = {"attn_layer_idx": [0, 1], "attn_cfg": {"num_heads": 1, "dropout": 0.1}}
        built = module.SimpleLMHeadModel(WIDTH, 2, 4 * WIDTH, vocab_size, max_position_embeddings=length, **attention)
    else:
        mixer = load("src.models.sequence.h3").H3
        layer = partial(mixer, d_state=64, head_dim=1, mode="diag", measure="diag-lin", lr=min(1e-3, LR))
        module.create_mixer_cls = lambda **_: layer
        built = module.SimpleLMHeadModel(WIDTH, 2, 4 * WIDTH, vocab_size)
    assert isinstance(built, nn.Module)
    return built


def rate(task: str, step: int, steps: int) -> float:
    """cosine_warmup_timm of induction_head/base.yaml; transformers' linear schedule of associative_recall/base.yaml."""
    warmup = steps // 10
    if step < warmup:
        return 1e-6 + step * (LR - 1e-6) / warmup if task == "induction_head" else LR * step / warmup
    if task == "induction_head":
        return 0.1 * LR + 0.5 * 0.9 * LR * (1 + math.cos(math.pi * step / steps))
    return LR * (steps - step) / (steps - warmup)


class Seeds:
    """Models of several seeds side by side: their parameters in one tensor each, AdamW over all of them."""

    def __init__(self, models: dict[int, nn.Module]) -> None:
        self.seeds, self.base = list(models), next(iter(models.values()))
        named = {seed: dict(model.named_parameters()) for seed, model in models.items()}
        self.free = {name for name, p in self.base.named_parameters() if hasattr(p, "_optim")}
        stacked = {name: torch.stack([named[s][name].detach() for s in models]) for name in named[self.seeds[0]]}
        self._begin(stacked, {})

    def _begin(self, tensors: dict[str, Tensor], state: dict[str, dict[str, Tensor]]) -> None:
        self.parameters = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
        groups = [([n for n in tensors if n not in self.free], 0.1), ([n for n in tensors if n in self.free], 0.0)]
        self.optimizer = torch.optim.AdamW(
            [{"params": [self.parameters[n] for n in names], "weight_decay": wd} for names, wd in groups if names],
            lr=LR,
            betas=(0.9, 0.999),
        )
        for name, values in state.items():
            self.optimizer.state[self.parameters[name]] = values

    def keep(self, places: list[int]) -> None:
        """Goes on with these alone."""
        state = {
            name: {k: v[places].clone() if v.ndim else v for k, v in self.optimizer.state[p].items()}
            for name, p in self.parameters.items()
        }
        self.seeds = [self.seeds[i] for i in places]
        self._begin({name: p.detach()[places] for name, p in self.parameters.items()}, state)

    def logits(self, parameters: dict[str, Tensor], inputs: Tensor) -> Tensor:
        found = functional_call(self.base, parameters, (inputs,))[0].logits
        assert isinstance(found, Tensor)
        return found

    def step(self, inputs: Tensor, targets: Tensor, lr: float) -> None:
        """(seeds, batch, length) each"""

        def loss_of(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.logits(parameters, x).flatten(0, 1), y.flatten())

        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad()
        vmap(loss_of, randomness="different")(self.parameters, inputs, targets).sum().backward()
        self.optimizer.step()

    @torch.no_grad()
    def accuracy(self, inputs: Tensor, targets: Tensor) -> list[float]:
        """Of the last token."""
        self.base.eval()
        right = vmap(lambda p: (self.logits(p, inputs)[:, -1].argmax(-1) == targets[:, -1]).double().mean())
        found: list[float] = right(self.parameters).tolist()
        self.base.train()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="of github.com/HazyResearch/safari")
    parser.add_argument("--task", choices=TASKS, default="induction_head")
    parser.add_argument("--model", choices=("attention", "h3"), default="attention")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--epochs", type=int, help="by default the task's")
    parser.add_argument("--out", type=Path, help="a JSON file for what was found")
    arguments = parser.parse_args()

    load, sizes = open_checkout(arguments.checkout.resolve()), TASKS[arguments.task]
    vocab_size, epochs = sizes["vocab_size"], arguments.epochs or sizes["epochs"]
    data = load("src.dataloaders.synthetics").ICLDataModule(
        ROWS, TEST_ROWS, vocab_size, sizes["input_seq_len"], arguments.task, seed=0
    )
    data.setup()
    train, test = (data.dataset[name].tensors for name in ("train", "test"))
    models = {}
    for seed in range(arguments.seeds):
        torch.manual_seed(seed)
        models[seed] = build(load, arguments.model, vocab_size, sizes["input_seq_len"] + 2)
    orders = {seed: torch.Generator().manual_seed(1000 + seed) for seed in models}
    torch.manual_seed(12345)
    running, per_epoch = Seeds(models), -(-ROWS // BATCH)
    courses: dict[int, list[float]] = {seed: [] for seed in models}
    begun, step = time.process_time(), 0
    for epoch in range(epochs):
        rows = torch.stack([torch.randperm(ROWS, generator=orders[seed]) for seed in running.seeds])
        for batch in rows.split(BATCH, 1):
            running.step(train[0][batch], train[1][batch], rate(arguments.task, step, per_epoch * epochs))
            step += 1
        for seed, accuracy in zip(running.seeds, running.accuracy(*test)):
            courses[seed].append(accuracy)
        seen = " ".join(f"{seed}: {100 * courses[seed][-1]:.1f}" for seed in running.seeds)
        print(f"epoch {epoch + 1} of {epochs}, {time.process_time() - begun:,.0f} s: {seen}", flush=True)
        left = [i for i, seed in enumerate(running.seeds) if min([0.0, *courses[seed]][-10:]) < 0.999]
        if not left:
            break
        if len(left) < len(running.seeds):
            running.keep(left)
    print("best epoch:", " ".join(f"{100 * max(course):.1f}" for course in courses.values()))
    if arguments.out is not None:
        record = {
            "task": arguments.task,
            "model": arguments.model,
            "epochs": epochs,
            "torch": torch.__version__,
            "cpu_seconds": time.process_time() - begun,
            "best": {seed: max(course) for seed, course in courses.items()},
            "courses": courses,
        }
        arguments.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
