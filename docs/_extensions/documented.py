"""What the reference documents: every public name, and what the public parts of the package name in theirs."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import statewise

# In the order in which somebody meets them; parts that are not named here follow
ORDER = ("data", "models", "mixers", "training", "evaluate", "predict", "generation", "decoding", "checkpoints")
ORDER += ("export", "operators", "systems", "hippo", "semiseparable", "estimation", "kernels", "native")
ORDER += ("configuration", "errors")


def homes() -> dict[str, str]:
    """Each public name, and the module that it is imported from."""
    return dict(statewise._HOME)


def parts() -> dict[str, list[str]]:
    """The parts of the package, each with the names of `statewise` that lie in it. Public parts may have none."""
    found: dict[str, list[str]] = {}
    for name, home in homes().items():
        if home == "statewise":
            found.setdefault(name, [])
        else:
            found.setdefault(home.split(".")[1], []).append(name)
    return dict(sorted(found.items(), key=lambda item: (ORDER.index(item[0]) if item[0] in ORDER else 99, item[0])))


def exported(module: ModuleType) -> list[str]:
    """What a module names: `from x import y as y`, `__all__`, or else what it defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    tree = ast.parse(Path(module.__file__ or "").read_text("utf-8"))
    found = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]
    own = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_")
    ]
    return sorted({*found, *own})


class Documented:
    """What the reference documents, under which name, by identity: a class may be known under several."""

    def __init__(self) -> None:
        self.parts = parts()
        self.names: dict[int, str] = {}
        self.extra: dict[str, list[str]] = {}
        for names in self.parts.values():
            for name in names:
                self.names[id(getattr(statewise, name))] = f"statewise.{name}"
        for part in self.parts:
            if homes().get(part) != "statewise":
                continue
            module = importlib.import_module(f"statewise.{part}")
            self.extra[part] = []
            for name in exported(module):
                value = getattr(module, name)
                if (inspect.isclass(value) or inspect.isfunction(value)) and id(value) not in self.names:
                    self.names[id(value)] = f"statewise.{part}.{name}"
                    self.extra[part].append(name)

    def find(self, target: str, home: Any) -> tuple[bool, str | None]:
        """Whether a target of a docstring exists, seen from ``home``, and the name under which it is documented."""
        for space in _spaces(home):
            found = _walk(space, target.split("."))
            if found is not None:
                value, owner, last = found
                if inspect.ismodule(value):
                    part = value.__name__.removeprefix("statewise.")
                    return True, value.__name__ if part in self.extra else None
                if id(value) in self.names:
                    return True, self.names[id(value)]
                if inspect.isclass(owner) and id(owner) in self.names and last in vars(owner) and inspect.getdoc(value):
                    return True, f"{self.names[id(owner)]}.{last}"
                return True, None
        return False, None


def _spaces(home: Any) -> Iterator[Any]:
    """Where a name is looked for: the class, the module, the packages round it, Python's own; and anywhere, in full."""
    module = inspect.getmodule(home)
    name = module.__name__ if module is not None else "statewise"
    if inspect.isclass(home):
        yield home
    elif "." in getattr(home, "__qualname__", ""):
        yield getattr(module, home.__qualname__.split(".")[0], None)
    while name:
        yield importlib.import_module(name)
        name = name.rpartition(".")[0]
    yield builtins
    yield torch.nn
    yield None


def _walk(space: Any, names: list[str]) -> tuple[Any, Any, str] | None:
    """What a dotted name is within a space, the owner of its last part, and that part. Modules are imported."""
    owner, value = None, space
    for i, name in enumerate(names):
        owner = value
        value = _part(owner, name, ".".join(names[: i + 1]))
        if value is None:
            return None
    return value, owner, names[-1]


def _part(owner: Any, name: str, path: str) -> Any:
    if owner is None or inspect.ismodule(owner):
        full = f"{owner.__name__}.{name}" if owner is not None else path
        if getattr(owner, name, None) is None:
            with contextlib.suppress(ImportError):
                return importlib.import_module(full)
    found = getattr(owner, name, None)
    return found if found is not None else getattr(owner, "__dataclass_fields__", {}).get(name)
