"""A chat template writes what transformers writes, and one that is hostile ends alone."""

from __future__ import annotations

import time
from typing import Any

import pytest
from chat_models import TEMPLATES, their_tokenizer

from statewise.conventions.process import build
from statewise.conventions.template import ChatTemplate
from statewise.errors import DataError, InputError

pytest.importorskip("transformers")
TALK = [
    {"role": "system", "content": "  Be <brief> & 'kind'. "},
    {"role": "user", "content": "héllo\n\n  wörld 🚀 {{ 1 }}"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n yes "},
    {"role": "user", "content": ""},
]
FURTHER = (
    "{%- for m in messages %}\n    {%- if loop.index > 2 %}{% break %}{% endif %}\n{{- m | tojson }}\n  {% endfor %}x",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% if tools is not none %}t{% else %}n{% endif %}{{ documents }}{{ missing }}{{ missing is defined }}",
    "{{ {'é': [1, true, none]} | tojson(indent=2) }}{{ messages[0] | items | list }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}{{ bos_token }}",
    "{{ dict(a=1) }}{{ strftime_now('%Y') }}{{ messages | map(attribute='role') | join(',') }}",
)


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("text", [*(each[0] for each in TEMPLATES.values()), *FURTHER])
def test_it_writes_what_transformers_writes(text: str, prompted: bool) -> None:
    theirs = their_tokenizer("llama3")
    ours = ChatTemplate(text, {"bos_token": theirs.bos_token, "eos_token": theirs.eos_token})
    for messages in (TALK, TALK[1:], TALK[1:2]):
        wanted = theirs.apply_chat_template(
            messages, chat_template=text, add_generation_prompt=prompted, tokenize=False
        )
        assert ours.render(messages, add_generation_prompt=prompted) == wanted


HOSTILE = {
    "nested loops": "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}{% endfor %}"
    "{% endfor %}{% endfor %}",
    "a power": "{{ 9 ** (9 ** (9 ** 9)) }}",
    "a long text": "{{ 'a' * 10 ** 11 }}",
    "a format": "{{ '%100000000000d' % 1 }}",
    "doubling": "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "much output": "{{ 'a' * 200000000 }}",
    "recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a range": "{{ range(10 ** 9) | list | length }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ lipsum.__globals__['os'].system('true') }}",
    "a namespace's attributes": "{% set n = namespace(__class__=1) %}",
    "the messages": "{{ messages.append(1) }}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
    "no template": "{% if %}",
    "a message of a refusal": "{{ raise_exception('\\x1b[2J' ~ 'x' * 5000) }}",
}


@pytest.mark.parametrize("what", sorted(HOSTILE))
def test_a_hostile_template_is_one_line(what: str) -> None:
    template = ChatTemplate(HOSTILE[what], seconds=1)
    begin = time.monotonic()
    with pytest.raises(DataError) as refused:
        template.render([{"role": "user", "content": "Hello"}])
    assert time.monotonic() - begin < 60  # where others share the machine
    message = str(refused.value)
    assert message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception.__globals__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ dict.__class__ }}{{ strftime_now.__globals__ }}",
        "{{ cycler.__init__ }}",
    ],
)
def test_what_leads_to_python_is_nothing(text: str) -> None:
    assert ChatTemplate(text).render([{"role": "user", "content": "Hello"}]) == ""


def test_after_one_that_took_too_long_it_can_be_asked_again() -> None:
    loop = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
    template = ChatTemplate("{% if messages | length > 1 %}" + loop + "{% endif %}{{ messages[0].content }}", seconds=1)
    hello: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
    assert template.render(hello) == "Hello"
    with pytest.raises(DataError, match="took more than"):
        template.render(hello * 2)
    assert template.render(hello) == "Hello"


def test_what_is_no_conversation_is_refused() -> None:
    template = ChatTemplate("{{ messages }}")
    for wrong in ("text", {"role": "user"}, {"role": 1, "content": ""}):
        with pytest.raises(InputError, match="is not a message"):
            template.render([wrong])  # type: ignore[list-item]
    with pytest.raises(InputError, match="not JSON"):
        template.render([{"role": "user", "content": object()}])
    with pytest.raises(DataError, match="characters"):
        ChatTemplate("x" * (1 << 21))


def test_an_old_sandbox_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.1.5")
    with pytest.raises(RuntimeError, match=r"jinja2 3\.1\.5 .* pip install -U jinja2"):
        build("{{ 1 }}")
