"""Tokenizers of published models, and the commands that take and write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from published_folder import CONFIG, build_model, publish, same_logits

import statewise as sw
from statewise.cli import run
from statewise.cli.model_folder import open_model
from statewise.errors import InputError


@pytest.fixture
def model() -> sw.LanguageModel:
    return build_model()


@pytest.fixture
def folder(model: sw.LanguageModel, tmp_path: Path) -> Path:
    return publish(model, tmp_path)


def write_tokenizer(path: Path, n_ids: int) -> None:
    """Words w0, w1, ... and a document token, with a gap before the last id."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {"<|endoftext|>": 0, **{f"w{i}": i for i in range(1, n_ids - 2)}, "last": n_ids - 1}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))


def test_a_published_tokenizer_begins_prompts_as_it_does(
    model: sw.LanguageModel, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Mistral's does; a model of ours has seen the document token there, whatever its tokenizer does."""
    from tokenizers import Tokenizer, processors

    write_tokenizer(folder / "tokenizer.json", 16)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(single="w7 $A", special_tokens=[("w7", 7)])
    tokenizer.save(str(folder / "tokenizer.json"))
    published = open_model(folder)
    assert published.prompts(["w1 w2", b"w3"]) == [[7, 1, 2], [7, 3]]
    assert published.prompts([]) == [[7]]
    ours = open_model(sw.save(model, tmp_path / "ours", tokenizer=published.tokenizer))
    assert (ours.prompts(["w1 w2"]), ours.prompts([])) == (["w1 w2"], None)
    assert run(["generate", str(folder), "--prompt", "w1 w2", "--temperature", "0", "--max-new-tokens", "5"]) == 0
    expected = sw.generate(model, [7, 1, 2], max_new_tokens=5, temperature=0, tokenizer=published.tokenizer)
    assert capsys.readouterr().out.split() == "".join(token.text[0] for token in expected).split()


def test_ids_that_the_tokenizer_does_not_have_are_never_drawn(model: sw.LanguageModel, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "tokenizer.json", 12)
    tokenizer = sw.FileTokenizer(tmp_path / "tokenizer.json")
    assert (tokenizer.vocab_size, list(tokenizer.gaps)) == (12, [10])
    missing = {10, 12, 13, 14, 15}
    flat = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=CONFIG.layers, tie_embeddings=False).build()
    with torch.no_grad():
        flat.head.weight.zero_()
    options: dict[str, Any] = {"max_new_tokens": 60, "stop_at_document": False, "seed": 0}
    for more in ({}, {"temperature": 0.0}, {"top_k": 16}, {"top_p": 0.99}, {"min_p": 0.01, "repetition_penalty": 1.3}):
        for some in (model, flat):
            tokens = list(sw.generate(some, ["w1 w2", "w3"], tokenizer=tokenizer, **options, **more))  # type: ignore[operator]
            drawn = {int(i) for token in tokens for i in token.ids}
            assert not drawn & missing, more
    assert {int(t.ids) for t in sw.generate(flat, [1], **options, document_token=0)} & missing  # type: ignore[operator]
    scores = sw.evaluate.evaluate_text(model, tokenizer, b"w1 w2 last w3")
    assert scores.n_tokens == 4
    write_tokenizer(tmp_path / "tokenizer.json", 17)
    with pytest.raises(InputError, match="the tokenizer has 17 ids and the model only 16"):
        sw.generate(model, "w1", tokenizer=sw.FileTokenizer(tmp_path / "tokenizer.json"), max_new_tokens=1)  # type: ignore[operator]


