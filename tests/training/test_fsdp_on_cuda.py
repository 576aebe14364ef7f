"""FSDP2 around Triton's kernels, with one process: the losses of two steps are those of the plain model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hybrid_steps import hybrid, loss_of, text
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import statewise as sw
from statewise import kernels


def losses(model: sw.LanguageModel, device: str) -> list[float]:
    """Of two steps: the second one shows that the gradients reached the parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = []
    for _ in range(2):
        loss = loss_of(lambda ids: model(ids)[0], text(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def check(device: str, backend: str, path: str, folder: Path) -> None:
    with kernels.use(path):
        want = losses(hybrid(device), device)
        assert want[1] < want[0]
        dist.init_process_group(backend, store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1)
        try:
            model, mesh = hybrid(device), init_device_mesh(device, (1,))
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
            assert losses(model, device) == pytest.approx(want, rel=1e-4)
        finally:
            dist.destroy_process_group()


def test_on_the_cpu(tmp_path: Path) -> None:
    """The same test without a GPU."""
    check("cpu", "gloo", "torch", tmp_path)


@pytest.mark.cuda
def test_a_step_under_fsdp2(tmp_path: Path) -> None:
    check("cuda", "nccl", "triton", tmp_path)
