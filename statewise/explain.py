"""What runs and why, of an operator or of a language model."""

from __future__ import annotations

from typing import Any

from statewise.generation.stepping import Stepping, explain_stepping
from statewise.models.language_model import LanguageModel
from statewise.operators.plan import Explanation
from statewise.operators.plan import explain as explain_operator


def explain(operator: Any, u: Any = None, state: Any = None) -> Explanation | Stepping:
    """The form that ``operator(u, state)`` runs in, or how :func:`~statewise.generate` reads tokens with a language
    model, and the reason. Print it for one line.

    Errors: InputError for anything but an operator or a language model, and as the call itself.

    >>> import torch
    >>> import statewise as sw
    >>> B = C = torch.ones(1, 512, 1, 4)
    >>> print(sw.explain(sw.SSD(-torch.ones(1, 512, 2), B, C), torch.ones(1, 512, 2, 8)))
    SSD runs as 'chunked': matrix products inside chunks, linear in length (other forms: recurrent, quadratic)
    >>> with sw.kernels.use("torch"):
    ...     print(sw.explain(sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(sw.S4DConfig(),)).build()).way)
    PyTorch
    """
    if isinstance(operator, LanguageModel) and u is None and state is None:
        return explain_stepping(operator)
    return explain_operator(operator, u, state)
