"""The arguments of the selective scan as one object, on their way from the function to C and back."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.pairs import as_complex
from statewise.kernels.selective_scan.reference import selective_scan_reference
from statewise.kernels.stored import refuse_unreal
from statewise.precision import as_dtype, full_precision

METHODS = ("mamba", "zoh")


class Gradients(NamedTuple):
    """Where the gradients go, in the shapes of the arguments; None for those that were not given."""

    u: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    h0: Tensor
    D: Tensor | None
    gate: Tensor | None
    dt_bias: Tensor | None


class Arguments(NamedTuple):
    """What the function takes, and in the same order the registered operator (see :meth:`registered`)."""

    u: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    h0: Tensor
    D: Tensor | None
    gate: Tensor | None
    dt_bias: Tensor | None
    segments: Tensor | None
    softplus: bool
    exact: bool

    @property
    def is_complex(self) -> bool:
        """Whether states are complex numbers: h0 then has four axes, else three."""
        return self.h0.ndim == 4

    @property
    def numbers(self) -> tuple[Tensor | None, ...]:
        """All that have a gradient, as :class:`Gradients` has them."""
        return self[:9]

    def check(self) -> None:
        """InputError unless the shapes fit, and the numbers that have to be real are."""
        u, dt, A, B, C, h0, D, gate, dt_bias, *_ = self
        b, length, d = u.shape if u.ndim == 3 else (0, 0, 0)
        g = B.shape[2] if B.ndim == 4 else 0
        n = A.shape[1] if A.ndim == 2 else 0
        like_u = u.ndim == 3 and all(m is None or m.shape == u.shape for m in (dt, gate))
        if not (like_u and g and d % g == 0 and A.shape == (d, n) and B.shape == C.shape == (b, length, g, n)):
            raise InputError(
                "selective_scan needs u, dt and gate (batch, length, d), A (d, n), B and C (batch, length, groups, n) "
                f"with groups dividing d; got u {tuple(u.shape)}, dt {tuple(dt.shape)}, "
                f"gate {None if gate is None else tuple(gate.shape)}, A {tuple(A.shape)}, B {tuple(B.shape)}, "
                f"C {tuple(C.shape)}"
            )
        pair = (2,) if any(m.is_complex() for m in (A, B, C)) else ()
        wanted = {"h0": (b, d, n, *pair), "D": (d,), "dt_bias": (d,), "segments": (b, length)}
        for name, shape in wanted.items():
            m = getattr(self, name)
            if m is not None and m.shape != shape:
                raise InputError(f"selective_scan needs {name} of shape {shape}; got {tuple(m.shape)}")
        refuse_unreal("selective_scan", u=u, dt=dt, h0=h0, D=D, gate=gate, dt_bias=dt_bias)

    def registered(self) -> Arguments:
        """As the operator takes them: the state and what is as small in full precision, and complex numbers as pairs.

        What is as long as the sequence is read as it is, if that is bfloat16: a C kernel converts it in its registers.
        """
        real = full_precision(*(m.dtype for m in self.numbers if m is not None))
        pairs = torch.complex128 if real == torch.float64 else torch.complex64

        def cast(name: str, m: Tensor | None) -> Tensor | None:
            if m is None or (name in ("u", "dt", "gate") and m.dtype == torch.bfloat16 and real == torch.float32):
                return m
            if name in "ABC" and self.is_complex:
                return torch.view_as_real(m.to(pairs).resolve_conj())
            return as_dtype(m, real)

        found: dict[str, Any] = {name: cast(name, m) for name, m in zip(Gradients._fields, self.numbers)}
        return self._replace(**found)

    def widened(self) -> Arguments:
        """u, dt and gate in the precision of the state."""
        dtype, gate = self.h0.dtype, self.gate
        return self._replace(u=self.u.to(dtype), dt=self.dt.to(dtype), gate=None if gate is None else gate.to(dtype))

    def definition(self) -> tuple[Tensor, Tensor]:
        """y and the last state by the reference, of arguments as registered."""
        u, dt, A, B, C, h0, D, gate, dt_bias, segments, softplus, exact = self
        if self.is_complex:
            A, B, C = (as_complex(m) for m in (A, B, C))
        return selective_scan_reference(
            u, dt, A, B, C, h0, D=D, gate=gate, dt_bias=dt_bias, softplus=softplus, method=METHODS[exact],
            segments=segments,
        )  # fmt: skip
