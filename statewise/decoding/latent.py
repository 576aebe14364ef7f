"""The instructions of multi-head latent attention, whose history is one vector a token: a latent, of which the keys and
values of all heads are maps, and what all keys have in common."""

# No `from __future__ import annotations`: the annotations are read when this runs
from statewise.decoding.operands import Count, Instruction, Matrix, Place, Real, Slot, instructions_of


class AppendLatent(Instruction):
    """Writes latent and shared into the history, behind its end; to be waited for before they are attended to."""

    rank: Count
    d_shared: Count
    latent: Place
    shared: Place
    history: Slot


class TransposedLinear(Instruction):
    """output = W^T input. A thread does its share of the columns of W."""

    weight: Matrix
    input: Place
    output: Place
    scaled: Place  # local, as many whole blocks as W has rows


class LatentAttention(Instruction):
    """For each head the weighted latents: softmax of scale [absorbed, shared part of the query] . [latent, shared]."""

    n_heads: Count
    rank: Count
    d_key: Count  # of each head's query, that what is absorbed was made of; the shared part is behind it
    d_shared: Count
    scale: Real  # log2(e) times that of the products
    query: Place
    absorbed: Place  # n_heads rank wide
    output: Place  # n_heads rank wide
    scratch: Place  # local, HEADS (2 rank + d_shared) wide
    history: Slot


LATENT = instructions_of(__name__)
