"""Tokens a second of hybrid H3 and of a Transformer, prompt and new tokens together."""
