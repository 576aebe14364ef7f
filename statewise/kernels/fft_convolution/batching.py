"""Several models at once: their channels are channels of one convolution."""

from statewise.kernels.batching import Rule, merged


def vmap_rule(name: str) -> Rule:
    """Of the operator of that name."""
    return merged(name, {"u": 2, "impulse_response": 0, "history": 2}, 2)
