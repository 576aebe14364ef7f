"""Which kernel runs on which card, and why: what `statewise info` shows of each GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch

from statewise.kernels import gpu
from statewise.kernels.backend import backend


class CardStatus(NamedTuple):
    """device: "cuda:0" and the card's name; kernel: its name; path: "Triton" or "PyTorch"; reason: why"""

    device: str
    kernel: str
    path: str
    reason: str


def on_cards(kernels: list[str]) -> list[CardStatus]:
    """For every card and each of these kernels. Nothing is checked or compiled: an answer that was kept is shown."""
    found = []
    for i in range(torch.cuda.device_count()):
        device = torch.device("cuda", i)
        name = f"{device} {torch.cuda.get_device_name(device)}"
        found += [CardStatus(name, kernel, *on_card(kernel, device)) for kernel in kernels]
    return found


def on_card(kernel: str, device: torch.device) -> tuple[str, str]:
    """The path of a kernel on a card, and the reason."""
    from statewise.kernels.gpu import canary

    if kernel not in gpu.KERNELS:
        return "PyTorch", "not written in Triton"
    reason = gpu.why_not()
    if reason is not None:
        return "PyTorch", reason
    known, fault = canary.remembered(kernel, device)
    checked = (
        "checked on this card, its answers are those of PyTorch" if known else "checks itself before its first use"
    )
    if fault is not None:
        return "PyTorch", f"refused on this card: {fault}"
    wanted = backend()
    if wanted == "triton":
        return "Triton", f"chosen by kernels.use or STATEWISE_KERNELS; {checked}"
    if wanted in ("torch", "c"):
        return "PyTorch", f'"{wanted}" was chosen by kernels.use or STATEWISE_KERNELS'
    if gpu.by_default(device):
        return "Triton", checked
    return "PyTorch", f"not yet timed on such a card, so Triton runs where kernels.use asks for it by name; {checked}"
