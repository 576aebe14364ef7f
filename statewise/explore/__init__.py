"""The page of `statewise explore`, the numbers that it computes with, and the server behind it."""
