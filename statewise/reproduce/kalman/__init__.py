"""Kalman's filter and what followed: whether each is right about itself, and how many digits are left of it."""
