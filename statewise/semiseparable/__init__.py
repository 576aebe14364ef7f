"""Semiseparable matrices: the maps y = M x of state-space models, and of masked attention, as objects.

A lower-triangular M is N-semiseparable when every block on or below its diagonal has rank at most N. Such
matrices are those that a recurrence with a state of N numbers applies (Dao & Gu 2024, arXiv:2405.21060,
sec. 3), so a product with them takes O(T) steps and never needs their T x T entries. ``docs/math/duality.md``
walks through this package.
"""

from statewise.semiseparable.blocks import BlockSequentiallySemiseparable as BlockSequentiallySemiseparable
from statewise.semiseparable.chunks import chunk_ranks as chunk_ranks
from statewise.semiseparable.contractions import LinearSteps as LinearSteps
from statewise.semiseparable.contractions import QuadraticSteps as QuadraticSteps
from statewise.semiseparable.contractions import masked_attention_contraction as masked_attention_contraction
from statewise.semiseparable.contractions import ssm_contraction as ssm_contraction
from statewise.semiseparable.matrix import StructuredMatrix as StructuredMatrix
from statewise.semiseparable.one_semiseparable import CumulativeSum as CumulativeSum
from statewise.semiseparable.one_semiseparable import OneSemiseparable as OneSemiseparable
from statewise.semiseparable.ranks import block_ranks as block_ranks
from statewise.semiseparable.ranks import semiseparable_rank as semiseparable_rank
from statewise.semiseparable.sequentially_semiseparable import SequentiallySemiseparable as SequentiallySemiseparable
