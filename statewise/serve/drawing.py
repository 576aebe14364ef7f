"""The next token of each row, drawn as `generate` draws it; rows with the same options together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from statewise.generation import Sampling
from statewise.serve.job import Job


def drawn(jobs: Sequence[Job], without_token: Tensor | None) -> Iterator[tuple[Job, int, float, Tensor]]:
    """Each job with its token, the token's log-probability in the model's own distribution, and that distribution.

    without_token: (vocabulary,) bool, ids that are never drawn
    """
    alike: dict[Sampling, list[Job]] = {}
    for job in jobs:
        alike.setdefault(job.sampling, []).append(job)
    for sampling, together in alike.items():
        rows = [job.writing for job in together if job.writing is not None]
        logits = torch.cat([row.logits for row in rows if row.logits is not None])
        own = logits.log_softmax(-1)
        drawable = logits if without_token is None else logits.masked_fill(without_token, -math.inf)
        seen = torch.cat([row.seen for row in rows]) if sampling.repetition_penalty != 1 else rows[0].seen
        uniforms = torch.stack([row.uniform() for row in rows])
        tokens = sampling.draw(drawable, seen, uniforms.to(logits.device))
        chosen = own.gather(1, tokens[:, None])[:, 0]
        yield from zip(together, tokens.tolist(), chosen.tolist(), own)
