"""``reproduce lra``: settings, the report, a whole run at its smallest, and training from an experiment file."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from statewise.cli import run as command_line
from statewise.data.long_range import LongRangeDataConfig
from statewise.errors import CheckpointError, ConfigError, DataError
from statewise.reproduce import reproduce, settings
from statewise.reproduce.lra.published import TASKS
from statewise.reproduce.lra.settings import MODELS, Cell, LraSettings, run_config
from statewise.reproduce.lra.tables import Found
from statewise.reproduce.lra.tables import report as make_report

PLOTS = find_spec("matplotlib") is not None
FILES = ROOT / "experiments" / "lra"


class TestSettings:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"models": ("s5",)}, r"models.0='s5' is unknown; did you mean 's4'"),
            ({"tasks": ("pathfindre",)}, r"tasks.0='pathfindre' is unknown; did you mean 'pathfinder'"),
            ({"n_layers": 0}, "n_layers=0"),
            ({"minutes": -1.0}, "minutes=-1.0 is out of range"),
            ({"settings": ("data.n_rows=3",)}, "n_rows"),
            (
                {"settings": ("listop-gen:data.n_train=3",)},
                "is for 'listop-gen', which is not a task; use one of listops,",
            ),
            (
                {"settings": ("data.n_train=3",), "folder": "/data"},
                "of the task 'image': .*n_train is not for the task 'image'.* as in \"listops-gen:data.n_train=1000",
            ),
            ({"d_model": 30}, "30.*heads|heads.*30"),
            ({"d_state": 3}, "d_state"),
        ],
    )
    def test_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            LraSettings(**changes)

    def test_files_are_asked_for_before_anything_is_done(self, tmp_path: Path) -> None:
        config = settings("lra", assignments=['tasks=["listops-gen","image"]'])
        with pytest.raises(ConfigError, match=r"'image' reads files; set folder \(--data-dir\)"):
            reproduce("lra", tmp_path / "run", config, plots=False)
        assert list((tmp_path / "run" / "parts").iterdir()) == []

    def test_runs_are_the_published_ones_with_what_was_set(self) -> None:
        sizes = {"d_model": 33, "n_layers": 2, "d_state": 6}
        config = LraSettings(models=("s4d",), folder="/data", minutes=None, steps=60, lr=0.02, **sizes)
        run = run_config(config, "s4d", "image", 3)
        assert run.data == LongRangeDataConfig(task="image", folder="/data")
        mixer = run.model.layers[0].mixer  # type: ignore[attr-defined]
        assert (mixer.d_state, mixer.n_systems) == (6, 1)  # two published ones do not divide 33 channels
        budget, adamw, looks = run.train.budget, run.train.optimizer, run.train.reporting
        assert (adamw.lr, adamw.dt_lr_ratio, adamw.dynamics_lr_max) == (0.02, 1.0, 1e-3)
        assert (budget.steps, budget.minutes, looks.evaluate_every, run.train.seed) == (60, None, 10, 3)
        assert (budget.clock, run_config(replace(config, clock="processor"), "s4d", "image", 3).train.budget.clock) == (
            "wall",
            "processor",
        )
        other = run_config(replace(config, d_model=32), "transformer", "listops-gen", 0)
        adamw = other.train.optimizer
        assert (adamw.lr, adamw.clip_norm, other.data.folder) == (1e-3, 1.0, None)  # type: ignore[attr-defined]

    def test_every_model_reads_in_both_directions_or_none(self) -> None:
        """With one switch for all of them."""
        for bidirectional in (True, False):
            config = LraSettings(models=tuple(MODELS), folder="/data", bidirectional=bidirectional, d_state=4)
            for cell in config.cells():
                layer = run_config(config, *cell).model.layers[0]  # type: ignore[attr-defined]
                assert layer.mixer.bidirectional == bidirectional
                assert layer.build(64).mixer.is_causal != bidirectional

    def test_a_field_of_one_task(self) -> None:
        config = LraSettings(
            settings=("listops-gen:data.n_train=7", "train.optimizer.weight_decay=0.5"), folder="/data"
        )
        runs = [run_config(config, "s4d", task, 0) for task in config.tasks]
        assert [run.data.resolved("n_train") for run in runs] == [7, None]  # type: ignore[attr-defined]
        assert [run.train.optimizer.weight_decay for run in runs] == [0.5, 0.5]
        for task in ("image", "pathfinder-gen"):  # what is small for lists is not for others
            assert settings("lra", quick=True, assignments=[f'tasks=["{task}"]']).tasks == (task,)

    def test_a_list_without_its_quotes(self) -> None:
        with pytest.raises(ConfigError, match=r'expected a list of .*; write \["listops", "text"\], in a shell'):
            settings("lra", assignments=["tasks=[listops,text]"])

    def test_with_nothing_set_it_is_the_published_run(self) -> None:
        names = ("minutes", "steps", "d_model", "n_layers", "d_state", "batch_size", "lr")
        config = LraSettings(**dict.fromkeys(names), folder="/data", evaluate_items=None)  # type: ignore[arg-type]
        for model in ("s4", "s4d", "h3"):
            for task in TASKS:
                run = run_config(config, model, task, 0)
                published = json.loads((FILES / f"{model}-{task}.json").read_text("utf-8"))
                assert run.train.budget.steps == published["train"]["budget"]["steps"]
                looks = published["train"]["reporting"]
                assert run.train.reporting.evaluate_every == looks["evaluate_every"]
                assert run.model.d_model == published["model"]["d_model"]  # type: ignore[attr-defined]


def part(accuracy: float, step_ms: float | None = 50.0) -> dict[str, Any]:
    found = {"accuracy": accuracy, "chance": 0.5, "parameters": 1000, "steps": 7, "epochs": 0.5, "seconds": 60.0}
    course = {"course": [accuracy / 2, accuracy], "course_seconds": [30.0, 60.0]}
    return {
        "seeds": {"seed": {**found, **course}},
        "parameters": 7,
        "cpu_seconds": 70.0,
        "ms_per_step": 1e4,
        "step_ms": step_ms,
    }


def test_the_report_says_what_was_run_and_what_was_not() -> None:
    config = LraSettings(
        tasks=("listops", "listops-gen", "image"),
        folder="/data",
        seeds=(0, 1),
        settings=("train.optimizer.weight_decay=0.5",),
    )
    data = {task: {"sizes": {"train": 3}, "described": "", "caveats": []} for task in config.tasks}
    data["listops-gen"]["caveats"], data["image"]["caveats"] = ["drawn anew"], ["JPEG", "few rows"]
    ours = {cell: part(0.25 if cell.seed else 0.5) for cell in config.cells()}
    report = make_report(config, Found(data, ours))
    beside, speeds, each, scaled = report.tables
    assert speeds.rows[-1] == ("ours: Transformer", "1.00 1.00", "-", "-", "1.00", "-", "-", "1.00")
    rows = {row[0]: row[1:] for row in beside.rows}
    assert rows["ours: S4D-LegS"] == ("37.50 37.50*", "-", "-", "37.50*", "-", "-", "-")
    assert beside.notes[:2] == ("* listops-gen: drawn anew.", "* image: JPEG; few rows.")
    assert rows["S4D, as H3's paper quotes it"][-1] == "85.0"  # not 84.95, the mean of its rounded row
    assert rows["S4, the log of its code"][-1] == "-"
    assert any("Further fields were set: train.optimizer.weight_decay=0.5." in line for line in report.differences)
    assert rows["S4D-Lin"] == ("60.52", "86.97", "90.96", "87.93", "93.96", "fails", "78.39")
    notes = " ".join(beside.notes)
    assert "Not the published rows but listops-gen" in notes
    assert "Not run: Text, Retrieval, Pathfinder, Path-X." in notes
    assert "Not run: S4, H3, Mamba-2." in notes
    assert len(each.rows) == 12
    assert ("listops, S4D-LegS", "64 (128)", "4 (8)", "64", "16 (50)", "0.01", "7 (80,000)") in scaled.rows
    assert ("image, Transformer", "64", "4", "-", "16", "0.001", "7") in scaled.rows


def test_speed_is_beside_the_transformers() -> None:
    tasks = ("listops-gen", "image", "pathfinder-gen")
    config = LraSettings(models=("s4", "h3", "transformer"), tasks=tasks, folder="/data")
    data = {task: {"sizes": {"train": 3}, "described": "", "caveats": []} for task in tasks}
    ms = {"s4": (10.0, 40.0, 80.0), "h3": (10.0, 10.0, None), "transformer": (20.0, 20.0, 20.0)}
    ours = {cell: part(0.5, ms[cell.model][tasks.index(cell.task)]) for cell in config.cells()}
    rows = {row[0]: row[1:] for row in make_report(config, Found(data, ours)).tables[1].rows}
    assert rows["S4 with FlashConv"] == ("-",) * 6 + ("5.80",)
    assert rows["ours: S4"] == ("2.00", "-", "-", "0.50", "0.25", "-", "0.63")  # the cube root of a quarter
    assert rows["ours: H3"] == ("2.00", "-", "-", "2.00", "-", "-", "-")  # a run that gave none


def test_the_tables_have_the_sizes_of_the_runs() -> None:
    """Further fields may set a batch of their own, and that is what a row's time is a share of."""
    task = "listops-gen"
    config = LraSettings(
        models=("s4", "transformer"),
        tasks=(task,),
        batch_size=None,
        test_rows=100,
        settings=("train.batch_size=4", "train.accumulation=2", "train.optimizer.lr=0.5"),
    )
    ours = {cell: part(0.5, 10.0) for cell in config.cells()}
    for n_test, words in ((100, False), (101, True)):
        data = {task: {"sizes": {"train": 3, "test": n_test}, "described": "", "caveats": []}}
        report = make_report(config, Found(data, ours))
        assert {row[0]: row[1] for row in report.tables[1].rows}["ours: S4"] == "1.00"
        sizes = {row[0]: row[4:6] for row in report.tables[3].rows}
        assert sizes["listops-gen, S4"] == ("8 (32)", "0.5 (0.01)")
        assert any("100 rows drawn from each test split" in note for note in report.tables[2].notes) is words


