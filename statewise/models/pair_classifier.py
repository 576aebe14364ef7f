"""A classifier of pairs of sequences: one encoder reads both, and the head compares their pooled features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from statewise.configuration.types import EACH_ONCE, AtLeastTwo, Count, OneOf
from statewise.errors import ConfigError, InputError
from statewise.mixers.activations import ACTIVATIONS
from statewise.mixers.projection import Linear
from statewise.models.classifier import require_names
from statewise.models.encoder import SequenceModel, SequenceModelConfig, SequenceState


@dataclass(frozen=True, kw_only=True)
class PairClassifierConfig(SequenceModelConfig):
    """A classifier of pairs. The other fields are those of ``SequenceModelConfig``; a pooling is needed.

    classes:    their names, in the order of the logits; (): not known
    d_hidden:   width of the head's hidden layer; None: d_model
    activation: of that layer
    """

    n_classes: AtLeastTwo
    classes: Annotated[tuple[str, ...], EACH_ONCE] = ()
    d_hidden: Count | None = None
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "gelu"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_names("PairClassifierConfig", self.classes, self.n_classes)
        if self.pooling is None:
            raise ConfigError(
                'PairClassifierConfig.pooling=None leaves nothing of a sequence to compare; use "mean", "last" or '
                '"attention"'
            )

    @property
    def n_outputs(self) -> int:
        return self.n_classes

    def build(self) -> PairClassifier:
        """The model, its parameters drawn from torch's global generator."""
        return PairClassifier(self)


class PairHead(Linear):
    """W f(V [u, v, u - v, u * v] + b) + c, for u and v in the rows 2 i and 2 i + 1: (2 n, d_model) -> (n, n_classes).

    ``hidden`` is V and b; the module's own weight and bias are W and c.

    Source:  Mou et al. 2016, arXiv:1512.08422, sec. 3.2 (the three matchings); of LRA's retrieval: Xiong et al. 2021
             (Nystromformer), and the retrieval decoder of S4's code with ``nli: true``.
    """

    def __init__(self, d_model: int, d_hidden: int, n_classes: int, activation: str) -> None:
        super().__init__(d_hidden, n_classes)
        self.hidden = Linear(4 * d_model, d_hidden)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        u, v = x[0::2], x[1::2]
        return super().forward(self.activation(self.hidden(torch.cat([u, v, u - v, u * v], -1))))


class PairClassifier(SequenceModel):
    """x -> logits (n_pairs, n_classes); rows 2 i and 2 i + 1 of x are the two sequences of pair i.

    Shapes:  x: (2 n_pairs, length) tokens, or (2 n_pairs, length, d_input); lengths: (2 n_pairs,), of each row. Else,
             and for the state, as a classifier of 2 n_pairs rows: you can read both sequences in chunks.
    Errors:  InputError for an odd number of rows, and as :class:`~statewise.models.encoder.SequenceModel`.

    >>> import torch, statewise as sw
    >>> layers = (sw.Mamba2Config(d_state=8, d_head=8),)
    >>> model = PairClassifierConfig(n_classes=2, vocab_size=98, d_model=16, layers=layers).build()
    >>> logits, _ = model(torch.randint(98, (6, 40)), lengths=torch.tensor([40, 12, 7, 40, 1, 30]))
    >>> logits.shape
    torch.Size([3, 2])
    """

    config: PairClassifierConfig
    head: PairHead

    def _build_head(self) -> PairHead:
        config = self.config
        return PairHead(config.d_model, config.d_hidden or config.d_model, config.n_classes, config.activation)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.head.hidden.reset_parameters()

    def forward(
        self,
        x: Tensor,
        state: SequenceState | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, SequenceState | None]:
        if isinstance(x, Tensor) and x.ndim > 1 and x.shape[0] % 2:
            raise InputError(
                f"x has {x.shape[0]} rows, an odd number; the two sequences of a pair are rows 2 i and 2 i + 1"
            )
        return super().forward(x, state, lengths=lengths, starts=starts)
