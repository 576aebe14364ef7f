"""The operator: a causal linear map y = M u that carries a state, h_t = A_t h_{t-1} + B_t u_t, y_t = C_t h_t."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import fields, replace
from numbers import Integral
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from statewise.errors import InputError
from statewise.kernels.exact import is_exact
from statewise.operators.documents import document_rows
from statewise.operators.masks import NO_MASKS, Masks, build_masks, mask_time
from statewise.operators.plan import EXACT, Plan, Rule, plan
from statewise.operators.state_shape import at_rest, check_state
from statewise.precision import full_precision, without_autocast

Form = Callable[[Tensor, Any, Masks], tuple[Tensor, Any]]


def check_batch(batch: Any) -> None:
    """Errors:  InputError if a state cannot have so many rows."""
    fits = isinstance(batch, (Integral, torch.SymInt)) and not isinstance(batch, bool)
    if not fits or batch < 0:
        raise InputError(f"a state needs batch as an integer of at least 0, its number of rows, got {batch!r}")


class Operator(abc.ABC):
    """A family of linear recurrences: a frozen dataclass of its coefficients that defines ``step``.

    ``step`` is the definition; every other form in ``forms`` equals it in outputs, final state and gradients
    (``tests/laws.py`` checks each). A form is a method ``form(u, state, masks) -> (y, final state)``.

    Shapes:  u: (batch, length, *channels, *trailing)  ->  y of the same shape (time-invariant families may have
             several outputs for a channel, in an axis behind it; one that ``mixes_channels`` has an axis of outputs
             instead of its inputs). The coefficients act on ``channels``; each index of the trailing axes is an
             independent copy of the system.
    """

    forms: ClassVar[tuple[str, ...]] = ("recurrent",)
    rules: ClassVar[tuple[Rule, ...]] = ()  # which form runs when; without them ``recurrent``
    exact_form: ClassVar[str] = "recurrent"  # which form runs in exact mode: one whose steps know nothing of the length
    time_varying: ClassVar[tuple[str, ...]] = ()
    mixes_channels: ClassVar[bool] = False  # an output depends on the inputs of all channels

    @property
    @abc.abstractmethod
    def channels(self) -> tuple[int, ...]:
        """The sizes of the axes of u that the coefficients act on."""

    @abc.abstractmethod
    def step(self, u: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One step in time: u (batch, *channels, *trailing); the coefficients without their time axis."""

    @abc.abstractmethod
    def state_shape(self, trailing: tuple[int, ...] = ()) -> Any:
        """The state with a :func:`~statewise.operators.state_shape.leaf` instead of each tensor."""

    @abc.abstractmethod
    def _check(self, u: Tensor) -> None:
        """Raise InputError unless the coefficients fit one another and u."""

    @abc.abstractmethod
    def _like(self) -> Tensor:
        """A coefficient, for its device and dtype."""

    def initial_state(
        self,
        batch: int,
        *,
        trailing: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Any:
        """The state of a system at rest. ``device`` and ``dtype`` default to those of the coefficients, float32 or
        wider.
        """
        check_batch(batch)
        like = self._like()
        device = like.device if device is None else device
        dtype = full_precision(like.dtype if dtype is None else dtype)
        return at_rest(self.state_shape(trailing), batch, device=device, dtype=dtype)

    def __call__(
        self,
        u: Tensor,
        state: Any = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        form: str | None = None,
    ) -> tuple[Tensor, Any]:
        """y and, if a state was given, the state after the last real step of each row.

        ``lengths`` (batch,): rows are right-padded and end there; padded outputs are zero. ``starts`` (batch,
        length): a document begins, and nothing passes it. ``form`` forces one of ``forms``; without it
        the family's ``rules`` pick (``statewise.explain`` says which and why). Autocast changes
        nothing: a recurrence is computed in float32 or wider.
        """
        self.check(u, state)
        if form is not None and form not in self.forms:
            raise InputError(f"{type(self).__name__} has no form {form!r}; its forms are {', '.join(self.forms)}")
        with without_autocast(u.device):
            return self.apply(u, state, build_masks(u, lengths, starts), form)

    def check(self, u: Any, state: Any = None) -> None:
        """Errors:  InputError unless the coefficients fit each other, u and the state."""
        name = type(self).__name__
        if not isinstance(u, Tensor):
            raise InputError(f"{name} needs u as a tensor, got {type(u).__name__}; use torch.as_tensor(u)")
        self._check(u)
        if u.device != self._like().device or u.layout != torch.strided:
            raise InputError(
                f"{name} needs u on {self._like().device}, where its coefficients are, and {torch.strided}; "
                f"got {u.device}, {u.layout}"
            )
        if state is not None:
            check_state(name, state, self.state_shape(self._trailing(u)), u.shape[0], u.device)

    def apply(
        self, u: Tensor, state: Any = None, masks: Masks = NO_MASKS, form: str | Form | None = None
    ) -> tuple[Tensor, Any]:
        """The call for arguments that were checked before, such as a mixer's.

        ``form`` may also be a function of u, the state and the masks, like the forms, that computes more than they do.
        """
        op, u = self, mask_time(u, masks.valid)
        if masks.valid is not None:
            op = self._mask(masks.valid)
        if state is not None and masks.starts is not None and u.shape[1]:
            # a row that begins here forgets even a state that holds NaN, which no mask multiplies away
            state = choose_rows(masks.starts[:, 0], pytree.tree_map(torch.zeros_like, state), state)
        if form is None:
            form = self._plan(u).form
        y, final = (getattr(op, form) if isinstance(form, str) else form)(u, state, masks)
        return mask_time(y, masks.valid), None if state is None else final

    def _plan(self, u: Tensor) -> Plan:
        """The form for this call, and why."""
        if is_exact():
            return Plan(self.exact_form, EXACT)
        return plan(self.rules, length=u.shape[1], n_taps=self._n_taps())

    def _why(self, chosen: Plan, u: Tensor, state: Any) -> str:
        """The reason for the form, as this call has it."""
        return chosen.reason

    def __getitem__(self, times: slice) -> Any:
        """The operator over those times: ``op[:t]`` then ``op[t:]`` is ``op``. Time-invariant ones are unchanged."""
        if not isinstance(times, slice) or times.step not in (None, 1):
            raise InputError(f"an operator is sliced in time by op[t0:t1], got {times!r}")
        return replace(self, **{name: getattr(self, name)[:, times] for name in self.time_varying})  # type: ignore[type-var]

    def prepare(self) -> Self:
        """The same operator, detached, for decoding. Families that compute more from their coefficients keep the
        result.
        """
        return replace(self, **{name: m.detach() for name, m in self._tensors().items()})  # type: ignore[type-var]

    def _tensors(self) -> dict[str, Tensor]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {name: m for name, m in values.items() if isinstance(m, Tensor)}

    def recurrent(self, u: Tensor, state: Any = None, masks: Masks = NO_MASKS) -> tuple[Tensor, Any]:
        """``step`` folded over time. It unbinds, because indexing h[:, t] makes the backward pass quadratic."""
        once = {name: m for name, m in self._tensors().items() if name not in self.time_varying}
        narrow = {name: m for name, m in once.items() if m.dtype in (torch.float16, torch.bfloat16)}
        if narrow:  # their gradients are sums over all steps, which a half-precision number cannot hold
            self = self._at({name: m.to(full_precision(m.dtype)) for name, m in narrow.items()})
        rest = self.initial_state(u.shape[0], trailing=self._trailing(u), device=u.device, dtype=self._state_dtype(u))
        state = rest if state is None else state
        coefficients = [getattr(self, name).unbind(1) for name in self.time_varying]
        outputs = []
        for t, u_t in enumerate(u.unbind(1)):
            now = self._at({name: c[t] for name, c in zip(self.time_varying, coefficients)})
            if masks.starts is not None:
                state = choose_rows(masks.starts[:, t], rest, state)
            y, following = now.step(u_t, state)
            state = following if masks.valid is None else choose_rows(masks.valid[:, t], following, state)
            outputs.append(y)
        return (torch.stack(outputs, 1) if outputs else u.new_zeros(self._output_shape(u))), state

    def _each_document(self, form: str, u: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
        """Each document as a row of its own, from rest, or from the state if it continues one."""
        batch, length = u.shape[:2]
        steps = u.reshape(batch * length, *u.shape[2:])
        y = u.new_zeros(batch * length, *self._output_shape(u)[2:])
        final = state
        for rows in document_rows(masks, batch, length):
            longest = rows.places.shape[1]
            x = steps[rows.places] if longest else u.new_zeros(len(rows.row), *u.shape[1:])[:, :0]
            x = x.masked_fill(~_spread(rows.valid, x.ndim), 0)
            before = None
            if state is not None:
                before = pytree.tree_map(
                    lambda leaf, rows=rows: torch.where(_spread(rows.continues, leaf.ndim), leaf[rows.row], 0), state
                )
            some, after = getattr(self, form)(x, before, Masks(valid=rows.valid, lengths=rows.lengths))
            y = y.index_put((rows.places[rows.valid],), some[rows.valid])
            if state is not None:
                final = pytree.tree_map(
                    lambda leaf, new, rows=rows: leaf.index_put((rows.row[rows.last],), new[rows.last]), final, after
                )
        return y.reshape(batch, length, *y.shape[1:]), final

    def _at(self, coefficients: dict[str, Tensor]) -> Any:
        """The operator of one step."""
        return replace(self, **coefficients) if coefficients else self  # type: ignore[type-var]

    def _output_shape(self, u: Tensor) -> tuple[int, ...]:
        return tuple(u.shape)

    def _n_taps(self) -> int:
        """How long the filter is, of a convolution; what its plan depends on."""
        return 0

    def matrix(self, length: int | None = None) -> Tensor:
        """The lower-triangular map of the whole sequence, y = M u: (batch, *channels, length, length).

        Column s is the response to a unit impulse at time s. Time-invariant operators need ``length`` and return
        (*channels, length, length). One that ``mixes_channels`` has (outputs, inputs) instead of ``channels``. It runs
        ``length`` copies of the system (with ``mixes_channels`` for each input), so use it to read, test and plot.
        """
        like = self._like()
        if self.time_varying:
            batch, own = getattr(self, self.time_varying[0]).shape[:2]
            if length not in (None, own):
                raise InputError(f"this operator has {own} steps; for matrix(length={length}) use op[:{length}]")
            length = own
        elif length is None:
            raise InputError("matrix(length) of a time-invariant operator needs a length")
        else:
            batch = 1
        real = like.real if like.is_complex() else like
        impulses = torch.eye(length, dtype=real.dtype, device=real.device)
        impulses = impulses.reshape(1, length, *[1] * len(self.channels), length)
        impulses = impulses.expand(batch, length, *self.channels, length)
        if self.mixes_channels:  # one input at a time
            each = torch.eye(self.channels[0], dtype=real.dtype, device=real.device)
            impulses = impulses.unsqueeze(3) * each.unsqueeze(-1)
        y, _ = self(impulses)
        matrix = y.movedim(1, -2).tril()  # an FFT leaves its rounding above the diagonal
        return matrix if self.time_varying else matrix.squeeze(0)

    def _trailing(self, u: Tensor) -> tuple[int, ...]:
        return tuple(u.shape[2 + len(self.channels) :])

    def _state_dtype(self, u: Tensor) -> torch.dtype:
        return full_precision(u.dtype, self._like().dtype)

    def _mask(self, valid: Tensor) -> Any:
        """The operator whose steps that are not real are the identity on the state."""
        return self


def check_dtypes(name: str, u: Tensor, **coefficients: Tensor) -> None:
    """Raise InputError unless u is real and floating and the coefficients floating or complex, of one dtype."""
    if not u.is_floating_point():
        raise InputError(f"{name} needs a real u of a floating-point dtype; got {u.dtype} {tuple(u.shape)}")
    dtypes = [m.dtype for m in coefficients.values()]
    if len(set(dtypes)) != 1 or not (dtypes[0].is_floating_point or dtypes[0].is_complex):
        raise InputError(
            f"{name} needs {', '.join(coefficients)} of one floating-point dtype; got {', '.join(map(str, dtypes))}"
        )


def choose_rows(condition: Tensor, yes: Any, no: Any) -> Any:
    """yes where the row's condition holds, else no, leaf by leaf."""
    return pytree.tree_map(lambda a, b: torch.where(condition.reshape(-1, *[1] * (a.ndim - 1)), a, b), yes, no)


def _spread(mask: Tensor, ndim: int) -> Tensor:
    return mask.reshape(*mask.shape, *[1] * (ndim - mask.ndim))