def test_a_diverged_seed_is_shown_as_such(tmp_path: Path) -> None:
    config = LraSettings(models=("s4d", "h3"), tasks=("listops-gen",), seeds=(0, 1))
    lost = {**part(0.5), "seeds": {"seed": {"diverged": "step 3"}}, "ms_per_step": None}
    data = {"listops-gen": {"sizes": {"train": 3}, "described": "", "caveats": []}}
    ours = {cell: part(0.5) if cell == ("s4d", "listops-gen", 0) else lost for cell in config.cells()}
    report = make_report(config, Found(data, ours))
    beside, each, scaled = report.tables  # no Transformer, no speeds beside it
    assert [row[:2] for row in beside.rows[-2:]] == [("ours: S4D-LegS", "diverged"), ("ours: H3", "diverged")]
    assert [row[1] for row in each.rows] == ["50.00%", "diverged", "diverged", "diverged"]
    assert [row[-1][:1] for row in scaled.rows] == ["7", "-"]
    if PLOTS:
        report.plots[0].write(tmp_path / "plot.png")


def test_six_tasks_have_an_average() -> None:
    config = LraSettings(models=("h3",), tasks=TASKS, folder="/data")
    data = {task: {"sizes": {"train": 3}, "described": "", "caveats": []} for task in TASKS}
    ours = {Cell("h3", task, 0): part(i / 10) for i, task in enumerate(TASKS)}
    report = make_report(config, Found(data, ours))
    assert report.tables[0].rows[-1] == ("ours: H3", "0.00", "10.00", "20.00", "30.00", "40.00", "50.00", "25.00")
    data["text"]["caveats"].append("validation is the test split")
    assert make_report(config, Found(data, ours)).tables[0].rows[-1][2::5] == ("10.00*", "25.00*")
    assert "Not run: Text" not in " ".join(report.tables[0].notes)
    assert any("no settings for these tasks are published" in line for line in report.differences)


