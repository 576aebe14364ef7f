"""To be replaced by the fast form: the definition, under the final signature."""

from statewise.kernels.fft_convolution.reference import fft_convolution_reference
from statewise.kernels.fft_convolution.reference import fft_convolution_reference as fft_convolution

__all__ = ["fft_convolution", "fft_convolution_reference"]
