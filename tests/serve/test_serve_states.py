"""States that are kept: what is not read twice, what is dropped, and what outlives the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from served_models import TOKENIZER, build, complete, serving, text_of, wait_until, written

import statewise as sw
from statewise.errors import CheckpointError, ConfigError
from statewise.generation import Reading, read
from statewise.generation.reading_file import load_reading
from statewise.serve.disk import StateFolder
from statewise.serve.errors import RequestError
from statewise.serve.states import States, bytes_of

IDS = np.arange(40, dtype=np.int32) % 7


@pytest.fixture(scope="module")
def reading() -> Reading:
    return read(build(), IDS.tolist())


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_the_longest_beginning_is_found_and_memory_is_bounded(reading: Reading) -> None:
    each = bytes_of(reading)
    states = States(4 * each, most_saved=2)
    states.keep(IDS[:5], reading)
    states.keep(IDS[:20], reading)
    assert states.longest(IDS)[0] == 20
    assert states.longest(IDS[:19])[0] == 5
    assert states.longest(IDS[1:]) == (0, None)
    other = IDS.copy()
    other[10] += 1
    assert states.longest(other)[0] == 5  # it is used, so the other one is the next to go
    for i in range(2, 4):
        states.keep(IDS[i:], reading)
    assert states.n_bytes <= states.limit
    assert (states.longest(IDS)[0], states.dropped) == (5, 1)
    states.keep(np.arange(10**6), reading)  # too large by itself
    assert states.n_bytes <= states.limit


def test_where_prompts_part(reading: Reading) -> None:
    states = States(1 << 20, most_saved=2)
    assert states.shared(np.arange(100), least=10) is None
    assert states.shared(np.append(np.arange(60), 7), least=10) == 60
    assert states.shared(np.append(np.arange(60), 7), least=10) is None  # the very same
    assert states.shared(np.append(np.arange(5), 7), least=10) is None
    for i in range(600):
        states.shared(np.full(100, i), least=10)
    assert len(states._prompts) <= 256


def test_names(reading: Reading) -> None:
    states = States(3 * bytes_of(reading), most_saved=3)
    states.save("a", IDS, reading)
    assert states.longest(np.append(IDS, 1))[0] == len(IDS)
    states.branch("a", "b")
    with pytest.raises(RequestError, match="already"):
        states.save("a", IDS, reading)
    for name in ("", ".a", "a/b", "../a", "a" * 65, "é"):
        with pytest.raises(RequestError, match="not a name"):
            states.save(name, IDS, reading)
    states.delete("a")
    ids, found = states.saved("b")
    assert np.array_equal(ids, IDS)
    assert found is reading
    with pytest.raises(RequestError, match="no state 'a'"):
        states.saved("a")
    states.save("c", IDS[:3], reading)
    with pytest.raises(RequestError, match="saved"):
        states.save("d", IDS[:4], reading)


def test_a_turn_reads_only_what_is_new() -> None:
    model = build("hybrid")
    with serving(model) as (_, client):
        prompt = "The first question, which is rather long. " * 4
        for turn in range(4):
            answer = complete(client, prompt, 10, seed=turn)
            text = answer["choices"][0]["text"]
            assert text == written(model, prompt, 10, seed=turn)
            n = answer["usage"]["prompt_tokens"]
            assert cached(answer) == 0 if turn == 0 else n - cached(answer) < 40
            prompt += text + " And the next? "


def test_what_prompts_have_in_common_is_kept() -> None:
    with serving(build()) as (_, client):
        common = "You are a server that says what others have said before. " * 5
        found = [cached(complete(client, common + end, 3, seed=1)) for end in ("Yes.", "No?", "Why", "How")]
    assert found == [0, 0, len(common) + 1, len(common) + 1]


def test_routes(model: sw.LanguageModel, client: httpx.Client) -> None:
    post = client.post
    made = post("/v1/states", json={"id": "book", "prompt": "In the beginning"})
    assert made.status_code == 201
    assert made.json()["tokens"] == 17
    assert post("/v1/states", json={"id": "book", "prompt": "x"}).status_code == 409
    assert post("/v1/states/book/branch", json={"id": "other"}).status_code == 201
    assert post("/v1/states", json={"id": "more", "state": "book", "prompt": " was"}).json()["tokens"] == 21
    whole = "In the beginning was"
    assert text_of(client, " was", 12, state="other", seed=3) == written(model, whole, 12, seed=3)
    assert complete(client, None, 12, state="more", seed=3)["choices"][0]["text"] == written(model, whole, 12, seed=3)
    first = text_of(client, whole, 8, seed=5, save_state="after")
    assert client.get("/v1/states/after").json()["tokens"] in (21 + 7, 21 + 8)
    onwards = text_of(client, None, 5, state="after", temperature=0)
    if len(first) == 8:
        assert onwards == written(model, [256, *(whole + first).encode()], 5, temperature=0)
    assert [s["id"] for s in client.get("/v1/states").json()["data"]] == ["after", "book", "more", "other"]
    for name in ("after", "book", "more", "other"):
        assert client.delete(f"/v1/states/{name}").json()["deleted"] is True
    assert client.get("/v1/states/book").status_code == 404
    assert client.delete("/v1/states/book").status_code == 404
    assert post("/v1/completions", json={"model": "small", "prompt": "x", "state": "book"}).status_code == 404


# -- on disk -----------------------------------------------------------------------------------------------------------


def test_a_folder_has_them_after_a_new_start(tmp_path: Path) -> None:
    model, folder = build("hybrid"), str(tmp_path / "states")
    prompt = "What was said before the server stopped, in some words."
    with serving(model, state_folder=folder) as (server, client):
        text = text_of(client, prompt, 20, seed=1)
        client.post("/v1/states", json={"id": "kept", "prompt": prompt})
        client.post("/v1/states/kept/branch", json={"id": "twice"})
        client.post("/v1/states", json={"id": "gone", "prompt": "x"})
        client.delete("/v1/states/gone")
        assert server.states.folder is not None
        wait_until(lambda: server.states.folder.lengths())
    with serving(model, state_folder=folder) as (_, client):
        assert [s["id"] for s in client.get("/v1/states").json()["data"]] == ["kept", "twice"]
        answer = complete(client, prompt + text + " More?", 10, seed=2)
        assert cached(answer) >= len(prompt) + len(text)
        assert answer["choices"][0]["text"] == written(model, prompt + text + " More?", 10, seed=2)
        assert text_of(client, "", 10, state="twice", seed=2) == written(model, prompt, 10, seed=2)
    file = next(tmp_path.glob("states/*/saved/kept.safetensors"))
    again = load_reading(file, model=model)  # as `statewise generate --state-in` does
    assert written(model, None, 10, state=again, seed=2) == written(model, prompt, 10, seed=2)
    with serving(build("hybrid", seed=5), state_folder=folder) as (_, client):  # other weights have states of their own
        assert client.get("/v1/states").json()["data"] == []
        assert cached(complete(client, prompt, 2)) == 0


def test_damaged_files_are_not_used(tmp_path: Path, reading: Reading) -> None:
    model = build()
    folder = StateFolder(tmp_path, model, n_bytes=1 << 30)
    states = States(1 << 20, most_saved=9, folder=folder)
    states.keep(IDS[:9], reading)
    states.save("name", IDS, reading)
    wait_until(lambda: folder.lengths())
    folder.close()
    for file in tmp_path.rglob("*.safetensors"):
        data = bytearray(file.read_bytes())
        data[-3] ^= 1
        file.write_bytes(data)
    folder = StateFolder(tmp_path, model, n_bytes=1 << 30)
    states = States(1 << 20, most_saved=9, folder=folder)
    assert states.longest(IDS)[1] is None
    assert folder.lengths() == {}
    with pytest.raises(RequestError, match="damaged"):
        states.saved("name")
    assert list(states.names()) == ["name"]  # it is the client's to delete
    states.delete("name")
    (folder.path / "saved" / "mine.safetensors").write_text("somebody's")
    with pytest.raises(RequestError, match="a file"):
        states.save("mine", IDS, reading)
    folder.close()
    assert (folder.path / "saved" / "mine.safetensors").read_text() == "somebody's"


def test_a_disk_that_is_full_throws_no_text_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise CheckpointError(f"cannot save {tmp_path}: No space left on device")

    model = build()
    with serving(model, state_folder=str(tmp_path)) as (_, client):
        client.post("/v1/states", json={"id": "there", "prompt": "x"}).raise_for_status()
        monkeypatch.setattr(StateFolder, "save", full)
        monkeypatch.setattr(StateFolder, "link", full)
        for path, asked in (("", {"id": "a", "prompt": "x"}), ("/there/branch", {"id": "b"})):
            response = client.post(f"/v1/states{path}", json=asked)
            assert response.status_code == 507
            assert response.json()["error"]["code"] == "disk_failed"
            assert str(tmp_path) not in response.text
        answer = complete(client, "x", 9, seed=1, save_state="c")
        assert answer["choices"][0]["text"] == written(model, "x", 9, seed=1)
        assert answer["save_state_error"]["code"] == "disk_failed"
        streamed = {"model": "small", "prompt": "x", "max_tokens": 9, "seed": 1, "save_state": "c", "stream": True}
        events = client.post("/v1/completions", json=streamed).text.split("\n\n")
        assert "save_state_error" in json.loads(events[-3].removeprefix("data: "))
        assert events[-2] == "data: [DONE]"
        assert client.get("/v1/states/c").status_code == 404


def test_a_name_that_another_took_in_the_meantime(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    with serving(model) as (server, client):
        client.post("/v1/states", json={"id": "a", "prompt": "x"}).raise_for_status()
        asked = {"model": "small", "prompt": "x", "max_tokens": 9, "seed": 1, "save_state": "a"}
        response = client.post("/v1/completions", json=asked)  # known before: nothing is written
        assert (response.status_code, response.json()["error"]["param"]) == (409, "save_state")
        assert not server.metrics.tokens_written._values
        monkeypatch.setattr(server.states, "reserve", lambda name, field="id": None)
        save = server.states.save

        def late(*args: Any, **options: Any) -> Any:
            monkeypatch.undo()
            return save(*args, **options)

        monkeypatch.setattr(server.states, "save", late)
        answer = complete(client, "x", 9, seed=1, save_state="a")
        assert answer["choices"][0]["text"] == written(model, "x", 9, seed=1)
        assert "already" in answer["save_state_error"]["message"]


def test_the_disk_is_bounded_and_the_longest_unused_goes(tmp_path: Path, reading: Reading) -> None:
    model = build()
    folder = StateFolder(tmp_path, model, n_bytes=1 << 30)
    states = States(0, most_saved=0, folder=folder)
    states.keep(IDS[:5], reading)
    wait_until(lambda: folder.lengths())
    folder.limit = 3 * folder.n_bytes + 500
    for i in range(6, 12):
        assert states.longest(IDS[:5])[0] == 5
        states.keep(IDS[:i], reading)
        wait_until(lambda i=i: i in folder.lengths().values())
    wait_until(lambda: folder.n_bytes <= folder.limit)
    assert 5 in folder.lengths().values()
    folder.close()


def test_a_folder_is_for_one_server(tmp_path: Path) -> None:
    model = build()
    folder = StateFolder(tmp_path, model, n_bytes=0)
    with pytest.raises(ConfigError, match="another server"):
        StateFolder(tmp_path, model, n_bytes=0)
    folder.close()
    StateFolder(tmp_path, model, n_bytes=0).close()
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="--state-folder"):
        StateFolder(tmp_path / "file", model, n_bytes=0)


def test_states_of_a_window_are_small() -> None:
    model = build("window")
    state = read(model, TOKENIZER.encode("word " * 200))
    with serving(model) as (server, client):
        text_of(client, "word " * 200, 30, seed=1)
        assert server.states.n_bytes / len(server.states) < 4 * bytes_of(state)