def test_the_commands_take_a_published_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", str(folder), "--prompt", "w1", "--max-new-tokens", "3"]) == 2
    # 16 ids are too few for bytes
    assert "comes without its tokenizer; say which it is: --tokenizer PATH of" in capsys.readouterr().err
    for text, reason in (
        ("", "is not a tokenizer.json: it is empty"),
        ('{"a"', "is not a tokenizer.json (the file is not JSON: Expecting"),
    ):
        (folder / "tokenizer.json").write_text(text)
        for source in (folder, folder / "model.safetensors"):
            assert run(["generate", str(source), "--prompt", "w1", "--max-new-tokens", "3"]) == 2
            said = capsys.readouterr().err
            assert f"{folder / 'tokenizer.json'} {reason}" in said
            assert said.count("\n") == 1
    write_tokenizer(folder / "tokenizer.json", 12)
    for source in (folder, folder / "model.safetensors"):
        assert run(["generate", str(source), "--prompt", "w1", "--max-new-tokens", "3", "--seed", "0"]) == 0
        assert "w" in capsys.readouterr().out
    assert run(["info", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["format"], told["configuration"]["type"]) == ("transformers", "LanguageModelConfig")
    (tmp_path / "text").write_text("w1 w2 w3 w4 " * 9)
    assert run(["evaluate", str(folder), "--text-file", str(tmp_path / "text"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_tokens"] == 36
    assert run(["evaluate", str(folder), "--data", str(tmp_path / "text"), "--split", "train", "--json"]) == 0


def test_convert(folder: Path, model: sw.LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tokenizer(folder / "tokenizer.json", 12)

    def convert(source: Path, target: str, *options: str) -> dict[str, Any]:
        code = run(["convert", str(source), str(tmp_path / target), "--json", *options])
        said = capsys.readouterr()
        assert code == 0, said.err
        record: dict[str, Any] = json.loads(said.out)
        return record

    told = convert(folder, "ours")
    parameters = sum(p.numel() for p in model.parameters())
    assert (told["format"], told["to"], told["layers"], told["parameters"]) == (
        *("transformers", "statewise"),
        *(2, parameters),
    )
    assert same_logits(sw.load(tmp_path / "ours"), model)
    assert run(["generate", str(tmp_path / "ours"), "--prompt", "w1", "--max-new-tokens", "3"]) == 0
    capsys.readouterr()
    convert(tmp_path / "ours", "theirs", "--to", "mamba_ssm", "--dtype", "float16")
    assert (tmp_path / "theirs" / "tokenizer.json").read_text() == (folder / "tokenizer.json").read_text()
    assert sw.load(tmp_path / "theirs").norm.weight.dtype == torch.float16  # type: ignore[union-attr, operator]
    assert convert(folder, "without", "--tokenizer", "none")["tokenizer"] is None
    assert run(["generate", str(tmp_path / "without"), "--prompt", "w1"]) == 2
    assert "was saved without its tokenizer" in capsys.readouterr().err
    for options, message in (
        (["x", "--to", "onnx"], "--to 'onnx' is unknown; use one of statewise, mamba_ssm"),
        (["x", "--dtype", "int8"], "--dtype 'int8' is unknown"),
        (["ours"], "exists already and is not replaced; give another name, or remove it"),
        (["none", "--to", "s4"], "cannot be written as s4"),
        (
            ["x.gguf", "--to", "statewise"],
            "a GGUF file, but --to statewise writes a folder; give --to gguf",
        ),
        (["x.gguf", "--type", "q9"], "--type 'q9' is not written; use one of f32, f16"),
        (["x", "--type", "q8_0"], "is for --to gguf"),
        (["x.gguf", "--to", "h3"], "but --to h3 writes a folder; give --to gguf"),
    ):
        assert run(["convert", str(folder), str(tmp_path / options[0]), *options[1:]]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x.gguf").exists()
    roomy = sw.LanguageModelConfig(vocab_size=257, d_model=16, layers=CONFIG.layers).build()
    sw.save(roomy, tmp_path / "roomy")
    assert run(["generate", str(tmp_path / "roomy"), "--prompt", "w1"]) == 2
    assert "say which it is: --tokenizer bytes, or --tokenizer PATH" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["s4", "s4d"])
def test_convert_to_the_s4_repositorys(to: str, tmp_path: Path) -> None:
    mixer = sw.S4DConfig(initialization="lin", learn_B=False, d_state=4)
    block = sw.BlockConfig(mixer=mixer if to == "s4d" else sw.S4Config(d_state=4), norm="layer", placement="post")
    config = sw.SequenceClassifierConfig(d_input=2, n_classes=3, d_model=8, layers=(block,) * 2, norm=None)
    model = config.build().eval()
    sw.save(model, tmp_path / "ours")
    assert run(["convert", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to", to, "--json"]) == 0
    x = torch.randn(2, 20, 2)
    torch.testing.assert_close(sw.load(tmp_path / "theirs")(x), model(x), rtol=1e-4, atol=1e-5)


def test_gpt2s_two_files_are_a_tokenizer(folder: Path, model: sw.LanguageModel) -> None:
    vocabulary = {"a": 0, "b": 1, "Ġ": 2, "ab": 3, "<|endoftext|>": 4}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer = open_model(folder, device="cpu").tokenizer
    assert tokenizer.encode("ab a") == [3, 2, 0]
    assert tokenizer.decode([3, 2, 0, 4]) == "ab a"
    assert tokenizer.document_token == 4
