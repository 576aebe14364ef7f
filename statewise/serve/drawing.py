"""The next token of each row, drawn as `generate` draws it; rows with the same options together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from statewise.generation import Sampling
from statewise.serve.job import Job


def drawn(jobs: Sequence[Job], without_token: Tensor | None) -> Iterator[tuple[Job, int, Tensor | None]]:
    """Each job with its token, and the log-probabilities (vocabulary,) of the model's own distribution if the job asks
    for them. The token is -1 for a job whose logits are not finite: the others' are what they are.

    without_token: (vocabulary,) bool, ids that are never drawn
    """
    alike: dict[tuple[Sampling, bool], list[Job]] = {}
    for job in jobs:
        alike.setdefault((job.sampling, job.n_top is None), []).append(job)
    for (sampling, plain), together in alike.items():
        rows = [job.writing for job in together if job.writing is not None]
        logits = torch.cat([row.logits for row in rows if row.logits is not None])
        finite = logits.amax(-1).isfinite()
        drawable = logits if without_token is None else logits.masked_fill(without_token, -math.inf)
        seen = torch.cat([row.seen for row in rows]) if sampling.repetition_penalty != 1 else rows[0].seen
        uniforms = torch.stack([row.uniform() for row in rows])
        tokens = sampling.draw(drawable, seen, uniforms.to(logits.device)).where(finite, -1).tolist()
        own: Iterable[Tensor | None] = [None] * len(together) if plain else logits.log_softmax(-1)
        yield from zip(together, tokens, own)
