"""How a prompt is read, piece by piece: to continue it, to describe it by a vector, or to say how likely it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from statewise.generation.reading import N_RECENT, Reading, extend, nothing_read
from statewise.precision import full_precision
from statewise.serve.job import Job, Piece
from statewise.serve.model import ServedModel
from statewise.serve.rows import row_of, stacked


def begin_to_read(served: ServedModel, job: Job, kept: tuple[int, Reading | None]) -> None:
    """From the state that was kept after the first tokens, if there is one."""
    n, reading = kept
    if job.begin is not None and job.begin[0] >= n:
        n, reading = job.begin
    if reading is None:
        reading = nothing_read(served.model, 1, None)
        reading = reading._replace(state=served.model.with_room(reading.state, len(job.ids)))
    job.n_kept = job.n_read = n
    job.reading = reading


def read_piece(served: ServedModel, job: Job, end: int) -> None:
    """The model reads on, up to this token of the prompt."""
    begin, reading = job.n_read, job.reading
    assert reading is not None  # it has begun
    tokens = torch.from_numpy(job.ids[begin:end].astype("int64"))[None].to(served.device)
    starts = None if served.document_token is None else tokens == served.document_token
    if starts is not None and begin == 0:
        starts[:, 0] = False  # a row that begins at rest needs no telling
    if starts is not None and not bool(starts.any()):
        starts = None
    if job.embed or job.scored:
        features, state = served.reader.features(tokens, reading.state, starts=starts)
        assert state is not None  # a state was given
        if job.embed:
            total = features[0].double().sum(0)
            job.features = total if job.features is None else job.features + total
            job.reading = reading._replace(state=state)
        else:
            logits = served.reader.head(features[0])
            logits = logits.to(full_precision(logits.dtype))
            _score(job, tokens[0], torch.cat([reading.logits, logits[:-1]]), first=begin == 0)
            seen = reading.seen.scatter(1, tokens, True)
            recent = torch.cat([reading.recent, tokens], dim=1)[:, -N_RECENT:]
            job.reading = Reading(logits[-1:], state, seen, recent)
    else:
        job.reading = extend(served.reader, reading, tokens, None, starts)
    job.n_read = end


def read_together(served: ServedModel, jobs: Sequence[Job], ends: Sequence[int]) -> None:
    """As :func:`read_piece` for each, in one call of the model, which reads the weights once: for short pieces of jobs
    that are not embedded or scored."""
    lengths = torch.tensor([end - job.n_read for job, end in zip(jobs, ends)], device=served.device)
    tokens = torch.zeros(len(jobs), int(lengths.max()), dtype=torch.int64)
    readings = [job.reading for job in jobs if job.reading is not None]
    for row, (job, end) in enumerate(zip(jobs, ends)):
        tokens[row, : end - job.n_read] = torch.from_numpy(job.ids[job.n_read : end].astype("int64"))
    tokens = tokens.to(served.device)
    starts = None
    if served.document_token is not None:
        starts = tokens == served.document_token
        starts[:, 0] &= torch.tensor([job.n_read > 0 for job in jobs], device=served.device)
        starts = starts if bool(starts.any()) else None
    logits, seen, recent = (torch.cat(parts) for parts in zip(*((r.logits, r.seen, r.recent) for r in readings)))
    before = Reading(logits, stacked([reading.state for reading in readings]), seen, recent)
    ragged = None if len(set(lengths.tolist())) == 1 else lengths
    after = extend(served.reader, before, tokens, ragged, starts)
    for row, (job, end) in enumerate(zip(jobs, ends)):
        own = (leaf[row : row + 1].clone() for leaf in (after.logits, after.seen, after.recent))
        logits, seen, recent = own
        job.reading = Reading(logits, row_of(after.state, row), seen, recent)
        job.n_read = end


def _score(job: Job, tokens: Tensor, logits: Tensor, *, first: bool) -> None:
    """Notes the log-probability of each token, of which these were the logits; nothing comes before the first."""
    own = logits.log_softmax(-1)
    values: list[float | None] = list(own.gather(1, tokens[:, None])[:, 0].tolist())
    tops: list[list[tuple[int, float]]] = [[] for _ in values]
    if job.n_top:
        found = own.topk(min(job.n_top, own.shape[1]))
        tops = [list(zip(*row)) for row in zip(found.indices.tolist(), found.values.tolist())]
    if first:
        values[0], tops[0] = None, []
    job.scores += [Piece(token, "", value, top) for token, value, top in zip(tokens.tolist(), values, tops)]
