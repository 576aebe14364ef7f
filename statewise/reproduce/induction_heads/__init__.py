"""Induction heads: trained at one length, asked at others, up to a million tokens."""
