"""Several models at once: their channels are channels of one convolution."""

from statewise.kernels.batching import merged

vmap_rule = merged("fft_convolution", {"u": 2, "impulse_response": 0, "history": 2}, 2)
