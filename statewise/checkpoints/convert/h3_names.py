"""The three generations of names in H3's files, as one function from the last names to those of a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from statewise.checkpoints.convert.fields import count_layers

# How the published loader turns the first names into the later ones; besides, "norm" became "ln_0".
_NOW = (("s4seq.encoder.", "backbone."), ("embedding.", "backbone.embeddings.word_embeddings."))
_BEFORE = "backbone.ln_0."
_LAYER = re.compile(r"backbone\.layers\.(\d+)\.norm([12])\.(weight|bias)$")


@dataclass(frozen=True)
class Names:
    """``names("backbone.layers.0.norm1.weight")``: what a file calls that tensor.

    prefix:     "model." in what Lightning saved, else nothing
    encoder:    what the layers lie in: "backbone." or, before, "s4seq.encoder."
    norm_after: whether the layers had each norm after its branch: norm1 between mixer and MLP, norm2 at the end, and
                one before the first layer. The same norms now come before the branches, one place later.
    n_layers:   needed with ``norm_after``, where the last norm is one of a layer
    given:      the file's names without the prefix, by what each became; a file may mix the generations
    """

    prefix: str = ""
    encoder: str = "backbone."
    norm_after: bool = False
    n_layers: int = 0
    given: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[str]) -> Names:
        """The names that a file uses."""
        found = frozenset(found)
        prefix = "model." if any(name.startswith("model.") for name in found) else ""
        bare = sorted(name.removeprefix(prefix) for name in found if name.startswith(prefix))
        old = any(name.startswith("s4seq.encoder.layers.") for name in bare)
        encoder = "s4seq.encoder." if old else "backbone."
        given = {_renamed(name): name for name in bare}
        n_layers = count_layers(bare, f"{encoder}layers.", "the H3 checkpoint")
        return cls(prefix, encoder, f"{_BEFORE}weight" in given, n_layers, given)

    def __call__(self, name: str) -> str:
        if self.norm_after:
            name = self._moved(name)
        return self.prefix + self.given.get(name, self._expected(name))

    def _expected(self, name: str) -> str:
        """The name of a missing tensor, in the generation of the layers."""
        for then, now in reversed(_NOW) if self.encoder != "backbone." else ():
            if name.startswith(now):
                return then + name.removeprefix(now)
        return name

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
        return f"backbone.layers.{layer - 1}.norm2.{part}" if layer else f"{_BEFORE}{part}"


def _renamed(name: str) -> str:
    for then, now in _NOW:
        if name.startswith(then):
            name = now + name.removeprefix(then)
            break
    return re.sub(r"^backbone\.norm\.", _BEFORE, name)
