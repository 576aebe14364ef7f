"""The three generations of names in H3's files, as one function from the last names to those of a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from statewise.checkpoints.convert.fields import count_layers

_LAYER = re.compile(r"backbone\.layers\.(\d+)\.norm([12])\.(weight|bias)$")


@dataclass(frozen=True)
class Names:
    """``names("backbone.layers.0.norm1.weight")``: what a file calls that tensor.

    prefix:     "model." in what Lightning saved, else nothing
    encoder:    what the layers lie in: "backbone." or, before, "s4seq.encoder."
    embedding:  "backbone.embeddings.word_embeddings.", or before "embedding."
    norm_after: the name of the norm before the first layer in files whose layers had each norm after its branch: norm1
                between mixer and MLP, norm2 at the end. The same norms stand before the branches now, one place on.
                None: named as they stand
    n_layers:   needed with ``norm_after``, where the last norm is one of a layer
    """

    prefix: str = ""
    encoder: str = "backbone."
    embedding: str = "backbone.embeddings.word_embeddings."
    norm_after: str | None = None
    n_layers: int = 0

    @classmethod
    def of(cls, found: Iterable[str]) -> Names:
        """The names that a file uses."""
        found = frozenset(found)
        prefix = "model." if any(name.startswith("model.") for name in found) else ""
        bare = {name.removeprefix(prefix) for name in found if name.startswith(prefix)}
        old = any(name.startswith("s4seq.encoder.") for name in bare)
        encoder = "s4seq.encoder." if old else "backbone."
        embedding = "embedding." if "embedding.weight" in bare else cls.embedding
        first = [f"{outer}{norm}" for outer in (encoder, "backbone.") for norm in ("norm.", "ln_0.")]
        before = next((name for name in first if f"{name}weight" in bare), None)
        return cls(prefix, encoder, embedding, before, count_layers(bare, f"{encoder}layers.", "the H3 checkpoint"))

    def __call__(self, name: str) -> str:
        if self.norm_after is not None:
            name = self._moved(name)
        for now, then in (("backbone.embeddings.word_embeddings.", self.embedding), ("backbone.", self.encoder)):
            if name.startswith(now) and now != then:
                name = then + name.removeprefix(now)
                break
        return self.prefix + name

    def _moved(self, name: str) -> str:
        """The norm before a branch was the one after the branch before it."""
        last = re.match(r"backbone\.ln_f\.(weight|bias)$", name)
        if last:
            return f"backbone.layers.{self.n_layers - 1}.norm2.{last[1]}"
        found = _LAYER.match(name)
        if found is None:
            return name
        layer, which, part = int(found[1]), found[2], found[3]
        if which == "2":
            return f"backbone.layers.{layer}.norm1.{part}"
        return f"backbone.layers.{layer - 1}.norm2.{part}" if layer else f"{self.norm_after}{part}"
