"""Trained on files far from mean 0: evaluation, the predictor on the same files, the loaded model and a frozen stream
agree to the last digit, in every format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import refused
from own_files import (
    FORMATS,
    Image,
    lists,
    long,
    pandas,
    pictures,
    soundfile,
    tone,
    wide,
    write_pictures,
    write_sounds,
)
from raw_data import run_on

import statewise as sw
from statewise.data import LabelledDataConfig, open_labelled
from statewise.errors import ConfigError, DataError, InputError
from statewise.evaluate.labelled.classification import evaluate_classifier
from statewise.evaluate.labelled.regression import evaluate_regressor
from statewise.files.sounds import read_sound
from statewise.models.file_input import FilesConfig
from statewise.predict import Classes
from statewise.training import train_run


def arrays(folder: Path, name: str) -> Path:
    x = wide().iloc[:, :-1].to_numpy(np.float32)[..., None]
    np.savez(folder / name, x=x, y=wide()["kind"].to_numpy(str))
    return folder / name


def table(make: Callable[[], Any]) -> Callable[[Path, str], Path]:
    def write(folder: Path, name: str) -> Path:
        FORMATS[name](make(), folder / name)
        return folder / name

    return write


LONG = {"label_field": "kind", "row_field": "id", "time_field": "time"}
CASES: dict[str, tuple[Callable[[Path, str], Path], str, dict[str, Any]]] = {
    "arrays": (arrays, "a.npz", {}),
    "pictures": (lambda folder, name: write_pictures(folder / name), "photos", {}),
    "pictures of colour": (lambda folder, name: write_pictures(folder / name, mode="RGB"), "photos", {}),
    "pictures made smaller": (lambda folder, name: write_pictures(folder / name), "photos", {"image_size": (3, 3)}),
    "sounds": (lambda folder, name: write_sounds(folder / name), "tones", {"normalize": "dataset"}),
    "sounds of some rates": (
        lambda folder, name: write_sounds(folder / name, rates=(8000, 8000, 11025)), "tones", {"normalize": "dataset"}
    ),
    "sounds, each scaled": (lambda folder, name: write_sounds(folder / name, channels=2), "tones", {"channels": "all"}),
    **{f"wide {name}": (table(wide), name, {"label_field": "kind"}) for name in FORMATS},
    **{f"long {name}": (table(long), name, LONG) for name in ("b.csv", "g.jsonl")},
    "lists g.jsonl": (table(lists), "g.jsonl", {"label_field": "kind", "sequence_field": "s"}),
    "lists f.parquet": (table(lists), "f.parquet", {"label_field": "kind"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_all_answers_agree_to_the_last_digit(tmp_path: Path, case: str) -> None:
    write, name, options = CASES[case]
    path = write(tmp_path, name)
    data = LabelledDataConfig(source="files", folder=str(path), **options)
    train_run(run_on(data, steps=3, batch_size=8), tmp_path / "run")
    opened, model = open_labelled(data), sw.load(tmp_path / "run")
    predictor = sw.predictor(tmp_path / "run")
    answers = predictor.predict(path, batch_size=1)  # alone, so that nothing is padded
    assert isinstance(answers, Classes)
    assert answers.names == opened.classes
    by_values = {}
    for split in opened.splits.values():
        for i in range(len(split)):
            by_values[split.raw.sequence(i).tobytes()] = (split.name, i)
    rows = predictor.rows(path)
    if case == "arrays":
        rows = [row.astype(np.float32) for row in rows]
    places = [by_values[np.ascontiguousarray(rows[i]).tobytes()] for i in range(len(rows))]
    assert len(answers) == sum(len(split) for split in opened.splits.values())

    if (made := {"wide": wide, "long": long, "lists": lists}.get(case.split()[0])) is not None:
        of_frame = predictor.predict(made(), batch_size=1)
        assert np.array_equal(of_frame.logits, answers.logits)  # type: ignore[union-attr]
        assert np.array_equal(of_frame.columns().get("id"), answers.columns().get("id"))

    split = opened.split("test")
    mine = {i: answers.logits[k] for k, (where, i) in enumerate(places) if where == "test"}
    logits = torch.from_numpy(np.stack([mine[i] for i in range(len(split))]))
    for i in range(len(split)):
        raw = torch.from_numpy(split.raw.sequence(i))[None]
        with torch.no_grad():
            assert torch.equal(model.eval()(raw)[0][0], logits[i])
        if options.get("normalize", "dataset") == "dataset" and "channels" not in options:
            with torch.no_grad():
                frozen = model.freeze()
                read, _ = frozen(raw, frozen.initial_state(1))
            torch.testing.assert_close(read[0], logits[i], rtol=1e-4, atol=1e-5)
            stream = predictor.stream()
            streamed = [stream(piece[None]) for piece in np.array_split(raw[0].numpy(), 2) if len(piece)][-1]
            np.testing.assert_allclose(streamed.logits[0], logits[i], rtol=1e-4, atol=1e-5)  # type: ignore[union-attr]
    scores = evaluate_classifier(model, split, batch_size=1)  # type: ignore[arg-type]
    right = logits.argmax(1).numpy() == split.targets
    assert scores.accuracy == right.mean()
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(split.targets))
    assert scores.loss == pytest.approx(loss.item(), rel=1e-6)


def test_a_regression_of_a_table(tmp_path: Path) -> None:
    frame = wide().drop(columns="kind")
    frame["label"] = frame["t5"] / 10
    frame.to_csv(tmp_path / "a.csv", index=False)
    data = LabelledDataConfig(source="files", folder=str(tmp_path / "a.csv"))
    model = sw.SequenceRegressorConfig(d_output=1, d_input=1, d_model=8, layers=(sw.S4DConfig(d_state=8),))
    run = replace(run_on(LabelledDataConfig(), steps=2, batch_size=8), data=data, model=model)
    train_run(run, tmp_path / "run")
    values = sw.predictor(tmp_path / "run").predict(tmp_path / "a.csv").values  # type: ignore[union-attr]
    assert values.shape == (24, 1)
    assert evaluate_regressor(sw.load(tmp_path / "run"), open_labelled(data).split("test"))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos, tones and long.csv, and runs on them: of-photos, of-tones, of-long, of-arrays."""
    folder = tmp_path_factory.mktemp("files")
    write_pictures(folder / "photos")
    write_sounds(folder / "tones")
    long().to_csv(folder / "long.csv", index=False)
    arrays(folder, "arrays.npz")
    for name, options in (("photos", {}), ("tones", {}), ("long.csv", LONG), ("arrays.npz", {})):
        data = LabelledDataConfig(source="files", folder=str(folder / name), **options)
        train_run(run_on(data, steps=2, batch_size=8), folder / f"of-{name.split('.')[0]}")
    return folder