def test_quick(tmp_path: Path, cache: Path) -> None:
    small = ["minutes=null", "steps=2", "batch_size=4", "evaluate_items=8", "workers=1"]
    rows = [
        'settings=["data.min_length=8","data.max_length=40","data.n_train=16","data.n_validation=8","data.n_test=8"]'
    ]
    config = settings("lra", quick=True, assignments=[*small, *rows])
    outcome = reproduce("lra", tmp_path / "run", config, plots=PLOTS)
    assert outcome.record is not None
    runs = outcome.record["figures"]["runs"]
    assert set(runs) == {f"listops-gen-{model}" for model in MODELS}
    assert all(0 < run["0"]["chance"] < 1 and run["0"]["steps"] == 2 for run in runs.values())
    assert all(0 < run["0"]["step_ms"] < run["0"]["ms_per_step"] for run in runs.values())  # this has the looks too
    page = (tmp_path / "run" / "report.md").read_text()
    assert "Each run ends after 2 steps" in page
    assert not PLOTS or (tmp_path / "run" / "lra.png").exists()
    again = reproduce("lra", tmp_path / "run", config, plots=False)
    assert again.record is not None
    assert again.record["figures"] == outcome.record["figures"]  # everything was found done


def write_lists(folder: Path, n: int = 10) -> None:
    folder.mkdir()
    lines = [f"( ( ( [MAX {i} ) {(3 * i) % 10} ) ] )\t{max(i, (3 * i) % 10)}" for i in range(n)]
    for name in ("train", "val", "test"):
        (folder / f"basic_{name}.tsv").write_text("\n".join(["Source\tTarget", *lines]) + "\n")


