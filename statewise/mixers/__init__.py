"""Modules that mix information along time, all with one call: ``y, state = mixer(x, state)``."""
