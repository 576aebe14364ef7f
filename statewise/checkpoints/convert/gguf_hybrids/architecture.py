"""An architecture of llama.cpp as data: its keys by the fields of a family of ``convert.hybrids``, whose config is
ours.

Reading and writing are made of the same description. What is written is read again: it is the same model, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, same
from statewise.checkpoints.convert.fields import require_layers
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.gguf_layers import (
    attention,
    experts,
    gated_convolution,
    kimi_delta,
    latent_attention,
    mamba,
    mamba2,
    mlp,
    norm,
)
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.checkpoints.convert.hybrids import family_of
from statewise.checkpoints.convert.hybrids.canonical import essential, explicit
from statewise.checkpoints.convert.hybrids.family import Family
from statewise.checkpoints.convert.layer_tables import Table
from statewise.checkpoints.differences import differences
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.gated_convolution import GatedConvolutionConfig
from statewise.mixers.kimi_delta_attention import KDAConfig
from statewise.mixers.latent_attention import LatentAttentionConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.parallel import ParallelMixersConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
NO_EXPERTS = ("expert_count", "expert_used_count")  # where they are 0, as llama.cpp's converter has it for dense models
IDLE = ("context_length", "vocab_size")  # keys that say nothing about what is computed
CONTEXT_LENGTH = 2**20  # there is no bound
Shapes = Mapping[str, tuple[int, ...]]
Folded = tuple[LanguageModelConfig, Mapping[str, Tensor]]

TABLES: dict[type, Table] = {
    AttentionConfig: attention,
    GatedConvolutionConfig: gated_convolution,
    KDAConfig: kimi_delta,
    LatentAttentionConfig: latent_attention,
    Mamba2Config: mamba2,
    MambaConfig: mamba,
    MLPConfig: mlp,
    MoEConfig: experts,
}


@dataclass(frozen=True)
class Key:
    """A key that says one field: an integer of at least 1 or, ``real``, a number above 0.

    default: of files without the key; Ellipsis: it has to be there. It is not written
    """

    field: str
    real: bool = False
    default: Any = ...

    def read(self, values: Values, key: str) -> Any:
        default = None if self.default is ... else self.default
        if default is None and self.default is None and not values.has(key):
            return None
        return values.positive(key, default) if self.real else values.count(key, default)


def count(field: str, default: Any = ...) -> Key:
    return Key(field, False, default)


def number(field: str, default: Any = ...) -> Key:
    return Key(field, True, default)


def nothing(*_: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One ``general.architecture``.

    family:   the model_type of ``convert.hybrids`` whose fields its keys say
    keys:     those that say one field each
    read:     (the values, the shapes of the tensors, the fields so far) -> further fields
    write:    (the fields, our config) -> further keys
    fixed:    fields that are the same in all files
    idle:     keys that say nothing about what is computed
    only:     keys that have this value wherever they are there
    final:    the name of the last norm
    second:   the name of the norm before an MLP that follows a mixer
    offset:   the weights of our norms are stored less 1
    tables:   of mixers and MLPs, where they are not those of ``TABLES``
    warns:    (config, tensors) -> what a user has to know of the file that is written; None: nothing
    folded:   (config, tensors) -> the same model without numbers that have no key, which are multiplied into matrices
    """

    name: str
    family: str
    keys: Mapping[str, Key]
    read: Callable[[Values, Shapes, Config], Mapping[str, Any]] = nothing
    write: Callable[[Config, LanguageModelConfig], Mapping[str, Value]] = nothing
    fixed: Mapping[str, Any] = field(default_factory=dict)
    idle: tuple[str, ...] = ()
    only: Mapping[str, Value] = field(default_factory=dict)
    final: str = "output_norm.weight"
    second: str = "ffn_norm.weight"
    offset: bool = False
    tables: Mapping[type, Table] = field(default_factory=dict)
    warns: Callable[[LanguageModelConfig, Mapping[str, Tensor]], str | None] = lambda config, tensors: None
    folded: Callable[[LanguageModelConfig, Mapping[str, Tensor]], Folded] = lambda config, tensors: (config, tensors)

    @property
    def of(self) -> Family:
        found = family_of(self.family)
        assert found is not None
        return found

    def config(self, metadata: Mapping[str, Value], shapes: Shapes) -> LanguageModelConfig:
        """Our config of a file's values and of its tensors' shapes.

        Errors:  CheckpointError naming a key that is missing, unknown, or of a value that is not supported.
        """
        values = Values(self.name, self._said(metadata), (*IDLE, *self.idle, *self.only))
        for key, wanted in self.only.items():
            if values.has(key) and metadata[f"{self.name}.{key}"] != wanted:
                raise values.wrong(key, f"expected {wanted!r}")
        n_layers = values.count("block_count") - values.natural("nextn_predict_layers")
        require_layers(n_layers, f"{self.name}.block_count", shapes, "blk.")
        vocabulary, tied = shapes[EMBEDDING][0], HEAD not in shapes
        given = {"model_type": self.family, "num_hidden_layers": n_layers, "vocab_size": vocabulary, **self.fixed}
        given |= {"tie_word_embeddings": tied}
        given |= {key.field: key.read(values, name) for name, key in self.keys.items()}
        given |= self.read(values, shapes, given)
        values.require_no_more()
        return self.of.config({name: value for name, value in given.items() if value is not None})

    def _said(self, metadata: Mapping[str, Value]) -> dict[str, Value]:
        """The values but for numbers of experts that are 0, where a file may lack them."""
        may = (name for name in NO_EXPERTS if name not in self.keys or self.keys[name].default is not ...)
        none = {f"{self.name}.{name}" for name in may}
        return {
            key: value for key, value in metadata.items() if not (key in none and value == 0 and type(value) is int)
        }

    def values(self, config: LanguageModelConfig) -> dict[str, Value]:
        """The values of a model that was :attr:`folded`.

        Errors:  CheckpointError naming what the family does not have.
        """
        given = self.of.theirs(config, whole=False)  # keys say the inner width itself
        given |= given.pop("rope_parameters", None) or {}
        found: dict[str, Value] = {"context_length": CONTEXT_LENGTH, "block_count": len(config.layers)}
        for name, key in self.keys.items():
            value = given.get(key.field)
            if value is not None and value != key.default:
                found[name] = float(value) if key.real else value
        found |= self.write(given, config)
        return {f"{self.name}.{name}": value for name, value in found.items()}

    def require_same(self, config: LanguageModelConfig, values: Mapping[str, Value], shapes: Shapes) -> None:
        """CheckpointError for what a file of these values does not say as the config does."""
        again = self.config(values, shapes)
        both = (essential(explicit(each.in_full(), each.d_model)) for each in (again, config))
        for difference in differences(*both):
            raise CheckpointError(f"GGUF's {self.name} does not have this model: {difference}")

    def entries(self, config: LanguageModelConfig) -> list[Entry]:
        table = [same(EMBEDDING, "embedding.weight"), norm(self.final, "norm", offset=self.offset)]
        if not config.tie_embeddings:
            table.append(same(HEAD, "head.weight"))
        for i, block in enumerate(config.blocks):
            table += self._layer(block, f"blk.{i}.", f"layers.{i}.", config.d_model)
        return table

    def _layer(self, block: BlockConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
        table, second = list[Entry](), "attn_norm.weight"
        if block.mixer is not None:
            table.append(norm(f"{theirs}attn_norm.weight", f"{ours}mixer_norm", offset=self.offset))
            second = self.second
            mixers = [("mixer.", block.mixer)]
            if isinstance(block.mixer, ParallelMixersConfig):
                mixers = [("mixer.first.", block.mixer.first), ("mixer.second.", block.mixer.second)]
            for name, mixer in mixers:
                table += self._table(mixer)(mixer, theirs, ours + name, d_model)
        if block.mlp is not None:
            table.append(norm(theirs + second, f"{ours}mlp_norm", offset=self.offset))
            table += self._table(block.mlp)(block.mlp, theirs, f"{ours}mlp.", d_model)
        return table

    def _table(self, part: object) -> Table:
        return ({**TABLES, **self.tables})[type(part)]
