"""GRU and LSTM: the gated recurrent networks that state-space layers are compared with, under the same call."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from statewise.configuration.types import Count
from statewise.kernels.exact import is_exact
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.projection import Linear
from statewise.operators.documents import document_rows
from statewise.operators.folding import fold, is_any
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.precision import full_precision, rounds_products, without_autocast


class GRUState(NamedTuple):
    """hidden: (batch, d_hidden)."""

    hidden: Tensor


class LSTMState(NamedTuple):
    """hidden, cell: (batch, d_hidden)."""

    hidden: Tensor
    cell: Tensor


State = GRUState | LSTMState


@dataclass(frozen=True, kw_only=True)
class GRUConfig(MixerConfig):
    """A gated recurrent unit, with the equations and the parameters of ``torch.nn.GRU``.

    d_hidden: width of the hidden state (default d_model); if it is another, a linear map leads to d_model
    """

    d_hidden: Count | None = None

    def build(self, d_model: int) -> GRU:
        return GRU(d_model, self)


@dataclass(frozen=True, kw_only=True)
class LSTMConfig(MixerConfig):
    """A long short-term memory, with the equations and the parameters of ``torch.nn.LSTM``.

    d_hidden:    width of the hidden state and of the cell (default d_model); if it is another, a linear map leads to
                 d_model
    forget_bias: what the forget gate's two biases add up to at the start: 1 keeps what the cell holds while nothing is
                 learned yet (Jozefowicz et al. 2015)
    """

    d_hidden: Count | None = None
    forget_bias: float = 1.0

    def build(self, d_model: int) -> LSTM:
        return LSTM(d_model, self)


class GatedRecurrence(Mixer):
    """What GRU and LSTM share: one step after the other, in float32 or wider, whatever the dtype of the parameters."""

    n_gates: ClassVar[int]
    library: ClassVar[Callable[..., Any]]  # PyTorch's own loop

    def __init__(self, d_model: int, config: GRUConfig | LSTMConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.d_hidden = d_model if config.d_hidden is None else config.d_hidden
        gates = [self.d_hidden] * self.n_gates
        self.in_proj = Linear(d_model, sum(gates), parts=gates)
        self.hidden_proj = Linear(self.d_hidden, sum(gates), parts=gates)
        self.out_proj = None if self.d_hidden == d_model else Linear(self.d_hidden, d_model)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """As PyTorch draws them: uniform in +-1/sqrt(d_hidden), biases as well."""
        self._refuse_if_frozen("cannot draw its parameters again")
        bound = 1 / math.sqrt(self.d_hidden)
        for layer in (self.in_proj, self.hidden_proj, self.out_proj):
            if layer is not None:
                nn.init.uniform_(layer.weight, -bound, bound)
                nn.init.uniform_(layer.bias, -bound, bound)
        if self.out_proj is not None:
            with torch.no_grad():
                self.out_proj.weight.mul_(residual_scale)

    def mix(self, x: Tensor, state: State | None, masks: Masks) -> tuple[Tensor, State | None]:
        if x.shape[1] == 0:
            return self._end(x.new_zeros(*x.shape[:2], self.d_hidden)), state
        rest = self.initial_state(x.shape[0], device=x.device, dtype=x.dtype)
        begin = rest if state is None else type(state)(*(new.to(old.dtype) for new, old in zip(state, rest)))
        dtype = full_precision(x.dtype, *(leaf.dtype for leaf in begin))
        layers = (self.in_proj, self.hidden_proj)
        weights = [p.to(dtype) for layer in layers for p in (layer.weight, layer.bias)]
        with without_autocast(x.device):
            form = self._recurrent if is_exact() or _is_traced(x) else self._library
            hidden, end = form(x.to(dtype), [leaf.to(dtype) for leaf in begin], weights, masks)
        y = self._end(hidden.to(x.dtype))
        if state is None:
            return y, None
        return y, type(state)(*(new.to(old.dtype) for new, old in zip(end, state)))

    def _end(self, hidden: Tensor) -> Tensor:
        return hidden if self.out_proj is None else self.out_proj(hidden)

    def _recurrent(
        self, x: Tensor, begin: list[Tensor], weights: list[Tensor], masks: Masks
    ) -> tuple[Tensor, list[Tensor]]:
        """The definition, one step after the other."""
        w_in, b_in, w_hidden, b_hidden = weights
        steps = {"x": F.linear(x, w_in, b_in), "valid": masks.valid, "starts": masks.starts}
        given = {name: m for name, m in steps.items() if m is not None}

        def step(now: list[Tensor], inputs: list[Tensor], constants: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            at = dict(zip(given, inputs))
            if "starts" in at:
                now = [torch.where(at["starts"][:, None], torch.zeros_like(m), m) for m in now]
            after = self._step(at["x"], F.linear(now[0], *constants), now)
            hidden = after[0]
            if "valid" in at:
                after = [torch.where(at["valid"][:, None], new, old) for new, old in zip(after, now)]
            return after, [hidden]

        end, (hidden,) = fold(step, begin, [*given.values()], [w_hidden, b_hidden])
        return hidden, end

    def _library(
        self, x: Tensor, begin: list[Tensor], weights: list[Tensor], masks: Masks
    ) -> tuple[Tensor, list[Tensor]]:
        """The same through PyTorch's own loop, several times as fast. Documents are rows of their own there."""
        if masks.valid is None and masks.starts is None:
            y, *end = self._run(x, None, [m.unsqueeze(0) for m in begin], weights)
            return y, [m.squeeze(0) for m in end]
        starts = x.new_zeros(x.shape[:2], dtype=torch.bool) if masks.starts is None else masks.starts
        y, end = x.new_zeros(math.prod(x.shape[:2]), self.d_hidden), begin
        for rows in document_rows(masks._replace(starts=starts), *x.shape[:2]):
            if rows.places.shape[1] == 0:  # a row without steps keeps its state
                continue
            packed = pack_padded_sequence(
                x.flatten(0, 1)[rows.places], rows.lengths.cpu(), batch_first=True, enforce_sorted=False
            )
            known = [torch.where(rows.continues[:, None], m[rows.row], torch.zeros_like(m[rows.row])) for m in begin]
            known = [m[packed.sorted_indices].unsqueeze(0) for m in known]
            hidden, *after = self._run(packed.data, packed.batch_sizes, known, weights)
            hidden, _ = pad_packed_sequence(packed._replace(data=hidden), batch_first=True)
            y = y.index_put((rows.places[rows.valid],), hidden[rows.valid])
            after = [m.squeeze(0)[packed.unsorted_indices][rows.last] for m in after]
            end = [old.index_put((rows.row[rows.last],), new) for old, new in zip(end, after)]
        return y.unflatten(0, x.shape[:2]), end

    @abc.abstractmethod
    def _step(self, from_x: Tensor, from_hidden: Tensor, now: list[Tensor]) -> list[Tensor]:
        """The state after a step, of which ``from_x`` and ``from_hidden`` hold the sums of all gates."""

    def _run(
        self, x: Tensor, batch_sizes: Tensor | None, begin: list[Tensor], weights: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """All outputs and the last state: of rows, or of packed rows where their number at each step is given."""
        w_in, b_in, w_hidden, b_hidden = weights
        state = begin if len(begin) > 1 else begin[0]
        # with biases, one layer, no dropout, one direction; "training" is whether cuDNN keeps what gradients need
        learns = torch.is_grad_enabled()
        options = ([w_in, w_hidden, b_in, b_hidden], True, 1, 0.0, learns, False)
        has_gradient = learns and any(m.requires_grad for m in (x, *begin, *weights))
        with unrounded(x.device, x.dtype, has_gradient):
            if batch_sizes is None:
                found: tuple[Tensor, ...] = self.library(x, state, *options, True)  # the batch first
            else:
                found = self.library(x, batch_sizes, state, *options)
        return found


class GRU(GatedRecurrence):
    """r = σ(W_r x + U_r h), z = σ(W_z x + U_z h), n = tanh(W_n x + b + r (U_n h + c)), h' = (1 - z) n + z h.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`GRUState`, float32 or wider
    Cost:    one step after the other, 3 d_hidden (d_model + d_hidden) multiply-adds a token.
    Errors:  InputError for shapes or states that do not fit.
    Source:  Cho et al. 2014, arXiv:1406.1078, with the reset gate behind the product, as ``torch.nn.GRU`` and cuDNN.
    """

    n_gates, library = 3, staticmethod(torch.gru)

    def state_shape(self) -> GRUState:
        return GRUState(leaf(self.d_hidden))

    def _step(self, from_x: Tensor, from_hidden: Tensor, now: list[Tensor]) -> list[Tensor]:
        r, z, n = from_x.chunk(3, -1)
        r_hidden, z_hidden, n_hidden = from_hidden.chunk(3, -1)
        r, z = (r + r_hidden).sigmoid(), (z + z_hidden).sigmoid()
        n = (n + r * n_hidden).tanh()
        return [n + z * (now[0] - n)]


class LSTM(GatedRecurrence):
    """i, f, o = σ(W x + U h), g = tanh(W_g x + U_g h), c' = f c + i g, h' = o tanh(c').

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`LSTMState`, float32 or wider
    Cost:    one step after the other, 4 d_hidden (d_model + d_hidden) multiply-adds a token.
    Errors:  InputError for shapes or states that do not fit.
    Source:  Hochreiter & Schmidhuber 1997; with the forget gate of Gers et al. 2000, as ``torch.nn.LSTM``.
    """

    n_gates, library = 4, staticmethod(torch.lstm)

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        super().reset_parameters(residual_scale)
        assert isinstance(self.config, LSTMConfig)
        forget = slice(self.d_hidden, 2 * self.d_hidden)
        with torch.no_grad():
            self.in_proj.bias[forget] = self.config.forget_bias
            self.hidden_proj.bias[forget] = 0

    def state_shape(self) -> LSTMState:
        return LSTMState(leaf(self.d_hidden), leaf(self.d_hidden))

    def _step(self, from_x: Tensor, from_hidden: Tensor, now: list[Tensor]) -> list[Tensor]:
        i, f, g, o = (from_x + from_hidden).chunk(4, -1)
        cell = f.sigmoid() * now[1] + i.sigmoid() * g.tanh()
        return [o.sigmoid() * cell.tanh(), cell]


@contextmanager
def unrounded(device: torch.device, dtype: torch.dtype, has_gradient: bool) -> Iterator[None]:
    """A context in which PyTorch's loop over float32 is not rounded to TF32, unless the process asks for such products.

    cuDNN rounds by a switch of its own, which is on by default. Its adjoint reads the switch when it runs, long after
    this context. So where there will be gradients PyTorch's own kernels run, slower, whose products keep to
    ``torch.set_float32_matmul_precision`` in both directions. The switches are the process's: they are as before
    afterwards, but another thread may see them meanwhile.
    """
    if device.type != "cuda" or dtype != torch.float32 or rounds_products():
        yield
        return
    cudnn = torch.backends.cudnn
    as_they_are = {"benchmark": cudnn.benchmark, "deterministic": cudnn.deterministic}
    with cudnn.flags(enabled=cudnn.enabled and not has_gradient, allow_tf32=False, **as_they_are):
        yield


def _is_traced(x: Tensor) -> bool:
    """Whether a call is recorded or mapped, so that no look at the numbers of documents can be had."""
    if torch.compiler.is_compiling() or is_any(x.shape[1]) or x.is_meta:
        return True
    return bool(torch._C._are_functorch_transforms_active())
