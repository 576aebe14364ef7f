"""The synthetic languages at small sizes."""

from __future__ import annotations

from typing import Any

from statewise.data.synthetic_languages import (
    LANGUAGES,
    SyntheticLanguage,
    open_synthetic_language,
)

SMALL: dict[str, dict[str, Any]] = {  # sizes at which a thousand rows are quick
    "induction-head": {},
    "associative-recall": {},
    "mqar": {"vocab_size": 64, "length": 32, "n_pairs": 5},
    "selective-copying": {"length": 100},
    "long-induction-head": {"length": 64},
}


def language(task: str, **options: Any) -> SyntheticLanguage:
    return open_synthetic_language(LANGUAGES[task](**{**SMALL[task], **options}))
