"""Models of the hub by name, from a hub of our own: a server in this process that answers as it does."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch
from checkpoint_examples import refusal
from forked_programs import ran

import statewise as sw
from statewise.checkpoints.convert import save_as
from statewise.checkpoints.convert.hub import HubName, parse_hub_name
from statewise.errors import InputError

TOKENS = torch.arange(30)[None] % 16


class Hub:
    """What is published, by repository and revision, and what was asked for."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.fetched: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                hub.answer(self, body=False)

            def do_GET(self) -> None:
                hub.answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def publish(self, repository: str, revision: str, files: dict[str, bytes]) -> str:
        commit = hashlib.sha1(f"{repository}@{revision}".encode()).hexdigest()
        self.files[repository, revision] = self.files[repository, commit] = files
        self.commits = {**getattr(self, "commits", {}), (repository, revision): commit, (repository, commit): commit}
        return commit

    def answer(self, request: BaseHTTPRequestHandler, body: bool) -> None:
        parts = unquote(urlsplit(request.path).path).strip("/").split("/")
        status, headers, content = 404, {"X-Error-Code": "RepoNotFound"}, b""
        kind, at = ("api", parts[2:]) if parts[:2] == ["api", "models"] else ("file", parts)
        repository, rest = "/".join(at[:2]), at[2:]
        revision = rest[1] if len(rest) > 1 else "main"
        if any(known == repository for known, _ in self.files):
            headers = {"X-Error-Code": "RevisionNotFound"}
        if (repository, revision) in self.files:
            files, commit = self.files[repository, revision], self.commits[repository, revision]
            status, headers = 200, {"X-Repo-Commit": commit}
            if kind == "api" and rest[:1] == ["tree"]:
                content = json.dumps(
                    [
                        {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                        for name, data in files.items()
                    ]
                ).encode()
            elif kind == "api":
                siblings = [{"rfilename": name} for name in files]
                content = json.dumps(
                    {"_id": "0", "id": repository, "sha": commit, "siblings": siblings, "private": False, "tags": []}
                ).encode()
            else:
                name = "/".join(rest[2:])
                content = files[name]
                headers["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
                if body:
                    self.fetched.append(name)
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content)), "Content-Type": "application/json"}.items():
            request.send_header(name, value)
        request.end_headers()
        if body:
            request.wfile.write(content)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    constants = pytest.importorskip("huggingface_hub.constants")
    made = Hub()
    threading.Thread(target=made.server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", made.url + template[template.index("/{") :])
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def model() -> sw.LanguageModel:
    torch.manual_seed(0)
    return sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(sw.MambaConfig(d_state=4),)).build().eval()


def published(model: sw.LanguageModel, folder: Path, **more: bytes) -> dict[str, bytes]:
    """The files of a repository, and some that nobody needs."""
    save_as(model, folder, "transformers")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files | {"README.md": b"#", "pytorch_model.bin": b"old", "onnx/model.onnx": b"other", **more}


def same_logits(one: Any, other: sw.LanguageModel) -> bool:
    return torch.equal(one(TOKENS)[0], other(TOKENS)[0])


def test_names() -> None:
    assert parse_hub_name("hub:a/b") == HubName("a/b", None, None)
    assert parse_hub_name("hub:a/b@refs/pr/1") == HubName("a/b", None, "refs/pr/1")
    assert parse_hub_name("hub:a/b/c/d.gguf@v1", "v1") == HubName("a/b", "c/d.gguf", "v1")
    for name in (
        "hub:a/b/../c.gguf",
        "hub:../b",
        "hub:a/b//c",
        "hub:a/b@../x",
        "hub:a/b/c\\..\\d",
        "hub:a/b/C:/d.gguf",
    ):
        with pytest.raises(InputError, match="leads out of the model"):
            parse_hub_name(name)
    for name in ("hub:a", "hub:", "hub:/b", "hub:a/b@", "hub:../b c"):
        with pytest.raises(InputError, match="is not a hub name; expected hub:owner/name"):
            parse_hub_name(name)
    with pytest.raises(InputError, match="name two different revisions"):
        parse_hub_name("hub:a/b@v1", "v2")


def test_only_what_is_needed_is_fetched_and_then_kept(
    hub: Hub, model: sw.LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.publish("a/mamba", "main", published(model, tmp_path / "made", **{"tokenizer.json": b"{}"}))
    assert same_logits(sw.load("hub:a/mamba"), model)
    assert sorted(hub.fetched) == ["config.json", "model.safetensors", "tokenizer.json"]
    sw.load("hub:a/mamba")
    assert len(hub.fetched) == 3, "from the cache"
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert same_logits(sw.load("hub:a/mamba"), model), "without the hub too"
    said = refusal(sw.load, "hub:a/other")
    assert said.startswith("hub:a/other is not in the cache")
    assert "HF_HUB_OFFLINE is set" in said
    for name, revision in (("hub:a/mamba", "v9"), ("hub:a/mamba@v9", None), ("hub:a/mamba@v9", "v9")):
        assert refusal(sw.load, name, revision=revision).startswith("hub:a/mamba@v9 is not in the cache")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert same_logits(sw.load("hub:a/mamba"), model), "nor where it cannot be reached"
    assert "the hub cannot be reached" in refusal(sw.load, "hub:a/other")


def test_revisions_files_and_what_is_not_there(hub: Hub, model: sw.LanguageModel, tmp_path: Path) -> None:
    torch.manual_seed(1)
    other = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(sw.MambaConfig(d_state=4),)).build().eval()
    hub.publish("a/mamba", "main", published(model, tmp_path / "one"))
    commit = hub.publish("a/mamba", "v2", published(other, tmp_path / "two"))
    assert same_logits(sw.load("hub:a/mamba@v2"), other)
    assert same_logits(sw.load("hub:a/mamba", revision=commit), other)
    assert same_logits(sw.load("hub:a/mamba/model.safetensors"), model)
    assert "has no revision 'v3'" in refusal(sw.load, "hub:a/mamba@v3")
    assert "the hub has no model a/nothing" in refusal(sw.load, "hub:a/nothing")
    assert "there is no file x.gguf in a/mamba" in refusal(sw.load, "hub:a/mamba/x.gguf")
    hub.publish("a/text", "main", {"README.md": b"#"})
    assert "hub:a/text has no weights" in refusal(sw.load, "hub:a/text")


def test_what_belongs_to_a_file_is_fetched_with_it(hub: Hub, model: sw.LanguageModel, tmp_path: Path) -> None:
    files = published(model, tmp_path / "made")
    more = {name: f'{{"{name}": 0}}'.encode() for name in ("tokenizer.json", "vocab.json", "merges.txt", "params.json")}
    hub.publish("a/deep", "main", {f"x/{name}": data for name, data in (files | more).items()} | {"config.json": b"{}"})
    assert same_logits(sw.load("hub:a/deep/x/model.safetensors"), model)
    assert {*hub.fetched} == {f"x/{name}" for name in ("model.safetensors", "config.json", *more)}
    hub.server.shutdown()
    hub.server.server_close()
    assert same_logits(sw.load("hub:a/deep/x/model.safetensors"), model), "it is in the cache, where the hub is not"
    assert "is not in the cache" in refusal(sw.load, "hub:a/deep/x/pytorch_model.bin")
    assert "is not in the cache" in refusal(sw.load, "hub:a/deep")


def test_shards_are_fetched_by_their_names(hub: Hub, model: sw.LanguageModel, tmp_path: Path) -> None:
    from safetensors.torch import load, save

    files = published(model, tmp_path / "made")
    weights = load(files.pop("model.safetensors"))
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(weights)}
    for file in sorted(set(where.values())):
        files[file] = save({name: weights[name] for name in weights if where[name] == file})
    files["model.safetensors.index.json"] = json.dumps({"weight_map": where}).encode()
    hub.publish("a/sharded", "main", files)
    assert same_logits(sw.load("hub:a/sharded"), model)
    assert not {"README.md", "pytorch_model.bin"} & set(hub.fetched)


def test_offline_by_the_environment_and_without_the_library(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    program = (
        "import os, sys\n"
        "os.environ.update(HF_HUB_OFFLINE='1', HF_HUB_CACHE=sys.argv[1])\n"
        "from statewise.cli import run\n"
        "code = run(['info', 'hub:state-spaces/mamba-130m'])\n"
        "sys.modules['huggingface_hub'] = None\n"
        "sys.exit(code + run(['info', 'hub:state-spaces/mamba-130m']))\n"
    )
    done = ran(["-c", program, tmp_path])
    assert done.returncode == 4
    first, second = done.stderr.splitlines()
    assert first.startswith("statewise: error: hub:state-spaces/mamba-130m is not in the cache")
    assert "HF_HUB_OFFLINE is set; load it once with a network, or give a folder" in first
    assert 'pip install "statewise[hub]"' in second
