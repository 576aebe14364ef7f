"""To be replaced by the fast form: the definition, under the final signature."""

from statewise.kernels.vandermonde.reference import vandermonde_reference
from statewise.kernels.vandermonde.reference import vandermonde_reference as vandermonde

__all__ = ["vandermonde", "vandermonde_reference"]