def test_rows_that_are_not_the_published_ones_are_told_below_the_table(tmp_path: Path, cache: Path) -> None:
    """The official format, of any number of rows and characters: the vocabulary is fitted."""
    write_lists(tmp_path / "listops")
    for part in ("train", "test"):
        for name in ("pos", "neg"):
            (tmp_path / "aclImdb" / part / name).mkdir(parents=True)
            for i in range(4):
                (tmp_path / "aclImdb" / part / name / f"{i}.txt").write_text(f"{name} {i} " * 9)
    few = ['tasks=["listops","text"]', 'models=["s4d"]', "minutes=null", "steps=1", "d_model=8", "n_layers=1"]
    rest = ["d_state=4", "batch_size=4", "workers=1", 'settings=["listops:data.max_length=100"]']
    config = settings("lra", assignments=[*few, *rest, f"folder={json.dumps(str(tmp_path))}"])
    outcome = reproduce("lra", tmp_path / "run", config, plots=False)
    assert outcome.record is not None
    page = (tmp_path / "run" / "report.md").read_text()
    rows = "these are not the published rows, which are {}"
    assert f"* listops: {rows.format('96,000, 2,000, 2,000')}; rows are cut to 100 steps, the published ones to" in page
    assert "* text: validation is the test split, as published; " in page
    assert "the vocabulary has 14 tokens, the published one 135." in page


def test_a_finished_folder_is_reported_without_its_data(tmp_path: Path, cache: Path) -> None:
    """Only the data of a task with a part left are opened; a folder that does not know its data says what lacks."""
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    write_lists(data / "listops")
    few = ['tasks=["listops","listops-gen"]', 'models=["s4d"]', "minutes=null", "steps=1", "d_model=8", "n_layers=1"]
    few += ["d_state=4", "batch_size=4", "workers=1", f"folder={json.dumps(str(data))}"]
    rows = [f"listops-gen:data.n_{split}=8" for split in ("train", "validation", "test")]
    rows += ["data.max_length=100", "listops-gen:data.min_length=8"]
    config = settings("lra", assignments=[*few, f"settings={json.dumps(rows)}"])
    first = reproduce("lra", run, config, plots=False)
    assert first.record is not None
    data.rename(tmp_path / "elsewhere")
    again = reproduce("lra", run, config, plots=False)
    assert again.record is not None
    assert again.record["figures"] == first.record["figures"]
    (run / "parts" / "listops-gen-s4d-0.json").unlink()  # which needs no files
    assert reproduce("lra", run, config, plots=False).record is not None
    known = (run / "data.json").read_text()
    for damaged in ("[]", "{", '{"listops": {}}'):
        (run / "data.json").write_text(damaged)
        with pytest.raises(CheckpointError, match=r"data.json is damaged; delete it to have the data read again"):
            reproduce("lra", run, config, plots=False)
    (run / "data.json").unlink()
    with pytest.raises(DataError, match="no listops in"):
        reproduce("lra", run, config, plots=False)
    (run / "data.json").write_text(known)
    (run / "parts" / "listops-s4d-0.json").unlink()
    with pytest.raises(DataError, match="no listops in"):
        reproduce("lra", run, config, plots=False)


def test_what_cannot_be_tested_is_told_before_anything_is_trained(tmp_path: Path, cache: Path) -> None:
    config = settings("lra", quick=True, assignments=['settings=["data.n_train=8","data.n_test=0"]'])
    with pytest.raises(DataError, match=r"listops-gen: there is no test split: data.n_test=0; set it above 0"):
        reproduce("lra", tmp_path / "run", config, plots=False)
    assert list((tmp_path / "run" / "parts").iterdir()) == []


def test_an_experiment_file_trains(tmp_path: Path, cache: Path) -> None:
    """The whole published S4 for ListOps, one step of it, from files in the official format."""
    write_lists(tmp_path / "data")
    given = ["--config", str(FILES / "s4-listops.json"), "--data-dir", str(tmp_path / "data"), "--steps", "1"]
    sizes = ["--batch-size", "2", "--set", "train.reporting.evaluate_items=2", "--set", "train.device=cpu"]
    assert command_line(["train", *given, *sizes, "--out", str(tmp_path / "run")]) == 0
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    model, adamw = run["model"], run["train"]["optimizer"]
    assert (model["d_model"], len(model["layers"]), adamw["dt_lr_ratio"]) == (256, 6, 1.0)
    assert (tmp_path / "run" / "checkpoints" / "step-00000001").exists()
