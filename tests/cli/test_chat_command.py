"""`statewise chat`: lines in through a pipe, answers out, and what a line can be besides."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chat_models import publish, publish_one_that_ends
from command_line import ROOT, Run
from forked_programs import program

import statewise as sw

pytest.importorskip("transformers")
Talk = Callable[..., tuple[list[str], str]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat model whose answers end after a few tokens."""
    folder = tmp_path_factory.mktemp("chat")
    publish(folder, "chatml", "mamba", seed=1)
    return folder


@pytest.fixture
def talk(run: Run, published: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """What is answered to these lines, and what standard error says."""

    def call(*lines: str, words: tuple[object, ...] = (), folder: Path = published) -> tuple[list[str], str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        result = run("chat", folder, "--max-new-tokens", 6, *words)
        assert result.code == 0, result.err
        return result.out.splitlines(), result.err

    return call


def answers(folder: Path, *questions: str, **options: Any) -> list[str]:
    chat = sw.Chat(sw.load(folder), sw.open_tokenizer(folder), max_new_tokens=6, **options)
    return "".join("".join(chat.say(question)) + "\n" for question in questions).splitlines()


def test_lines_are_answered(talk: Talk, published: Path) -> None:
    out, err = talk("What is a state?", "", "Go on.")
    assert (out, err) == (answers(published, "What is a state?", "Go on."), "")
    assert talk("one\\", "two")[0] == answers(published, "one\ntwo")
    assert talk("//x")[0] == answers(published, "/x")
    assert talk("x", words=("--system", "Be brief."))[0] == answers(published, "x", system="Be brief.")
    assert talk("x", "/exit", "y")[0] == answers(published, "x")


def test_options_arrive(talk: Talk, published: Path, tmp_path: Path) -> None:
    drawn = talk("x", words=("--temperature", 1.5, "--top-k", 40, "--seed", 4))[0]
    assert drawn == answers(published, "x", temperature=1.5, top_k=40, seed=4)
    assert drawn != answers(published, "x")
    (tmp_path / "t.jinja").write_text("{{ messages[-1].content }}\n")
    given = talk("x", words=("--template", tmp_path / "t.jinja", "--repetition-penalty", 1.5))[0]
    assert given == answers(published, "x", template="{{ messages[-1].content }}", repetition_penalty=1.5)
    assert talk("x", words=("--weights", "int8"))[0]


def test_commands(talk: Talk, published: Path, tmp_path: Path) -> None:
    out, err = talk("a", "/undo", "/undo", "b", "/reset", "a")
    assert out == [*answers(published, "a"), *answers(published, "b"), *answers(published, "a")]
    assert err == "removed: a\nthere is no question to remove\nstarted again\n"
    saved = tmp_path / "talk"
    out, err = talk("a", f"/save {saved}", "b")
    assert err == f"saved in {saved}\n"
    on, err = talk(f"/load {saved}", "b")
    assert out == [*answers(published, "a"), *on]
    assert err.startswith("[user] a\n[assistant] ")
    assert talk("b", words=("--load", saved))[0] == on
    assert "/undo" in talk("/help")[1]


def test_a_mistake_is_one_line_and_the_conversation_goes_on(talk: Talk, published: Path, tmp_path: Path) -> None:
    out, err = talk("/what", "/save", "/save x", f"/load {tmp_path / 'none'}", "a")
    assert out == answers(published, "a")
    assert [line.split()[0] for line in err.splitlines()] == ["/what", "/save", "statewise:", "statewise:"]


def test_what_cannot_talk_is_refused(refused: Callable[..., str], published: Path, tmp_path: Path) -> None:
    assert "temperature" in refused("chat", published, "--temperature", "-1")
    sw.save(sw.load(published), tmp_path / "ours", tokenizer=sw.ByteTokenizer())
    assert "ByteTokenizer" in refused("chat", tmp_path / "ours")
    tokenizer = sw.FileTokenizer(published)
    sw.save(sw.load(published), tmp_path / "plain", tokenizer=tokenizer)
    assert "has no chat template" in refused("chat", tmp_path / "plain")
    assert "none.jinja" in refused("chat", published, "--template", tmp_path / "none.jinja")


def test_generate_ends_at_the_end_token(run: Run, tmp_path: Path) -> None:
    published = tmp_path / "published"
    publish_one_that_ends(published, "What is a state?")
    prompt = "<|im_start|>user\nWhat is a state?<|im_end|>\n<|im_start|>assistant\n"
    words = ("--prompt", prompt, "--temperature", 0, "--max-new-tokens", 500)
    result = run("generate", published, *words)
    chat = sw.Chat(sw.load(published), sw.open_tokenizer(published))
    assert result.out == "".join(chat.say("What is a state?")) + "\n"
    assert run("convert", published, tmp_path / "ours").code == 0
    assert run("generate", tmp_path / "ours", *words).out == result.out


@pytest.mark.skipif(sys.platform == "win32", reason="no such signal")
def test_ctrl_c_stops_an_answer_and_keeps_the_conversation(tmp_path: Path) -> None:
    publish(tmp_path, "chatml", "mamba2", seed=2)  # which does not end
    words = ["-m", "statewise", "chat", str(tmp_path), "--max-new-tokens", "1000000"]
    with program(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"Hello\n/undo\n")
        process.stdin.flush()
        begun = process.stdout.read(200)  # the answer comes as it is written
        process.send_signal(signal.SIGINT)
        process.stdin.close()
        rest, told = process.stdout.read(), process.stderr.read()
    assert len(begun) == 200
    assert rest.endswith(b"\n")
    assert (process.returncode, told) == (0, b"removed: Hello\n")


def test_exact_mode_says_the_same(talk: Talk, published: Path) -> None:
    said, _ = talk("hello", words=("--exact", "--temperature", 0))
    with sw.exact():
        assert said == answers(published, "hello", temperature=0)
