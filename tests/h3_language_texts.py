"""A small text, and the smallest setting."""

from __future__ import annotations

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while", "ships", "sail", "home", "again")
