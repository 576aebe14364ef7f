"""A decoder's state with a memory in it: what makes one model of an encoder and a decoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from statewise.errors import InputError
from statewise.models.encoder import SequenceModel
from statewise.models.language_model import LanguageModel


def with_memory(
    model: LanguageModel | SequenceModel, memory: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None
) -> Any:
    """The state of a decoder before its first step, in which each cross-attention has read ``memory``, also one inside
    another layer, as in ``ParallelMixersConfig``.

    memory:  (batch, n_keys, d_memory), such as the ``features`` of an encoder; gradients pass to it
    lengths: (batch,), the length of each row of the memory
    starts:  (batch, n_keys) bool, where packed documents begin in it
    Cost:    of ``memory_proj`` in each of these layers.
    Errors:  InputError for a model without cross-attention, and for a memory that does not fit.

    >>> import torch, statewise as sw
    >>> layers = (sw.AttentionConfig(n_heads=2), sw.CrossAttentionConfig(n_heads=2))
    >>> decoder = sw.LanguageModelConfig(vocab_size=5, d_model=8, layers=layers).build()
    >>> logits, state = decoder(torch.tensor([[1, 2]]), with_memory(decoder, torch.randn(1, 9, 8)))
    >>> logits.shape
    torch.Size([1, 2, 5])
    """
    if not isinstance(model, (LanguageModel, SequenceModel)):
        raise InputError(f"with_memory needs a model with layers, got {type(model).__name__}")
    mixers = [block.mixer for block in model.blocks]
    if not any(mixer.reads_memory for mixer in mixers):
        raise InputError("no layer of this model reads a memory; give it a CrossAttentionConfig, or the linear one")
    if not isinstance(memory, Tensor) or memory.ndim != 3:
        got = tuple(memory.shape) if isinstance(memory, Tensor) else type(memory).__name__
        raise InputError(f"with_memory needs memory as a tensor (batch, n_keys, d_memory), got {got}")
    state = model.initial_state(memory.shape[0], device=memory.device)
    layers = zip(mixers, state.layers)
    return state._replace(layers=tuple(m.with_memory(of, memory, lengths=lengths, starts=starts) for m, of in layers))
