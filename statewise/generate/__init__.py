"""Generation: tokens as they come, from a prompt or from a state.

This module can be called: ``sw.generate(model, prompt, max_new_tokens=64)`` is ``generate.generate(...)``.
"""

import sys
from types import ModuleType

from statewise.generate.decode import Token, generate, read
from statewise.generate.reading import Reading
from statewise.generate.sample import Sampling

__all__ = ["Reading", "Sampling", "Token", "generate", "read"]


class _Generate(ModuleType):
    """A package and a function of the same name, whichever is imported first."""

    __call__ = staticmethod(generate)


sys.modules[__name__].__class__ = _Generate
