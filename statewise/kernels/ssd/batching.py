"""Several models at once: their rows are rows of one batch."""

from statewise.kernels.batching import merged

_BY_ROWS = ("x", "log_a", "B", "C", "h0", "dt", "D", "segments")
vmap_rule = merged("ssd", dict.fromkeys(_BY_ROWS, 0), (0, 0))
