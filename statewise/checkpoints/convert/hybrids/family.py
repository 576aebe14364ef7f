"""A family of models as data: how their config.json says what ours says, and which of their tensors is which of ours.

Reading and writing are made of the same description. What is written is read again: it is the same model, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert.entries import (
    Entry,
    affine,
    ends,
    prefix_in,
    read_entries,
    require_shape,
    require_tensor,
    write_entries,
)
from statewise.checkpoints.convert.fields import PLAIN, one_name, require, require_layers
from statewise.checkpoints.convert.formats import Config, Tensors
from statewise.checkpoints.convert.hybrids.canonical import essential, explicit
from statewise.checkpoints.convert.hybrids.part import UNSAID as UNSAID
from statewise.checkpoints.convert.hybrids.part import Field as Field
from statewise.checkpoints.convert.hybrids.part import Kind as Kind
from statewise.checkpoints.convert.hybrids.part import Part as Part
from statewise.checkpoints.convert.hybrids.part import made, told, written
from statewise.checkpoints.convert.layer_tables import in_memory
from statewise.checkpoints.differences import differences
from statewise.checkpoints.empty import expected_shapes
from statewise.errors import CheckpointError
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig

HEAD, LAYERS = "lm_head.weight", "num_hidden_layers"
UNKNOWN_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # which the library would guess


@dataclass(frozen=True, kw_only=True)
class Family:
    """One ``model_type`` of transformers.

    prefix:     of all names but the head's; files of the inner model alone lack it
    sizes:      vocab_size and hidden_size, as that library has them where a file does not    norm_eps: of all norms
    model:      ours -> as the fields of a part: more of LanguageModelConfig, but for its layers, or in place of these
    block:      the same of our BlockConfig, but for its parts
    kinds:      (their config) -> which of ``blocks`` each layer is    kinds_back: the way back, as fields of theirs
    required:   theirs -> the only value that is supported, where a file has the field
    written:    further fields of theirs that are always written
    between:    (our config, what the names of layers begin with) -> entries of tensors that several layers share
    left_out:   what names begin with of tensors that the model does without, such as a head for the token after next
    spellings:  parts of names that files may have in place of others: theirs -> as it is here
    aliases:    other names of fields, as that library takes them: alias -> field
    """

    model_type: str
    architecture: str
    prefix: str = "model."
    embedding: str = "embed_tokens.weight"
    layers: str = "layers"
    norm: str = "norm"
    sizes: tuple[int, int]
    norm_eps: Field
    model: Mapping[str, Any] = field(default_factory=dict)
    block: Mapping[str, Any] = field(default_factory=dict)
    kinds: Callable[[Config], Sequence[str]]
    kinds_back: Callable[[Sequence[str]], Mapping[str, Any]]
    blocks: Mapping[str, Kind]
    required: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    spellings: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    between: Callable[[LanguageModelConfig, str], list[Entry]] = lambda config, layers: []

    @property
    def where(self) -> str:
        return f"transformers' {self.model_type} config"

    @property
    def of_model(self) -> Mapping[str, Any]:
        """The fields of our LanguageModelConfig, but for its layers."""
        vocab_size, d_model = self.sizes
        return {
            "vocab_size": Field("vocab_size", vocab_size),
            "d_model": Field("hidden_size", d_model),
            "tie_embeddings": Field("tie_word_embeddings", False),
            "norm_eps": self.norm_eps,
            **self.model,
        }

    def of_block(self, kind: Kind) -> Mapping[str, Any]:
        """The fields of our BlockConfig."""
        return {"norm_eps": self.norm_eps, **self.block, **kind.block, "mixer": kind.mixer, "mlp": kind.mlp}

    def config(self, given: Config) -> LanguageModelConfig:
        """Our config of the same model.

        Errors:  CheckpointError for a value that is not supported.
        """
        where, given = self.where, self.named(given)
        require(given, {**PLAIN, **self.required}, where)
        names = self.kinds_of(given)
        unknown = next((name for name in names if name not in self.blocks), None)
        if unknown is not None:
            raise CheckpointError(f"{where}: a layer of kind {unknown!r}; known: {', '.join(self.blocks)}")
        blocks = {
            name: made(BlockConfig, self.of_block(self.blocks[name]), given, where) for name in dict.fromkeys(names)
        }
        layers = tuple(blocks[name] for name in names)
        ours: LanguageModelConfig = made(LanguageModelConfig, self.of_model, given, where, layers=layers)
        return ours

    def read(self, given: Config, tensors: Tensors) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
        """The model of a ``config.json`` and its tensors. A tied head may be there or not.

        Errors:  CheckpointError for a value that is not supported, and for a tensor that is missing, left over, or of
                 a wrong shape.
        """
        where = f"the {self.model_type} checkpoint"
        tensors = self.named_tensors({n: t for n, t in tensors.items() if not n.startswith(self.left_out)}, where)
        names = frozenset(tensors)
        prefix = prefix_in(self.prefix, self.embedding, names)
        require_tensor(prefix + self.embedding, tensors, where)
        given = self.named(given)
        kinds = self.kinds_of(given)
        require_layers(len(kinds), LAYERS, tensors, f"{prefix}{self.layers}.")
        ours = self.config(given)
        shape = (ours.vocab_size, ours.d_model)  # before a model of these sizes is built
        require_shape(f"{where}: {prefix}{self.embedding}", tensors[prefix + self.embedding], shape)
        return ours, read_entries(self.entries(ours, names, kinds), tensors, expected_shapes(ours), where=where)

    def named(self, given: Config) -> Config:
        """Their config with one name for each field.

        Errors:  CheckpointError where two names of one field say different things.
        """
        return one_name(given, self.aliases, self.where)

    def named_tensors(self, tensors: Tensors, where: str) -> dict[str, Tensor]:
        """Their tensors with one name for each, those of a file as they are here.

        Errors:  CheckpointError where two names of one tensor are there.
        """
        found: dict[str, Tensor] = {}
        spelled: dict[str, str] = {}
        for name, tensor in tensors.items():
            here = self.spelled(name)
            if here in found:
                raise CheckpointError(f"{where}: {spelled[here]} and {name} are two names of one tensor; remove one")
            found[here], spelled[here] = tensor, name
        return found

    def kinds_of(self, given: Config) -> list[str]:
        """Which of ``blocks`` each layer is, by their config.

        Errors:  CheckpointError for fields of a wrong kind.
        """
        with told("a field that says the kinds of the layers is"):
            return list(self.kinds(given))

    def spelled(self, name: str) -> str:
        """A name of a file as it is here, but for the dot before the first part."""
        name = f".{name}"
        for theirs, here in self.spellings.items():
            name = name.replace(theirs, here)
        return name.removeprefix(".")

    def entries(
        self,
        config: LanguageModelConfig,
        names: frozenset[str] | None = None,
        kinds: Sequence[str | None] | None = None,
    ) -> list[Entry]:
        """The table of a model. names: of a file's tensors, kinds: of its layers; None: for one that is written."""
        prefix = prefix_in(self.prefix, self.embedding, names)
        held = names is not None and HEAD in names
        table = ends(prefix + self.embedding, HEAD, tied=config.tie_embeddings, held=held)
        table += affine(prefix + self.norm, "norm", bias=config.norm == "layer")
        for i, (block, kind) in enumerate(zip(config.blocks, kinds or [None] * len(config.layers), strict=True)):
            table += self.layer_entries(block, f"{prefix}{self.layers}.{i}.", f"layers.{i}.", config.d_model, kind)
        table += self.between(config, f"{prefix}{self.layers}.")
        return table if names is None else [in_memory(entry, names) for entry in table]

    def layer_entries(
        self, block: BlockConfig, theirs: str, ours: str, d_model: int, name: str | None = None
    ) -> list[Entry]:
        """The table of one layer. name: of its kind; None: the first that it is of."""
        kind = self.blocks[self._kind_of(block, "the layer") if name is None else name]
        table: list[Entry] = []
        parts = (("mixer", kind.mixer, block.mixer), ("mlp", kind.mlp, block.mlp))
        for (name, part, config), norm in zip(parts, kind.norms):
            if part is not None and config is not None:
                table += affine(theirs + norm, f"{ours}{name}_norm", bias=block.norm == "layer") if norm else []
                table += part.entries(config, theirs, f"{ours}{name}.", d_model)
        return table

    def write(self, config: LanguageModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What ``AutoModelForCausalLM.from_pretrained`` reads."""
        return self.theirs(config), write_entries(self.entries(config), tensors)

    def theirs(self, config: LanguageModelConfig, *, whole: bool = True) -> dict[str, Any]:
        """The config.json of the same model.

        whole: for the library, whose ``mamba_expand`` is a whole number; False: for its other fields alone

        Errors:  CheckpointError that names what the family does not have.
        """
        where, d_model = f"transformers' {self.model_type}", config.d_model
        full = explicit(config.in_full(), d_model)
        names = [self._kind_of(block, f"layers[{i}]") for i, block in enumerate(full.layers)]
        said: dict[str, Any] = {}
        _say(said, written(self.of_model, full, d_model), where)
        for name, block in zip(names, full.layers):
            _say(said, written(self.of_block(self.blocks[name]), block, d_model), where)
        _say(said, self.kinds_back(names).items(), where)
        head = {"architectures": [self.architecture], "model_type": self.model_type, LAYERS: len(names)}
        theirs = {**head, **UNKNOWN_TOKENS, **self.written, **said}
        if whole and isinstance(expand := theirs.get("mamba_expand"), float):
            d_inner = (
                f"the inner width of Mamba-2 is {expand * d_model:g}, which is not a multiple of d_model={d_model}"
            )
            raise CheckpointError(f"{where} does not have this model: {d_inner}")
        again = explicit(self.config(theirs).in_full(), d_model)
        for difference in differences(essential(again), essential(full)):
            raise CheckpointError(f"{where} does not have this model: {difference}")
        return theirs

    def _kind_of(self, block: BlockConfig, what: str) -> str:
        found = next((name for name, kind in self.blocks.items() if kind.is_of(block)), None)
        if found is None:
            parts = " and ".join(type(part).__name__ for part in (block.mixer, block.mlp) if part is not None)
            raise CheckpointError(f"transformers' {self.model_type} has no layer of {parts}, as {what} is")
        return found


def _say(said: dict[str, Any], fields: Any, where: str) -> None:
    """Adds fields of theirs. Errors: CheckpointError where one is there already with another value."""
    for name, value in fields:
        if value is UNSAID:
            continue
        if isinstance(value, dict) and isinstance(said.get(name), dict):
            value = {**said[name], **value}
        elif said.setdefault(name, value) != value:
            raise CheckpointError(
                f"{where} has one {name} for all layers, and this model has {said[name]!r} and {value!r}"
            )
        said[name] = value
