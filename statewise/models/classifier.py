"""A classifier of sequences: of numbers or tokens, whole or step by step, ragged, read at once or in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from statewise.configuration.types import EACH_ONCE, AtLeastTwo
from statewise.errors import ConfigError
from statewise.models.encoder import SequenceModel, SequenceModelConfig


@dataclass(frozen=True, kw_only=True)
class SequenceClassifierConfig(SequenceModelConfig):
    """A classifier. ``layers`` holds blocks or bare mixer configs; the other fields are in ``SequenceModelConfig``.

    classes: the names of the classes, in the order of the logits; (): not known
    """

    n_classes: AtLeastTwo
    classes: Annotated[tuple[str, ...], EACH_ONCE] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        require_names(type(self).__name__, self.classes, self.n_classes)

    @property
    def n_outputs(self) -> int:
        return self.n_classes

    def build(self) -> SequenceClassifier:
        """The model, its parameters drawn from torch's global generator."""
        return SequenceClassifier(self)


class SequenceClassifier(SequenceModel):
    """x -> logits (batch, n_classes), or (batch, length, n_classes) without pooling; and the state if one was given.

    If you read a long signal in chunks and carry the state, the last logits are those of the whole signal.

    >>> import torch, statewise as sw
    >>> from statewise.models.classifier import SequenceClassifierConfig
    >>> layers = (sw.Mamba2Config(d_state=8, d_head=8),) * 2
    >>> model = SequenceClassifierConfig(n_classes=3, d_input=1, d_model=16, layers=layers).build().eval()
    >>> signal = torch.randn(2, 100, 1)
    >>> whole, _ = model(signal)
    >>> _, state = model(signal[:, :60], model.initial_state(2))
    >>> logits, _ = model(signal[:, 60:], state)
    >>> logits.shape, torch.allclose(logits, whole, atol=1e-4)
    (torch.Size([2, 3]), True)
    """

    config: SequenceClassifierConfig


def require_names(name: str, classes: tuple[str, ...], n_classes: int) -> None:
    """Errors:  ConfigError unless a model ``name`` has a name for every class, or for none."""
    if classes and len(classes) != n_classes:
        raise ConfigError(
            f"{name}.classes has {len(classes)} names, but n_classes={n_classes}; give a name for each class"
        )
