"""What a family's config.json says of one of our configs: a field, a part of a layer, a kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from statewise.checkpoints.convert.entries import Entry
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.layer_tables import Table
from statewise.configuration.base import schema
from statewise.configuration.kinds import Place
from statewise.errors import CheckpointError, ConfigError, StatewiseError, excerpt, retold
from statewise.models.block import BlockConfig

UNSAID = object()  # what a field writes to say nothing


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turns what Python says of a value of a wrong kind into an error that names the field."""
    try:
        yield
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        if isinstance(error, StatewiseError):
            raise
        raise CheckpointError(f"its config: {what} of another kind than it has to be") from error


@dataclass(frozen=True)
class Field:
    """A field of theirs that says one of ours.

    default: what the library takes where the file has none
    into:    (their value, their config) -> ours; None: as it is
    back:    (our value, the config that has it, d_model) -> theirs; None: as it is. A dict is put into the group of
             fields ``theirs``, beside what is there
    theirs "" stands for several: ``into`` takes them from their config, and ``back`` gives all of them as a dict
    """

    theirs: str
    default: Any = None
    into: Callable[[Any, Config], Any] | None = None
    back: Callable[[Any, Any, int], Any] | None = None

    def read(self, given: Config) -> Any:
        """Errors:  CheckpointError for a value of another kind or length than it has to be."""
        value = given.get(self.theirs, self.default)
        if value is None and self.default is not None:
            raise CheckpointError(f"its config: {self.theirs} is null; expected a value, such as {self.default!r}")
        if self.into is None:
            return value
        with told(f"{self.theirs or 'a field'}={excerpt(value)} is"):
            return self.into(value, given)

    def written(self, value: Any, within: Any, d_model: int) -> Iterator[tuple[str, Any]]:
        value = value if self.back is None else self.back(value, within, d_model)
        value = list(value) if isinstance(value, tuple) else value
        yield from [(self.theirs, value)] if self.theirs else value.items()


@dataclass(frozen=True)
class Part:
    """A config of ours inside a block: a mixer, an MLP, or a part of one of these.

    config: its class    name: what the names of its tensors begin with, after the layer's, without the dot
    table:  of its own tensors; None: all are in the parts inside it
    fields: ours -> a field of theirs, a part, or the only value that the family has, where it is not the default
    """

    config: type
    name: str = ""
    table: Table | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def read(self, given: Config, where: str) -> Any:
        return made(self.config, self.fields, given, where)

    def fits(self, config: Any) -> bool:
        """Whether a config of ours is of these classes, inside as well."""
        inner = ((ours, part) for ours, part in self.fields.items() if isinstance(part, Part))
        return type(config) is self.config and all(part.fits(getattr(config, ours)) for ours, part in inner)

    def named(self) -> Iterator[Part]:
        """Itself, or the parts inside it where only they have a name."""
        if self.name:
            yield self
            return
        for part in self.fields.values():
            if isinstance(part, Part):
                yield from part.named()

    def entries(self, config: Any, theirs: str, ours: str, d_model: int) -> Iterator[Entry]:
        theirs = f"{theirs}{self.name}." if self.name else theirs
        if self.table is not None:
            yield from self.table(config, theirs, ours, d_model)
        for name, part in self.fields.items():
            if isinstance(part, Part):
                yield from part.entries(getattr(config, name), theirs, f"{ours}{name}.", d_model)


@dataclass(frozen=True)
class Kind:
    """One kind of block. norms: the names of the mixer's and of the MLP's; block: fields of BlockConfig that this kind
    alone has; fits: which blocks of ours are of it, where the classes do not say."""

    mixer: Part | None
    mlp: Part | None
    norms: tuple[str | None, str | None]
    block: Mapping[str, Any] = field(default_factory=dict)
    fits: Callable[[BlockConfig], bool] = lambda block: True

    def is_of(self, block: BlockConfig) -> bool:
        parts = ((self.mixer, block.mixer), (self.mlp, block.mlp))
        return all(config is None if part is None else part.fits(config) for part, config in parts) and self.fits(block)


def made(config: type, sources: Mapping[str, Any], given: Config, where: str, **more: Any) -> Any:
    """A config of ours, by what theirs says."""
    values = {ours: _read(config, ours, source, given, where) for ours, source in sources.items()}
    with retold(CheckpointError, ConfigError, where=f"{where}: "):
        return config(**more, **values)


def _read(config: type, ours: str, source: Any, given: Config, where: str) -> Any:
    if isinstance(source, Part):
        return source.read(given, where)
    if not isinstance(source, Field):
        return source
    value = source.read(given)
    with retold(CheckpointError, ConfigError, where=f"{where}: "):
        return schema(config)[ours].read(value, Place(source.theirs))


def written(sources: Mapping[str, Any], config: Any, d_model: int) -> Iterator[tuple[str, Any]]:
    """The fields of theirs that say a config of ours, and those inside it."""
    for ours, source in sources.items():
        value = getattr(config, ours)
        if isinstance(source, Part):
            yield from written(source.fields, value, d_model)
        elif isinstance(source, Field):
            yield from source.written(value, config, d_model)
