"""The process that a chat template runs in: ``python -P -m statewise.conventions.process``.

It reads one line of JSON, the template, then one for each conversation, and answers each with one line. A template is
a program of a stranger: it runs in Jinja's sandbox, and the process has limits of time and memory, so that one that
never ends, or fills the memory, ends alone. Only Jinja and Python's own modules are imported.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import re
import sys
from datetime import datetime
from typing import Any

MEMORY = 1 << 30  # bytes that the process may have
OLDEST = (3, 1, 6)  # of Jinja, which PyTorch brings in any version


def build(text: str) -> Any:
    """The template in an environment as that of ``transformers``: the same blocks, filters and functions.

    Errors:  ImportError or RuntimeError without a Jinja that is recent enough.
    Source:  ``utils/chat_template_utils.py`` of https://github.com/huggingface/transformers, version 5.
    """
    import jinja2

    version = importlib.metadata.version("jinja2")
    if tuple(int(digits) for digits in re.findall(r"\d+", version)[:3]) < OLDEST:
        raise RuntimeError(f"jinja2 {version} has a sandbox with known holes; upgrade it: pip install -U jinja2")
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %} ... {% endgeneration %}``, which marks answers for training: its content as it is."""

        tags = {"generation"}  # noqa: RUF012 (Jinja's form)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("content"), [], [], body).set_lineno(line)

        def content(self, caller: Any) -> Any:
            return caller()

    class Namespace(jinja2.utils.Namespace):
        """Without names that begin with an underscore, which lead to Python's own."""

        def __init__(*arguments: Any, **attributes: Any) -> None:
            self, *rest = arguments
            given = dict(*rest, **attributes)
            for name in given:
                _public(name)
            jinja2.utils.Namespace.__init__(self, given)

        def __setitem__(self, name: str, value: Any) -> None:
            _public(name)
            super().__setitem__(name, value)

    def _public(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"the namespace's name {name!r} begins with an underscore")

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Dict:
        """``dict`` without its attributes."""

        def __call__(self, *arguments: Any, **items: Any) -> dict[Any, Any]:
            return dict(*arguments, **items)

        def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
            return dict.fromkeys(*arguments)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(
        raise_exception=raise_exception,
        strftime_now=lambda form: datetime.now().strftime(form),
        dict=Dict(),
        namespace=Namespace,
    )
    return environment.from_string(text)


def _limit(seconds: float) -> None:
    """From now on; not on Windows, where the parent's limit of time is the only one."""
    with contextlib.suppress(ImportError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        for what, most in (
            (resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + seconds) + 1),
            (resource.RLIMIT_AS, MEMORY),
        ):
            hard = resource.getrlimit(what)[1]
            with contextlib.suppress(ValueError, OSError):  # a system that has no such limit
                resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def main() -> None:
    """Answers {"text": ...}, or {"error": ...} where the template cannot be used."""
    template: Any = None
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _limit(request["seconds"])
        try:
            template = template or build(request["template"])
            text = template.render(**request["variables"])
            n, most = len(text), request["most"]
            answer = {"text": text} if n <= most else {"error": f"it wrote {n:,} characters; expected at most {most:,}"}
        except MemoryError:
            answer = {"error": f"it needs more than {MEMORY >> 20:,} MB"}
        except RecursionError:
            answer = {"error": "it is nested too deeply"}
        except Exception as error:  # whatever a stranger's program raises
            answer = {"error": f"{type(error).__name__}: {str(error)[:1000]}"}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
