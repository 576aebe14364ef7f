"""Whether two answers in words are the same, and how much they share.

Source:  Rajpurkar et al. 2016, "SQuAD", arXiv:1606.05250, section 6.1.
"""

from __future__ import annotations

import re
import string
from collections import Counter


def _words(text: str) -> list[str]:
    """As SQuAD compares answers: in lower case, without punctuation and articles."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def exact_match(one: str, other: str) -> float:
    """Whether two answers are the same words.

    >>> exact_match("The U.S.", "us")
    1.0
    """
    return float(_words(one) == _words(other))


def word_f1(one: str, other: str) -> float:
    """The F1 of the words that two answers share.

    >>> word_f1("the White House", "House of Lords")
    0.4
    """
    a, b = _words(one), _words(other)
    if not a or not b:
        return float(a == b)
    shared = sum((Counter(a) & Counter(b)).values())
    return 2 * (shared / len(a)) * (shared / len(b)) / (shared / len(a) + shared / len(b)) if shared else 0.0
