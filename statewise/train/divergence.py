"""Whether a run diverged, which is a result, or could not be trained or evaluated for another reason."""

from __future__ import annotations

from statewise.errors import InputError, NotFiniteError, TrainingError

__all__ = ["is_divergence"]


def is_divergence(error: TrainingError) -> bool:
    """Whether numbers of the run were not finite; not so where its evaluation refused what it was given.

    >>> is_divergence(TrainingError("step 3: the loss is nan"))
    True
    """
    cause = error.__cause__
    return not isinstance(cause, InputError) or isinstance(cause, NotFiniteError)
