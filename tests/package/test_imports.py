"""Imports point one way, and `import statewise` costs next to nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import statewise

ROOT = Path(statewise.__file__).parent
# A part may import what stands on a lower line, and itself.
ORDER = (
    ("errors", "precision"),
    ("configuration",),
    ("files", "memory", "native", "semiseparable"),
    ("systems",),
    ("conventions", "hippo"),
    ("kernels",),
    ("operators",),
    ("estimation",),
    ("mixers",),
    ("models",),
    ("insight",),
    ("plots",),
    ("decoding",),
    ("checkpoints", "data"),
    ("evaluate", "generation", "export"),
    ("predict", "explain"),
    ("training",),
    ("reproduce", "explore", "integrations", "serve"),
    ("benchmark",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> Iterator[tuple[int, str]]:
    """The parts of statewise that a file imports anywhere, functions included, and the lines."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the import in full, not relative"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "statewise" and name != "statewise.__version__":
                yield node.lineno, (name.split(".") + [""])[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    assert part in LEVEL, f"{part} has no place in ORDER above: say on which line it belongs"
    for line, other in imported_parts(path):
        assert other == part or (other and LEVEL[other] < LEVEL[part]), (
            f"{path.relative_to(ROOT)}:{line} imports {other or 'the whole package'}, which does not stand below {part}"
        )


def test_every_folder_is_a_package() -> None:
    for path in FILES:
        assert (path.parent / "__init__.py").exists(), f"{path.parent} has no __init__.py"


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_is_fast_and_brings_nothing() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        heavy = run(
            "import sys, statewise; print([m for m in ('torch', 'tokenizers', 'typer', 'rich') if m in sys.modules])"
        )
        seconds.append(time.perf_counter() - start)
        assert heavy.strip() == "[]"
    assert min(seconds) < 2.5


def test_the_library_imports_nothing_of_the_command_line() -> None:
    loaded = run(
        "import sys, statewise as sw\n"
        "sw.LanguageModelConfig, sw.Mamba2Config, sw.AttentionConfig, sw.SSD, sw.load, sw.TrainConfig, sw.generate\n"
        "print([m for m in ('tokenizers', 'typer', 'rich', 'torch._dynamo') if m in sys.modules])"
    )
    assert loaded.strip() == "[]"


def test_command_line_starts_without_torch() -> None:
    assert run("import sys, statewise.cli; print('torch' in sys.modules)").strip() == "False"


@pytest.mark.parametrize("name", sorted(statewise.__all__))
def test_every_public_name_exists(name: str) -> None:
    assert getattr(statewise, name) is not None
    assert name in dir(statewise)


def test_the_list_is_read_as_type_checkers_read_it() -> None:
    tree = ast.parse(Path(statewise.__file__).read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    lines = [line for line in block.body if isinstance(line, ast.ImportFrom)]
    assert len(lines) == len(block.body)
    assert {alias.asname: line.module for line in lines for alias in line.names} == statewise._HOME


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'SSM'"):
        statewise.SSM  # noqa: B018
