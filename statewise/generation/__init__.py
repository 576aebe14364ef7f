"""Generation: tokens as they come, from a prompt or from a state."""

from statewise.generation.decode import generate as generate
from statewise.generation.decode import read as read
from statewise.generation.reading import Reading as Reading
from statewise.generation.sample import Sampling as Sampling
from statewise.generation.token import Token as Token
