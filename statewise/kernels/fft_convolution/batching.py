"""Several models at once: their channels are channels of one convolution."""

from statewise.kernels.batching import merged

vmap_rule = merged("fft_convolution", (2, 0, 2), 2)
