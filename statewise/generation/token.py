"""What a stream of generation yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from statewise.errors import InputError
from statewise.generation.reading import Reading, copied


@dataclass(frozen=True, slots=True)
class Token:
    """One step of generation, for all rows. Keeping it only keeps the fields below.

    ids:               (batch,) int64, the token drawn; -1 for a row that had finished before
    log_probabilities: (batch,) float32 or wider, nats: the token's log-probability in the model's own distribution,
                       before any penalty, temperature or filter; 0 for a row that had finished before
    finished:          (batch,) bool, True once an end token or a stop string has ended the row
    text:              the text each row has gained, or None without a tokenizer. It may be empty (an incomplete
                       character, a possible beginning of a stop string) and the pieces of a row, joined, are its text
    """

    ids: Tensor
    log_probabilities: Tensor
    finished: Tensor
    text: list[str] | None
    # The stream empties it when it makes the next token; or how to read again what the token was drawn from
    _reading: list[Reading | Callable[[], Reading]] = field(repr=False, compare=False)

    @property
    def reading(self) -> Reading:
        """A copy of the Reading that the token was drawn from, while this is the stream's latest token.

        ``generate(model, state=token.reading)`` draws it again, and ``generate(model, token.ids[:, None],
        state=token.reading)`` continues after it.

        A stream keeps one Reading, not one for each token: this one is freed when the next token is made. The last
        token's stays as long as the token does. A copy, once taken, is yours. With a ``draft`` the model reads what was
        written once more for it.

        Errors:  InputError if the next token has been made.
        """
        latest = list(self._reading)
        reading = None if not latest else copied(latest[0]) if isinstance(latest[0], Reading) else latest[0]()
        if reading is None or not self._reading:  # let go meanwhile, before the next step wrote over it
            raise InputError(
                "this token's reading was freed when the next token was made; read token.reading at once, "
                "or generate again with the same seed up to this token"
            )
        return reading