def test_new_pictures_of_other_sizes(runs: Path, tmp_path: Path) -> None:
    large = Image.fromarray(np.kron(pictures(1)[0], np.ones((2, 2), np.uint8)))
    large.save(tmp_path / "large.png")
    large.convert("RGB").save(tmp_path / "colour.bmp")
    (tmp_path / ".hidden").write_text("")
    predictor = sw.predictor(runs / "of-photos")
    answers = predictor.predict(tmp_path, batch_size=1)
    assert list(answers.columns())[:3] == ["row", "file", "class"]
    assert answers.columns()["file"].tolist() == ["colour.bmp", "large.png"]
    one = predictor.predict(str(tmp_path / "large.png"))
    assert np.array_equal(one.logits[0], answers.logits[1])  # type: ignore[union-attr]
    two = predictor.predict([tmp_path / "large.png", str(tmp_path / "colour.bmp")])
    assert [Path(name).name for name in two.columns()["file"]] == ["large.png", "colour.bmp"]
    assert predictor.predict(runs / "photos").columns()["file"][0] == "cat/00.png"
    assert predictor.embed(tmp_path).columns()["file"].tolist() == ["colour.bmp", "large.png"]
    raw = np.asarray(large.resize((4, 5), Image.Resampling.BILINEAR)).reshape(1, 20)
    assert np.array_equal(predictor.predict(raw).logits, one.logits)  # type: ignore[union-attr]


def test_a_sound_at_another_rate_is_resampled(runs: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "fast.wav", tone(44100, 1000, 0.05), 44100)
    predictor = sw.predictor(runs / "of-tones")
    answers = predictor.predict(tmp_path / "fast.wav")
    expected = predictor.predict([read_sound(tmp_path / "fast.wav", rate=8000, mono=True)])
    assert predictor.rows(tmp_path / "fast.wav")[0].shape == (400, 1)
    assert np.array_equal(answers.logits, expected.logits)  # type: ignore[union-attr]
    slow = predictor.predict([tone(8000, 1000, 0.05).astype(np.float32)])
    np.testing.assert_allclose(answers.probabilities, slow.probabilities, atol=0.05)  # type: ignore[union-attr]


def test_a_table_without_labels_in_another_order(runs: Path, tmp_path: Path) -> None:
    predictor = sw.predictor(runs / "of-long")
    expected = predictor.predict(runs / "long.csv")
    frame = long()
    first_seen = list(dict.fromkeys(frame["id"]))
    assert expected.columns()["id"].tolist() == first_seen
    fewer = frame.sort_values("time", kind="stable").assign(note="new")[["note", "right", "time", "id", "left"]]
    fewer.to_parquet(tmp_path / "new.parquet")
    found = predictor.predict(tmp_path / "new.parquet")
    order = [found.columns()["id"].tolist().index(name) for name in first_seen]
    np.testing.assert_allclose(found.logits[order], expected.logits, rtol=1e-5)  # type: ignore[union-attr]
    assert "has no column 'right'" in refused(
        lambda: predictor.predict(_written(frame.drop(columns="right"), tmp_path / "b.csv"))
    )


