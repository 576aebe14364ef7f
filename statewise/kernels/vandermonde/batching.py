"""Several models at once: their channels are channels of one system."""

from statewise.kernels.batching import merged

vmap_rule = merged("vandermonde", {"c": 0, "A": 0}, 0)
