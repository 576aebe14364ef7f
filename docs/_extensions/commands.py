"""The reference of the command line, from what typer knows of every command."""

from __future__ import annotations

import re
from typing import Any

from docstrings import inline


def page() -> str:
    """One section a command: its help, its usage, its arguments and options with their defaults."""
    import typer

    from statewise.cli import app

    group = typer.main.get_command(app)
    lines = ["The command line", "================", "", inline(_text(group.help), _none), ""]
    lines += [".. list-table::", "   :widths: 30 70", ""]
    with group.make_context("statewise", [], resilient_parsing=True) as context:
        inner = [(f"statewise {name}", group.get_command(context, name)) for name in group.list_commands(context)]
        for title, command in inner:
            said = _text((command.help or "").split("\n\n")[0])
            lines += [f"   * - :ref:`{title} <{_anchor(title)}>`", f"     - {inline(said, _none)}"]
        lines += [""]
        for title, command in inner:
            lines += _section(title, command, context)
    return "\n".join(lines)


def _none(target: str) -> None:
    return None


def _text(text: str | None) -> str:
    """One line, its options as code."""
    return re.sub(r"(?<![\w`-])--[a-z][\w-]*", r"``\g<0>``", " ".join((text or "").split()))


def _section(title: str, command: Any, context: Any) -> list[str]:
    lines = [f".. _{_anchor(title)}:", "", title, "-" * len(title), ""]
    for paragraph in (command.help or "").split("\n\n"):
        lines += [inline(_text(paragraph), _none), ""]
    with command.make_context(title, [], parent=context, resilient_parsing=True) as inner:
        usage = " ".join([title, *command.collect_usage_pieces(inner)])
        # As --help has them, whose form is typer's to know
        rows = [record for parameter in command.params if (record := parameter.get_help_record(inner))]
        lines += [".. code-block:: console", "", f"   $ {usage}", ""]
        if rows:
            lines += [".. list-table::", "   :class: options", "   :widths: 38 62", ""]
        for names, said in rows:
            lines += [f"   * - ``{names}``", f"     - {inline(_text(said), _none) or '..'}"]
        lines.append("")
        for name, below in getattr(command, "commands", {}).items():
            lines += _section(f"{title} {name}", below, inner)
    return lines


def _anchor(title: str) -> str:
    return "-".join(title.replace("statewise", "command").split())
