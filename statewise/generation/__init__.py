"""Generation: tokens as they come, from a prompt or from a state."""

from statewise.generation.decode import Token, generate, read
from statewise.generation.reading import Reading
from statewise.generation.sample import Sampling

__all__ = ["Reading", "Sampling", "Token", "generate", "read"]
