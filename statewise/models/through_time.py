"""Back-propagation through time in pieces: the gradient of a whole sequence in the memory of one piece.

A state is all that passes a cut. So the sequence is read once, with nothing kept but the state at each cut; then the
pieces are read again from the last to the first, each with the gradient that the next one has for its state.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from statewise.errors import ConfigError, InputError
from statewise.models.batch_norm import BatchNorm
from statewise.operators.masks import build_masks

MOST_KEPT = 256  # states at a time and level; beyond, some are computed again
Read = Callable[[int, Any], tuple[Tensor | None, Any]]  # (number of a piece, state) -> its part of the loss, state


@dataclass
class _Run:
    read: Read
    device: torch.device
    kept: int
    around: Callable[[int], AbstractContextManager[object]]
    handed: Callable[[Any, list[Tensor | None]], list[Tensor | None]]
    total: Tensor | None = None
    after: Any = None  # the state behind the last piece
    generators: tuple[Tensor, ...] = ()  # as they are behind the last piece


def through_time(
    read: Read,
    n_pieces: int,
    state: Any,
    device: torch.device,
    *,
    kept: int = MOST_KEPT,
    around: Callable[[int], AbstractContextManager[object]] = lambda piece: nullcontext(),
    handed: Callable[[Any, list[Tensor | None]], list[Tensor | None]] = lambda state, gradient: gradient,
) -> tuple[Tensor, Any, Any]:
    """The gradients of the sum of what ``read`` gives for each piece, added to those of all leaves.

    read:   is called two or three times for each piece, with the random numbers of the first time
    kept:   how many states are kept at a time and level
    around: a context for the reading of a piece with gradients and its backward pass
    handed: (state, its gradient) -> the gradient that the piece before it gets, where another process has that

    ->  the sum, detached; the state after the last piece, detached; the gradient of ``state``, in its structure, None
        for what has none
    """
    run = _Run(read, device, max(kept, 2), around, handed)
    gradient = _back(run, 0, n_pieces, _detached(state), None)
    _restore(run.generators, device)
    total = torch.zeros((), device=device) if run.total is None else run.total
    return total, run.after, gradient


def _back(run: _Run, begin: int, end: int, state: Any, gradient: Any) -> Any:
    """The pieces from ``begin`` to ``end``, from the state before them and the gradient of the one behind them."""
    n = end - begin
    if n == 1:
        return run.handed(state, _piece(run, begin, state, gradient))
    stride = -(-n // run.kept)
    cuts = range(begin, end, stride)
    kept = _Kept(len(cuts))
    kept.put(0, (state, _captured(run.device)))
    for piece in range(begin, cuts[-1]):
        with torch.enable_grad():  # a graph to throw away: with it, layers take the path that they take below
            state = _detached(run.read(piece, _leaves(state))[1])
        if piece + 1 in cuts:
            kept.put((piece + 1 - begin) // stride, (state, _captured(run.device)))
    for i, cut in reversed(tuple(enumerate(cuts))):
        state, generators = kept.take(i)
        _restore(generators, run.device)
        gradient = _back(run, cut, min(cut + stride, end), state, gradient)
    return gradient


class _Kept:
    """A number of values of one structure, in one tensor for each of its tensors that keeps its shape.

    Many small tensors that outlive the large ones of a piece would lie in the room that these left, and each piece
    would then find room only beyond: memory that grows with the number of pieces.
    """

    def __init__(self, n: int) -> None:
        self.n, self.blocks = n, dict[int, Tensor]()
        self.values: list[tuple[list[Any], Any] | None] = [None] * n

    def put(self, i: int, value: Any) -> None:
        leaves, structure = tree_flatten(value)
        first = self.values[0]
        for k, z in enumerate(leaves):
            if not isinstance(z, Tensor) or first is None:
                continue
            if k not in self.blocks and _is_like(z, first[0][k]):  # a history grows from its first state to the second
                self.blocks[k] = z.new_empty(self.n, *z.shape)
            if k in self.blocks and _is_like(z, self.blocks[k][0]):
                leaves[k] = self.blocks[k][i].copy_(z)
        self.values[i] = leaves, structure

    def take(self, i: int) -> Any:
        found = self.values[i]
        assert found is not None
        self.values[i] = None
        return tree_unflatten(found[0], found[1])


def _is_like(a: Tensor, b: Any) -> bool:
    return isinstance(b, Tensor) and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def _piece(run: _Run, number: int, state: Any, gradient: Any) -> Any:
    state = _leaves(state)
    with run.around(number), torch.enable_grad():
        loss, after = run.read(number, state)
        if run.after is None:  # the last piece is the first to come here
            run.after, run.generators = _detached(after), _captured(run.device)
        ends, end_gradients = [], []
        if loss is not None and loss.requires_grad:
            ends.append(loss)
            end_gradients.append(torch.ones_like(loss))
        if gradient is not None:
            for out, of_it in zip(tree_flatten(after)[0], gradient, strict=True):
                if of_it is not None and out.requires_grad:
                    ends.append(out)
                    end_gradients.append(of_it)
        if ends:
            _backward(ends, end_gradients)
    if loss is not None:
        run.total = loss.detach() if run.total is None else run.total + loss.detach()
    return [leaf.grad if isinstance(leaf, Tensor) else None for leaf in tree_flatten(state)[0]]


def _backward(ends: list[Tensor], gradients: list[Tensor]) -> None:
    try:
        torch.autograd.backward(ends, gradients)
    except RuntimeError as error:
        if "through the graph a second time" not in str(error):
            raise
        raise InputError(
            "a piece's loss or state comes from a graph that another piece has gone through: compute it within the "
            "loss or the model, or detach it; some gradients were added already: set them to None before you try again"
        ) from error


def _leaves(state: Any) -> Any:
    """The same numbers, each tensor of them the beginning of a graph."""
    leaves, structure = tree_flatten(_detached(state))
    numbers = [z for z in leaves if isinstance(z, Tensor) and (z.is_floating_point() or z.is_complex())]
    for z in numbers:
        z.requires_grad_()
    return tree_unflatten(leaves, structure)


def _detached(state: Any) -> Any:
    """Without its graph, and without the rest of a piece of which it may be a view."""
    leaves, structure = tree_flatten(state)
    return tree_unflatten([_alone(z.detach()) if isinstance(z, Tensor) else z for z in leaves], structure)


def _alone(z: Tensor) -> Tensor:
    return z.clone() if z.untyped_storage().nbytes() > z.numel() * z.element_size() else z


def _captured(device: torch.device) -> tuple[Tensor, ...]:
    cpu = torch.get_rng_state()
    return (cpu, torch.cuda.get_rng_state(device)) if device.type == "cuda" else (cpu,)


def _restore(generators: tuple[Tensor, ...], device: torch.device) -> None:
    torch.set_rng_state(generators[0].clone())  # a part of a larger tensor is refused
    if len(generators) > 1:
        torch.cuda.set_rng_state(generators[1].clone(), device)


def backward_in_pieces(
    model: nn.Module,
    x: Tensor,
    loss: Callable[[Tensor, slice], Tensor | None],
    *,
    piece: int = 4096,
    state: Any = None,
    lengths: Tensor | None = None,
    starts: Tensor | None = None,
    kept: int = MOST_KEPT,
) -> tuple[Tensor, Any]:
    """Back-propagation through all of a sequence, with the memory of one piece: ``loss.backward()`` for sequences whose
    graph does not fit.

    The gradients are added to those of the parameters (and of ``state``, if it asks for one), and equal those of the
    undivided sequence, up to the rounding of sums in another order. Dropout is drawn for each piece.

    model:  a model or a mixer, ``y, state = model(x, state)``
    loss:   what the outputs y of the steps ``here`` (a slice of the time axis) add to the loss: ``lambda y, here:
            F.cross_entropy(y.mT, targets[:, here], reduction="sum") / targets.numel()``. None: nothing. A model that
            pools gives the answer so far, so only its last piece counts: ``here.stop == x.shape[1]``. It is called two
            or three times for each piece, first in the order of time and then from the last to the first, and must give
            the same each time: a loss that counts or draws would not
    kept:   how many states are kept at a time; where there are more pieces, some are read a second time to find theirs

    Shapes:  x: (batch, length, ...) or token ids (batch, length)   lengths: (batch,), starts: (batch, length) bool, as
             the model takes them   ->   the loss, detached, and the state after the sequence, detached
    Cost:    two readings and a backward pass, about 4/3 of the undivided time, for up to ``kept`` pieces; three
             readings, 5/3, up to ``kept`` squared. Memory: the graph of one piece, and twice ``kept`` states. The input
             alone grows with the length; attention without a window has a state that grows, so there the states do too.
    Errors:  InputError for a piece that is not a whole number above 0, or ``kept`` above 1, a length of 0, masks that
             do not fit, a loss of more than one number or without a gradient, what was computed outside and asks for
             gradients, and a model that reads in both directions and so has no state. ConfigError for batch norm, whose
             means are of whole sequences.
    Source:  Chen et al. 2016, arXiv:1604.06174, for the recomputation; the states take the place of its checkpoints.

    >>> from statewise import Mamba2Config
    >>> layer, x = Mamba2Config(d_state=16, d_head=8).build(16), torch.randn(1, 100, 16)
    >>> total, state = backward_in_pieces(layer, x, lambda y, here: y.square().sum(), piece=32)
    >>> layer.in_proj.weight.grad.shape
    torch.Size([100, 16])
    """
    if not isinstance(piece, Integral) or isinstance(piece, bool) or piece < 1:
        raise InputError(f"piece must be a whole number of steps above 0, got {piece!r}")
    if not isinstance(kept, Integral) or isinstance(kept, bool) or kept < 2:
        raise InputError(f"kept must be a whole number of states above 1, got {kept!r}")
    if not isinstance(x, Tensor) or x.ndim < 2 or not x.shape[1]:
        given = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"x must be (batch, length, ...) with a length above 0, got {given}")
    if x.requires_grad and not x.is_leaf:
        raise InputError(
            "x was computed from what asks for gradients, and each piece would go through that graph again; put that "
            "computation into the model, or give x.detach().requires_grad_() and send its gradient on"
        )
    if torch.is_inference_mode_enabled():
        raise InputError("backward_in_pieces has no gradients in torch.inference_mode(); call it outside")
    if not hasattr(model, "initial_state"):
        raise InputError(f"a {type(model).__name__} has no initial_state; give a model or a mixer of statewise")
    refuse_whole_batches(model, "backward_in_pieces")
    build_masks(x, lengths, starts)  # here, since below only parts of them are seen
    batch, length = x.shape[:2]
    given_state = state
    if state is None:
        state = model.initial_state(batch, device=x.device, dtype=x.dtype if x.is_floating_point() else None)
    pieces = [slice(begin, min(begin + piece, length)) for begin in range(0, length, piece)]

    def read(number: int, before: Any) -> tuple[Tensor | None, Any]:
        here = pieces[number]
        options = {}
        if lengths is not None:
            options["lengths"] = (lengths - here.start).clamp(0, here.stop - here.start)
        if starts is not None:
            options["starts"] = starts[:, here]
        y, after = model(x[:, here], before, **options)
        part = loss(y, here)
        if part is not None and (not isinstance(part, Tensor) or part.numel() != 1):
            given = f"shape {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
            raise InputError(f"loss must give a tensor of one number, or None, got {given}")
        has_gradient.append(part is not None and part.requires_grad)
        return part, after

    has_gradient: list[bool] = []
    total, after, gradient = through_time(read, len(pieces), state, x.device, kept=kept)
    if not any(has_gradient):
        raise InputError("loss gave nothing that depends on the outputs y, so there is no gradient; compute it from y")
    if given_state is not None:
        _hand_back(given_state, gradient)
    return total, after


def _hand_back(state: Any, gradient: list[Tensor | None]) -> None:
    """The gradient of a state that asks for one goes on into what it came from."""
    pairs = [
        (leaf, of_it)
        for leaf, of_it in zip(tree_flatten(state)[0], gradient, strict=True)
        if isinstance(leaf, Tensor) and leaf.requires_grad and of_it is not None
    ]
    if pairs:
        torch.autograd.backward([leaf for leaf, _ in pairs], [of_it for _, of_it in pairs])


def refuse_whole_batches(model: nn.Module, what: str) -> None:
    """Errors: ConfigError if a layer of the model normalises by the numbers of whole batches while it is trained."""
    for name, module in model.named_modules():
        if isinstance(module, (BatchNorm, nn.modules.batchnorm._BatchNorm)) and module.training:
            raise ConfigError(
                f"{what}: {name or 'the model'} is a batch norm, whose means are of whole sequences; use norm='layer'"
            )
