"""A rehearsal: PyTorch code runs without its floating-point numbers, and the memory that it would hold is counted.

Floating tensors are FakeTensors, which have a shape, strides, a dtype and a device, and no memory. Integers and truths
are real: tokens are looked up, documents are found and lengths are compared as ever, so that the code goes the way
that it would go. Every storage counts from when it is made until nobody has it any more, autograd included, so the
peak is found in the forward and in the backward pass without a formula for any layer.

An operator of ours is followed inside: the scratch memory of its C code, or what its PyTorch path makes, counts too.
What PyTorch's own kernels and the libraries below them take for themselves does not.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from statewise import native
from statewise.kernels.registration import IMPLEMENTATIONS

ASKED = torch.ops.aten._local_scalar_dense.default  # what item, bool, int and float of a tensor come to
ALL = (torch.ops.aten.all.default, torch.ops.aten.all.dim, torch.ops.aten.all.dims)


@contextmanager
def rehearsing(device: torch.device) -> Iterator[Rehearsal]:
    """Within it nothing is computed with floating-point numbers; what tensors on ``device`` hold is counted."""
    with native.rehearsed(), Rehearsal(device) as rehearsal:
        yield rehearsal


class Rehearsal(TorchDispatchMode):
    """The count of the bytes that tensors on a device hold; :func:`rehearsing` makes one.

    live: now   peak: the most at one time

    Where the code asks for a number that is not there, its checks pass: ``all`` holds, and anything else is 0.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.live = self.peak = 0
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._sizes: dict[int, int] = {}  # of the storages that are alive

    def imagine(self, tensor: Tensor) -> Tensor:
        """The tensor on the device, without numbers if it is floating."""
        if not _is_floating(tensor):
            made = tensor.to(self.device)
        else:
            with self._fake:
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=self.device)
        self._count(made)
        return made

    def imagine_parameters(self, model: nn.Module) -> None:
        """The same for every parameter and buffer, in place, so that the model is of no other use; what was tied is."""
        made: dict[int, Any] = {}
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    if id(parameter) not in made:
                        # the old one is kept, or its id would be given to another
                        made[id(parameter)] = (
                            nn.Parameter(self.imagine(parameter.detach()), parameter.requires_grad),
                            parameter,
                        )
                    module._parameters[name] = made[id(parameter)][0]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    if id(buffer) not in made:
                        made[id(buffer)] = (self.imagine(buffer), buffer)
                    module._buffers[name] = made[id(buffer)][0]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        implementation = IMPLEMENTATIONS.get(func._schema.name)
        if implementation is not None:
            with self:
                return implementation(*args, **kwargs)
        if func is ASKED and isinstance(args[0], FakeTensor):
            return _answer(args[0])
        outputs = self._run(func, args, kwargs)
        if func in ALL:
            outputs.holds = True
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor):
                self._count(output)
        return outputs

    def _run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The outputs. A FakeTensor among the arguments makes them fake; what is made from none is, if floating."""
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        with self._fake:
            outputs = func(*args, **kwargs)
        if isinstance(outputs, Tensor) and _is_floating(outputs):
            return outputs
        return func(*args, **kwargs)

    def _count(self, tensor: Tensor) -> None:
        if tensor.device.type != self.device.type:
            return
        storage = tensor.untyped_storage()
        key, n_bytes = storage._cdata, storage.nbytes()
        before = self._sizes.get(key, 0)
        if n_bytes <= before:
            return
        if not before:
            weakref.finalize(storage, self._drop, key).atexit = False
        self._sizes[key] = n_bytes
        self.live += n_bytes - before
        self.peak = max(self.peak, self.live)

    def _drop(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


def _is_floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _answer(asked: FakeTensor) -> bool | int | float:
    if asked.dtype == torch.bool:
        return getattr(asked, "holds", False)
    return 0.0 if _is_floating(asked) else 0
