"""To be replaced by the fast form: the definition, under the final signature."""

from statewise.kernels.cauchy.reference import cauchy_reference
from statewise.kernels.cauchy.reference import cauchy_reference as cauchy

__all__ = ["cauchy", "cauchy_reference"]
