"""Several models at once: their channels are channels of one scan, if their documents are the same."""

from statewise.kernels.batching import merged

vmap_rule = merged(
    "selective_scan",
    {"u": 2, "dt": 2, "A": 0, "B": 2, "C": 2, "h0": 1, "D": 0, "gate": 2, "dt_bias": 0},
    (2, 1, -1),
)
