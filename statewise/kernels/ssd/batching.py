"""Several models at once: their rows are rows of one batch."""

from statewise.kernels.batching import merged

vmap_rule = merged("ssd", {"x": 0, "log_a": 0, "B": 0, "C": 0, "h0": 0, "segments": 0}, (0, 0))