def test_a_table_in_memory_has_the_columns_of_the_training(runs: Path) -> None:
    predictor, frame = sw.predictor(runs / "of-long"), long()
    expected = list(predictor.predict(runs / "long.csv").rows())
    others = frame.assign(note="new", kind=None)[["note", "right", "kind", "time", "id", "left"]]
    for same in (
        others,
        frame.set_index("kind"),
        frame.astype({"id": "category", "left": "Float64", "time": "Int64"}),
        frame.assign(time=pandas.Timestamp("2024-01-01") + pandas.to_timedelta(frame["time"], "D")),
        frame.convert_dtypes(dtype_backend="pyarrow"),
    ):
        assert list(predictor.predict(same).rows()) == expected
    assert predictor.embed(others).columns()["id"].tolist() == [row["id"] for row in expected]
    for wrong, said in (
        (
            frame.rename(columns={"left": "Left"}),
            "the DataFrame has no column 'left' .*; its columns are: id, time, Left",
        ),
        (frame[["id", "time"]], "the DataFrame has no column 'left'"),
        (frame.assign(left="soon"), "the DataFrame, row 0: 'left' is 'soon', not a number"),
        (frame.assign(left=float("nan")), "the DataFrame, row 0: 'left' is missing"),
        (frame.iloc[:0], "the DataFrame has 0 rows"),
        (frame.assign(left=[object()] * len(frame)), "the DataFrame cannot be read as a table"),
    ):
        with pytest.raises((DataError, InputError), match=said):
            predictor.predict(wrong)
    for run in ("of-arrays", "of-photos"):
        with pytest.raises(InputError, match=r"x is a DataFrame, but this model was trained on .*; give arrays"):
            sw.predictor(runs / run).predict(frame)


def _written(frame: Any, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path


def test_a_column_of_names_that_is_called_as_an_answer(tmp_path: Path) -> None:
    frame = long().rename(columns={"id": "class"})
    path = _written(frame, tmp_path / "a.csv")
    data = LabelledDataConfig(source="files", folder=str(path), **{**LONG, "row_field": "class"})
    train_run(run_on(data, steps=1, batch_size=8), tmp_path / "run")
    assert list(sw.predictor(tmp_path / "run").predict(path).columns())[:3] == ["row", "name", "class"]


WRONG: dict[str, tuple[str, str, str]] = {
    "a table for pictures": (
        "of-photos",
        "long.csv",
        "names 5 columns; give only those that this model reads, 1 number",
    ),
    "sounds for pictures": ("of-photos", "tones/low/01.wav", "is a sound, but this model was trained on pictures"),
    "a folder of sounds for pictures": ("of-photos", "tones", "is a sound, among pictures"),
    "pictures for sounds": ("of-tones", "photos", "is a picture, among sounds"),
    "a folder for tables": ("of-long", "photos", "is a folder, but this model was trained on tables"),
    "a picture for tables": ("of-long", "photos/cat/00.png", "is a picture; expected a table"),
    "a folder for arrays": ("of-arrays", "photos", "is a folder, but this model was trained on arrays"),
    "a picture for arrays": ("of-arrays", "photos/cat/00.png", "is a picture, but this model was trained on arrays"),
    "nothing": ("of-photos", "no.png", "there is no file or folder"),
    "another width": ("of-long", "arrays.npz", r"expected \(length, 2\): 2 numbers a step"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_model_does_not_read_is_refused_in_a_line(runs: Path, what: str) -> None:
    run, name, said = WRONG[what]
    with pytest.raises((DataError, InputError), match=said) as caught:
        sw.predictor(runs / run).predict(runs / name)
    assert "\n" not in str(caught.value)


def test_a_list_of_paths_is_for_media(runs: Path) -> None:
    with pytest.raises(InputError, match="a list of paths is for models of pictures or sounds"):
        sw.predictor(runs / "of-long").predict([runs / "long.csv"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "pictures", "channels": "grey"}, "needs image_size"),
        ({"kind": "pictures", "channels": "mono", "image_size": (2, 2)}, "has channels='mono'; use one of"),
        ({"kind": "sounds", "channels": "mono"}, "needs sampling_rate"),
        ({"kind": "wide table", "columns": ("a",), "channels": "all"}, "has no use for channels"),
        ({"kind": "long table", "columns": ("a",)}, "needs row_field"),
        ({"kind": "lists", "columns": ("a", "b")}, "lists has 2 columns"),
        ({"kind": "lists", "columns": ("a",), "time_field": "t"}, "time_field is for a long table"),
        ({"kind": "films"}, "kind='films' is unknown"),
    ],
)
def test_configs_are_checked(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FilesConfig(**fields)
