"""The base of every mixer: a module from (x, state) to (y, state), whatever is inside."""

from __future__ import annotations

import abc
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar, final

import torch
from torch import Tensor, nn

from statewise.configuration import Config
from statewise.errors import ConfigError, InputError
from statewise.kernels.exact import is_exact, of_parameters
from statewise.kernels.exact.owner import MayBeExact, exactly
from statewise.mixers.by_steps import by_steps
from statewise.operators.base import check_batch
from statewise.operators.masks import Masks, build_masks, mask_time
from statewise.operators.recording import recording
from statewise.operators.state_shape import at_rest, check_state

ModuleT = TypeVar("ModuleT", bound=nn.Module)


_drawn: ContextVar[bool] = ContextVar("drawn", default=True)


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Within it no ``Dynamics`` draws its parameters: they come from a file, or only their shapes are of use.

    A HiPPO matrix and its eigenvalues would be computed for nothing, and of a size that a stranger has named.
    """
    token = _drawn.set(False)
    try:
        yield
    finally:
        _drawn.reset(token)


def _unless_undrawn(reset: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(reset)
    def checked(*args: Any, **kwargs: Any) -> None:
        if _drawn.get():
            with of_parameters():
                reset(*args, **kwargs)

    return checked


class Dynamics(nn.Module):
    """Parent of the parameters that set a system's time scales: A, B, dt in their stored form.

    They live in a submodule of their own, so that the optimiser can give them their own group (no weight
    decay, often a smaller rate) and so that autocast and sharding can leave them in float32.

    ``model.bfloat16()``, ``half()`` and ``to(torch.bfloat16)`` leave them in float32 too: in eight bits of mantissa two
    time scales are one, and what a state keeps of a long past is another's.

    step_sizes: the names of those of its own parameters that dt is stored as, which may have a rate of their own again
    """

    step_sizes: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "reset_parameters" in cls.__dict__:
            cls.reset_parameters = _unless_undrawn(cls.reset_parameters)  # type: ignore[attr-defined]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What ``nn.Module`` calls for every conversion, to a device or a dtype."""

        def unnarrowed(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            narrowed = found.dtype != tensor.dtype and found.is_floating_point() and found.dtype.itemsize < 4
            return tensor.to(found.device, torch.float32) if narrowed else found

        return super()._apply(unnarrowed, recurse)


class Freezable(nn.Module):
    """A module that may be frozen: an inference copy, in evaluation mode for good.

    What it computes once was computed from parameters that it shares with the module it was made from; training it,
    drawing its parameters again or loading others would change these, but not what was computed from them.
    """

    is_frozen: bool = False

    def train(self, mode: bool = True) -> Self:
        if mode:
            self._refuse_if_frozen("cannot be trained")
        return super().train(mode)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._refuse_if_frozen("cannot load parameters")
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _refuse_if_frozen(self, what: str) -> None:
        if self.is_frozen:
            raise InputError(
                f"a frozen {type(self).__name__} {what}: it shares its parameters with the one it was made from; "
                "use that one, and freeze() it again afterwards"
            )


class Layer(MayBeExact, abc.ABC):
    """Mixes information along time: a mixer, or a block around one. One call trains, prefills, resumes and decodes.

    Shapes:  x: (batch, length, d_model)   ->   y: (batch, length, d_model)
             lengths: (batch,) integer, the length of each right-padded row
             starts:  (batch, length) bool, True where a packed document begins
    State:   ``state=None`` starts from rest and returns None in its place. A state is a NamedTuple of real
             tensors, batch first; it is returned, never mutated.
    Errors:  InputError for shapes, dtypes, devices or states that do not fit.
    """

    d_model: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "forward" in vars(cls):
            raise TypeError(
                f"{cls.__name__} defines forward, which checks the call for every layer; define mix instead"
            )

    @abc.abstractmethod
    def mix(self, x: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
        """y, and behind a state the next one. All arguments fit, and x is zero where ``masks`` say that no step is."""

    def check_call(self, x: Any, state: Any) -> None:
        """Errors:  InputError unless x, and a state that is not None, fit."""
        check_input(x, self.d_model, type(self).__name__)

    @final  # type: ignore[misc]
    @exactly
    def forward(
        self,
        x: Tensor,
        state: Any = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        masks: Masks | None = None,
    ) -> tuple[Tensor, Any]:
        """``masks`` is what ``lengths`` and ``starts`` mean, from a caller in this package that has built them."""
        self.check_call(x, state)
        if masks is None:
            masks = build_masks(x, lengths, starts)
        elif not isinstance(masks, Masks) or lengths is not None or starts is not None:
            raise InputError(
                f"{type(self).__name__} takes lengths and starts, or the Masks made of them; got both"
                if isinstance(masks, Masks)
                else f"{type(self).__name__} needs Masks as masks, got {type(masks).__name__}; give lengths and starts"
            )
        x, notes, mix = mask_time(x, masks.valid), recording(), self.mix
        if not isinstance(self, Mixer):
            return mix(x, state, masks)
        if self.exact_by_steps and is_exact() and x.shape[1]:
            mix = functools.partial(by_steps, self)
        if notes is None:
            return mix(x, state, masks)
        with notes.call(self, x):
            return mix(x, state, masks)


class Mixer(Freezable, Layer):
    """A new mixer defines :meth:`mix`, the mathematics, :meth:`state_shape` and :meth:`reset_parameters`. This class
    checks the arguments of a call for all of them. Shapes, state and errors are those of a :class:`Layer`."""

    bounded_state: bool = True  # False where the state grows with the tokens read, as full attention's does
    exact_by_steps: bool = False  # True where only one step after the other is the same however a sequence is cut
    is_causal: bool = True  # False where an output depends on later inputs: then there is no state
    reads_memory: bool = False  # True where the state is another sequence that was read, as cross-attention's is
    rate: float | None = None  # how many steps of the training data one step here spans; None: it has none
    has_norm: bool = False  # True where it norms what it reads, so that its block does not
    reads_embedding: bool = False  # True where it also reads masks.embedded, what the model's embedding gave
    gives_values: bool = False  # True where it leaves its values in masks.handed
    reads_values: bool = False  # True where it reads those of the nearest layer before it that gives them
    takes_missing: bool = False  # True where a step that holds NaN, or that masks.observed leaves out, says nothing

    @abc.abstractmethod
    def state_shape(self) -> Any:
        """The state with a :func:`~statewise.operators.state_shape.leaf` instead of each tensor.

        It is not called for a mixer that has no state, such as one that reads in both directions.
        """

    def _like(self) -> Tensor:
        """The weight that reads x, for the dtype and device of x and of the state."""
        weight: Tensor = self.in_proj.weight  # type: ignore[union-attr, assignment]
        return weight

    def check_call(self, x: Any, state: Any) -> None:
        super().check_call(x, state)
        check_weight(x, self._like(), type(self).__name__)
        if state is not None:
            self.refuse_state()
            self.check_state(state, x)

    @final
    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        """The state before a sequence begins. ``device`` and ``dtype`` default to the parameters'; numbers are at least
        float32."""
        check_batch(batch)
        self.refuse_state()
        like = self._like()
        dtype = like.dtype if dtype is None else dtype
        if not dtype.is_floating_point:
            raise InputError(f"a state needs a floating-point dtype, got {dtype}; leave it out for the parameters'")
        device = like.device if device is None else device
        return at_rest(self.state_shape(), batch, device=device, dtype=torch.promote_types(dtype, torch.float32))

    def check_state(self, state: Any, x: Tensor) -> None:
        """Errors:  InputError unless a call with x can continue from this state."""
        check_state(type(self).__name__, state, self.state_shape(), x.shape[0], x.device)

    def refuse_state(self) -> None:
        """Errors:  InputError if this mixer has no state."""
        if not self.is_causal:
            raise InputError(
                f"a bidirectional {type(self).__name__} has no state: its outputs depend on inputs that are still to "
                "come; give it whole sequences, or build it with bidirectional=False"
            )

    def parts(self) -> tuple[Mixer, ...]:
        """The mixers that lie side by side in it; of most, itself."""
        return (self,)

    def with_room(self, state: Any, length: int) -> Any:
        """The same state, with memory for ``length`` more tokens if it grows with them; by default the state itself.

        Calls make the room that they need, and a growing state doubles. If you know how much you will read, this saves
        the copies.
        """
        return state

    def with_memory(self, state: Any, memory: Tensor, **masks: Tensor | None) -> Any:
        """The same state, in which each part that reads a memory has read this one; by default the state itself.

        masks: ``lengths`` and ``starts`` of the memory

        Errors:  InputError if the memory does not fit, and for a mixer with such parts that hands it to none.
        """
        if self.reads_memory:
            raise InputError(f"{type(self).__name__} has a part that reads a memory; it needs with_memory of its own")
        return state

    @abc.abstractmethod
    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """Draw the parameters again from torch's global generator.

        ``residual_scale`` multiplies the projection that writes into the residual stream.
        """

    def freeze(self) -> Mixer:
        """A mixer for inference, which computes once what does not depend on the input. By default the mixer itself.

        If there is something to compute, you get a copy, which shares the memory of all parameters and records no
        gradient for them. It is a snapshot: freeze again after more training. Once the original's parameters change,
        the copy mixes old and new ones, and is neither model.

        A mixer with nothing to compute once (attention, linear attention, Mamba and others) returns itself. So
        ``.double()`` or ``.to(device)`` on the result changes the original: use ``copy.deepcopy`` first if you want
        another mixer. A model's ``freeze`` always makes a copy.
        """
        return self


def check_weight(x: Tensor, weight: Tensor, reader: str, name: str = "x") -> None:
    """What a linear layer can read: an x on the device of its weight, in the dtype of its weight or, where autocast
    converts both, in any but float64 beside another.

    Errors:  InputError that names ``reader``, and x by ``name``.
    """
    if x.device != weight.device:
        raise InputError(f"{reader} needs {name} on {weight.device}, where its parameters are, got {x.device}")
    if x.dtype == weight.dtype:
        return
    automatic = x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)
    if automatic and x.is_floating_point() and torch.float64 not in (x.dtype, weight.dtype):
        return
    raise InputError(
        f"{reader} needs {name} in the dtype of its parameters, {weight.dtype}, got {x.dtype}; use "
        f"{name}.to({weight.dtype}), or convert the module with .to(dtype)"
    )


def check_input(x: Any, d_model: int, reader: str, name: str = "x") -> None:
    """x a tensor (batch, length, d_model).

    Errors:  InputError that names ``reader``, and x by ``name``.
    """
    if not isinstance(x, Tensor):
        raise InputError(f"{reader} needs {name} as a tensor, got {type(x).__name__}; use torch.as_tensor({name})")
    if x.ndim != 3 or x.shape[-1] != d_model:
        raise InputError(f"{reader} needs {name} of shape (batch, length, {d_model}), got {tuple(x.shape)}")
    if x.layout != torch.strided:
        raise InputError(f"{reader} needs {name} as {torch.strided}, got {x.layout}; use {name}.to_dense()")


def shared_copy(module: ModuleT) -> ModuleT:
    """A copy of the modules whose parameters and buffers share memory with the original's and record no gradient."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for buffer in module.buffers():
        memo[id(buffer)] = buffer
    return copy.deepcopy(module, memo)


def frozen_inside(mixer: Mixer, *names: str) -> Mixer:
    """``Mixer.freeze`` of a mixer that holds others, by these names."""
    frozen = {name: getattr(mixer, name).freeze() for name in names}
    if all(made is getattr(mixer, name) for name, made in frozen.items()):
        return mixer
    made = shared_copy(mixer)
    for name, inner in frozen.items():
        setattr(made, name, inner)
    made.is_frozen = True
    return made.eval()


@dataclass(frozen=True, kw_only=True)
class MixerConfig(Config):
    """A frozen description of a mixer; ``build`` makes the module for a width."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "build" in cls.__dict__:
            cls.build = _of_a_width(cls.build)  # type: ignore[assignment, method-assign]

    @abc.abstractmethod
    def build(self, d_model: int) -> Mixer: ...


def _of_a_width(build: Callable[[Any, int], Mixer]) -> Callable[[Any, int], Mixer]:
    """``MixerConfig.build``, which refuses a width that is not a count. What it draws is the same in exact mode."""

    @functools.wraps(build)
    def checked(config: Any, d_model: int) -> Mixer:
        if not isinstance(d_model, int) or isinstance(d_model, bool) or d_model < 1:
            raise ConfigError(f"{type(config).__name__}.build: d_model={d_model!r}; expected an integer of at least 1")
        with of_parameters():
            return build(config, d_model)

    return checked
