"""CUDA graphs: a call that is recorded once and then replayed, without Python between its kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UPS = 3  # calls before a recording: libraries make their workspaces, and Triton compiles, in the first ones


def record(call: Callable[[], None], warm_up: Callable[[], object], device: torch.device) -> Callable[[], None]:
    """What does all that ``call()`` does on the device, each time that it is called, with the tensors that it had.

    call:     launches kernels on fixed tensors, and reads nothing on the host
    warm_up:  uses the same kernels, and may be called any number of times before
    Memory:   what one call allocates is kept as long as what is returned.
    Errors:   as CUDA has them, for a call that waits for the device. The tensors are as ``warm_up`` left them then.
    """
    with torch.cuda.device(device):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                warm_up()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # thread_local: what another thread allocates meanwhile is its own affair
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            call()

    def replay() -> None:
        with torch.cuda.device(device):
            graph.replay()

    return replay
