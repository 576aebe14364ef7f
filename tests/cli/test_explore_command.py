"""statewise explore: the page in a file, what it refuses, and the server of a run."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from pathlib import Path

import pytest
from command_line import Run
from forked_programs import program

import statewise as sw
from statewise.data.tokenizers import ByteTokenizer

LARGEST = 1_000_000  # bytes of the page without the model's numbers


def bytes_model(folder: Path) -> Path:
    layers = (sw.Mamba2Config(d_state=4, d_head=8),)
    model = sw.LanguageModelConfig(vocab_size=257, d_model=8, layers=layers).build()
    return sw.save(model, folder, tokenizer=ByteTokenizer())


def test_the_page_is_one_small_file_that_loads_nothing(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = run("explore", "--out", str(out))
    assert (result.code, result.out) == (0, f"{out}\n")
    page = out.read_text("utf-8")
    numbers = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert len(page.encode()) - sum(len(text.encode()) for text in numbers) < LARGEST
    assert json.loads(numbers[2]) is None  # no server
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:,)""", page)
    assert not re.search(r"@import|url\((?!#)", page)
    assert "https://" not in page


def test_a_run_of_bytes_goes_into_the_file(run: Run, tmp_path: Path) -> None:
    model = bytes_model(tmp_path / "model")
    out = tmp_path / "page.html"
    assert run("explore", str(model), "--out", str(out)).code == 0
    numbers = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', out.read_text("utf-8"), re.DOTALL)
    assert json.loads(numbers[0])["name"] == str(model)


def test_what_it_refuses(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("mine")
    result = run("explore", "--out", str(out))
    assert result.code == 2
    assert "--overwrite" in result.err
    assert out.read_text() == "mine"
    assert run("explore", "--out", str(out), "--overwrite").code == 0
    assert "no server" in run("explore", "--out", str(tmp_path / "b.html"), "--port", "80").err
    assert run("explore", str(tmp_path / "nothing")).code == 2
    layers = (sw.AttentionConfig(n_heads=2),)
    model = sw.LanguageModelConfig(vocab_size=257, d_model=8, layers=layers).build()
    attention = sw.save(model, tmp_path / "attention", tokenizer=ByteTokenizer())
    result = run("explore", str(attention), "--out", str(tmp_path / "c.html"))
    assert result.code == 2
    assert "layer 0 is AttentionConfig" in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize("with_run", [True, False])
def test_it_serves_until_it_is_stopped(tmp_path: Path, with_run: bool) -> None:
    sources = [str(bytes_model(tmp_path / "model"))] if with_run else []
    words = ["-m", "statewise", "explore", *sources, "--no-browser"]
    with program(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().decode().strip()
            page = urllib.request.urlopen(address, timeout=30).read().decode()
            assert ("/call" in page.split('id="data-server">')[1].split("</script>")[0]) == with_run
            if with_run:
                question = urllib.request.Request(
                    f"{address}call/analyse", b'{"text": "ab"}', {"Content-Type": "application/json"}
                )
                answer = json.loads(urllib.request.urlopen(question, timeout=30).read())
                assert answer["pieces"] == ["⟨start⟩", "a", "b"]
        finally:
            process.send_signal(2)
            try:
                assert process.wait(20) == 130
            except subprocess.TimeoutExpired:  # as where this was begun with SIGINT ignored
                process.kill()
                raise
