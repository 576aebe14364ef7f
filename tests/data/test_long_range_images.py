"""CIFAR-10 in grey, Pathfinder from its official files, and the drawn curves."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from labelled import JPEG, needs
from test_cifar import binary_form, small_cifar  # noqa: F401

from statewise.data.long_range import LongRangeDataConfig, open_long_range
from statewise.data.long_range.curves import SETTINGS, CurveSettings, grow_curves
from statewise.data.long_range.division import published_division
from statewise.data.long_range.drawing import draw, paint, place_marks
from statewise.data.sequences import LabelledSplit
from statewise.errors import DataError

SPLITS = ("train", "validation", "test")


def test_the_published_division_is_that_of_torch() -> None:
    rows = torch.utils.data.random_split(range(103), [83, 10, 10], torch.Generator().manual_seed(42))  # type: ignore
    parts = published_division(103, 10, 10)
    for part, subset in enumerate(rows):
        assert np.flatnonzero(parts == part).tolist() == sorted(subset.indices)


def test_cifar_in_grey(tmp_path: Path, small_cifar: tuple[np.ndarray, np.ndarray]) -> None:  # noqa: F811
    images, labels = small_cifar
    (tmp_path / "cifar10").mkdir()
    binary_form(tmp_path / "cifar10", images, labels)
    data = open_long_range(LongRangeDataConfig(task="image", folder=str(tmp_path)))
    grey = np.rint(images @ np.array([0.299, 0.587, 0.114]))
    expected = {(label, *((row - 122.6) / 61).astype(np.float32).round(4)) for label, row in zip(labels, grey)}
    found = set()
    for name, n in zip(SPLITS, (45, 5, 10)):
        split = data.split(name)
        inputs, targets = split.read(np.arange(n))
        assert (len(split), inputs.shape, inputs.dtype) == (n, (n, 1024, 1), np.float32)
        found |= {(label, *row[:, 0].round(4)) for label, row in zip(targets, inputs)}
        own = np.flatnonzero(published_division(50, 5, 0) == SPLITS.index(name)) if name != "test" else range(50, 60)
        assert sorted(targets) == sorted(labels[own])
    # as float32 rounds; a grey value halfway between two may fall to either
    near = [min(np.abs(np.subtract(row, other)).max() for other in expected) for row in found]
    assert max(near) < 1.01 / 61
    assert sum(distance < 1e-3 for distance in near) > 50
    with pytest.raises(DataError, match=r"cifar10 needs its files; set data.folder to cifar-10-binary"):
        open_long_range(LongRangeDataConfig(task="image"))
    with pytest.raises(DataError, match=r"no CIFAR-10 in"):
        open_long_range(LongRangeDataConfig(task="image", folder=str(tmp_path / "cache")))


@pytest.mark.slow
@needs(JPEG)
def test_the_images_themselves() -> None:
    data = open_long_range(LongRangeDataConfig(task="image", folder=str(JPEG.parent)))
    assert [len(data.split(name)) for name in SPLITS] == [45_000, 5_000, 10_000]
    inputs, _ = data.split("train").read(np.arange(2000))
    assert abs(inputs.mean()) < 0.05
    assert abs(inputs.std() - 1) < 0.1


# ---- Pathfinder


def write_pathfinder(folder: Path, n_files: int = 2, per_file: int = 15) -> list[tuple[np.ndarray, int]]:
    """As the release has it; the files of metadata are text. Ten files or more, to see in what order they are read."""
    pillow = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    generator = np.random.default_rng(0)
    folder = folder / "curv_contour_length_14"
    (folder / "metadata").mkdir(parents=True)
    found = []
    for i in range(n_files):
        (folder / "imgs" / str(i)).mkdir(parents=True)
        lines = []
        for j in range(per_file):
            pixels, label = generator.integers(0, 256, (32, 32), np.uint8), int(generator.integers(2))
            pillow.fromarray(pixels).save(folder / "imgs" / str(i) / f"sample_{j}.png")
            lines.append(f"imgs/{i} sample_{j}.png {j} {label} 1.0 14 4 2 0.5 1 1\n")
            found.append((pixels.ravel(), label))
        (folder / "metadata" / f"{i}.npy").write_text("".join(lines))
    return found


def test_pathfinder_is_prepared_as_published(tmp_path: Path) -> None:
    images = write_pathfinder(tmp_path / "pathfinder32", 11, 3)
    data = open_long_range(LongRangeDataConfig(task="pathfinder", folder=str(tmp_path)))
    assert (data.d_input, data.vocab_size, data.classes) == (1, None, ("not connected", "connected"))
    parts = published_division(33, 3, 3)
    for part, name in enumerate(SPLITS):
        inputs, targets = data.split(name).read(np.arange(len(data.split(name))))
        found = [(row[:, 0].tolist(), label) for row, label in zip(inputs, targets.tolist())]
        own = [images[i] for i in np.flatnonzero(parts == part)]
        expected = [((pixels * np.float32(1 / 255)).tolist(), label) for pixels, label in own]
        assert found == expected if name == "train" else sorted(found) == sorted(expected)
    assert "these are not the published rows, which are 160,000, 20,000, 20,000" in data.describe()


def test_an_image_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    write_pathfinder(tmp_path)
    config = LongRangeDataConfig(task="pathfinder", folder=str(tmp_path))
    before = open_long_range(config)
    assert open_long_range(config).fingerprint == before.fingerprint
    folder = tmp_path / "curv_contour_length_14" / "imgs" / "1"
    (folder / "sample_3.png").write_bytes((folder / "sample_4.png").read_bytes())
    assert open_long_range(config).fingerprint != before.fingerprint


def test_pathfinder_that_is_not_what_it_should_be(tmp_path: Path) -> None:
    config = LongRangeDataConfig(task="pathfinder", folder=str(tmp_path))
    with pytest.raises(DataError, match=r"no pathfinder in .* pathfinder32.* they come from lra_release.gz of github"):
        open_long_range(config)
    write_pathfinder(tmp_path)
    level = tmp_path / "curv_contour_length_14"
    with pytest.raises(DataError, match=r"sample_0.png has 32 x 32 pixels, expected 128 x 128"):
        open_long_range(LongRangeDataConfig(task="path-x", folder=str(tmp_path)))
    (level / "imgs" / "1" / "sample_3.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"sample_3.png is not an image$"):
        open_long_range(config)
    (level / "imgs" / "1" / "sample_3.png").unlink()
    with pytest.raises(DataError, match=r"cannot read the image \S+sample_3.png: No such file"):
        open_long_range(config)
    (level / "metadata" / "1.npy").write_text("imgs/1 sample_0.png 0\n")
    with pytest.raises(DataError, match=r"1.npy, line 1 is 'imgs/1 sample_0.png 0'; expected a folder, a file"):
        open_long_range(config)
    (level / "metadata" / "1.npy").unlink()
    (level / "metadata" / "0.npy").write_text("imgs/0 sample_0.png 0 1\n")
    with pytest.raises(DataError, match=r"metadata lists 1 images; expected 10 or more, which are divided"):
        open_long_range(config)
    np.save(level / "metadata" / "1.npy", np.arange(3))
    with pytest.raises(DataError, match=r"cannot read \S+1.npy as lines of text"):
        open_long_range(config)


# ---- drawn curves


def painted_slowly(side: int, strokes: np.ndarray, thickness: float, brightness: float) -> np.ndarray:
    """The definition: every pixel's distance from every stroke."""
    canvas = np.zeros((side, side))
    for y in range(side):
        for x in range(side):
            for y0, x0, y1, x1 in strokes.astype(float):
                dy, dx = y1 - y0, x1 - x0
                length = dy * dy + dx * dx
                share = min(1.0, max(0.0, ((y - y0) * dy + (x - x0) * dx) / length)) if length else 0.0
                distance = np.hypot(y - y0 - share * dy, x - x0 - share * dx)
                canvas[y, x] = max(canvas[y, x], brightness * min(1.0, max(0.0, thickness / 2 + 0.5 - distance)))
    return canvas


@pytest.mark.parametrize(("thickness", "longest"), [(1.0, 3.0), (3.0, 0.0), (1.5, 9.0)])
def test_painting(thickness: float, longest: float) -> None:
    """Also across the edge."""
    generator = np.random.default_rng(0)
    first = generator.uniform(-1, 16, (2, 6, 2))
    strokes = np.concatenate([first, first + generator.uniform(-longest, longest, (2, 6, 2))], -1).astype(np.float32)
    canvas = np.zeros((2, 16, 16), np.float32)
    image = np.repeat([0, 1], 6)
    paint(canvas, image, strokes.reshape(-1, 4), thickness=thickness, brightness=0.8)
    for own, expected in zip(canvas, strokes):
        np.testing.assert_allclose(own, painted_slowly(16, expected, thickness, 0.8), atol=2e-6)


def distance_between(a: np.ndarray, b: np.ndarray) -> float:
    """Of two polygons (n, 2), by points a tenth of a pixel apart or so."""
    fine = [np.concatenate([np.linspace(p, q, 60) for p, q in itertools.pairwise(line)]) for line in (a, b)]
    return float(np.sqrt(((fine[0][:, None] - fine[1]) ** 2).sum(-1)).min())


def line_of(dashes: np.ndarray) -> np.ndarray:
    """The knots of a curve of dashes (n, 4)."""
    return np.concatenate([dashes[:, :2], dashes[-1:, 2:]])


@pytest.mark.parametrize("task", SETTINGS)
def test_curves_keep_clear_of_each_other(task: str) -> None:
    settings = SETTINGS[task]
    curves = grow_curves(np.random.default_rng(0), 64, settings)
    n = len(curves.targets)
    assert n > 3
    assert np.isfinite(curves.targets).all()
    assert 3 < np.isfinite(curves.distractors).all((2, 3)).sum(1).mean() <= settings.n_distractors
    dashes = np.linalg.norm(curves.targets[..., 2:] - curves.targets[..., :2], axis=-1)
    np.testing.assert_allclose(dashes, settings.dash, rtol=1e-4)
    gaps = np.linalg.norm(curves.targets[..., 1:, :2] - curves.targets[..., :-1, 2:], axis=-1)
    np.testing.assert_allclose(gaps, settings.gap, rtol=1e-4)
    # points that are held against others lie step / n_points apart: between them two curves may come nearer
    least = np.sqrt(settings.clearance**2 - (settings.step / settings.n_points / 2) ** 2) * 0.9
    for i in range(min(n, 8)):
        lines = [line_of(dashes) for dashes in curves.targets[i]]
        start = np.linalg.norm(lines[0][0] - lines[1][0])
        assert start == pytest.approx(settings.seed_distance, rel=1e-4)
        lines += [line_of(dashes) for dashes in curves.distractors[i] if np.isfinite(dashes).all()]
        for j, line in enumerate(lines):
            assert line.min() > settings.padding - 1e-3
            assert line.max() < settings.side - 1 - settings.padding + 1e-3
            assert all(distance_between(line, other) > least for other in lines[:j])
            steps = [line[k : k + 2] for k in range(len(line) - 1)]
            assert all(
                distance_between(steps[k], steps[m]) > least / 2 for m in range(len(steps)) for k in range(m - 1)
            )


def test_marks_and_labels() -> None:
    settings = SETTINGS["pathfinder-gen"]
    curves = grow_curves(np.random.default_rng(1), 256, settings)
    n = len(curves.targets)
    labels, chosen = np.arange(n) % 2, np.arange(n) // 2 % 2
    marks = place_marks(curves, labels, chosen)
    for i in range(n):
        begins, ends = curves.targets[i, :, 0, :2], curves.targets[i, :, -1, 2:]
        begin = int(np.flatnonzero((begins == marks[i, 0]).all(-1)).item())
        end = int(np.flatnonzero((ends == marks[i, 1]).all(-1)).item())
        assert begin == chosen[i]
        assert (begin == end) == labels[i]
    images = draw(curves, marks, settings).reshape(n, 32, 32)
    assert images.dtype == np.uint8
    for image, places in zip(images, marks):
        for y, x in np.rint(places).astype(int):
            assert image[y, x] == 255
    strokes = curves.targets[0].reshape(-1, 4)
    others = curves.distractors[0][np.isfinite(curves.distractors[0]).all((1, 2))].reshape(-1, 4)
    slowly = painted_slowly(32, np.concatenate([strokes, others]), settings.thickness, settings.brightness)
    discs = painted_slowly(32, np.concatenate([marks[0], marks[0]], -1), 2 * settings.mark_radius, 1.0)
    assert np.abs(images[0] - 255 * np.maximum(slowly, discs)).max() < 0.51


def small(task: str = "pathfinder-gen", **changes: int) -> LongRangeDataConfig:
    fields = {"n_train": 41, "n_validation": 6, "n_test": 6, **changes}
    return LongRangeDataConfig(task=task, **fields)


def test_drawn_rows() -> None:
    data, more = open_long_range(small()), open_long_range(small(n_train=300))
    assert [len(data.split(name)) for name in SPLITS] == [41, 6, 6]
    for name in SPLITS:
        split = data.split(name)
        inputs, targets = split.read(np.arange(len(split)))
        assert inputs.shape == (len(split), 1024, 1)
        assert inputs.min() == 0
        assert inputs.max() == 1
        assert abs(2 * targets.sum() - len(targets)) <= 1
    test, again = (np.sort(opened.split("test").read(np.arange(6))[0], 0) for opened in (data, more))
    assert np.array_equal(test, again)  # it does not hang on how many training rows there are
    assert open_long_range(small()).fingerprint == data.fingerprint
    assert open_long_range(small(seed=1)).fingerprint != data.fingerprint
    assert "drawn by Statewise; not the published images" in data.describe()


def test_large_drawn_rows() -> None:
    told: list[tuple[int, int]] = []
    data = open_long_range(small("path-x-gen", n_train=4), progress=lambda *at: told.append(at))
    assert data.max_length == 128 * 128
    assert isinstance(data.split("train"), LabelledSplit)
    assert told[-1] == (16, 16)


def test_curves_without_room() -> None:
    crowded = CurveSettings(24, 3.0, 1.0, 1.0, 1.0, 1.0, 5.0, 3.5, 4, n_dashes=5, n_points=2)
    curves = grow_curves(np.random.default_rng(0), 200, crowded)
    assert 0 < len(curves.targets) < 200
    there = np.isfinite(curves.distractors)
    assert (there.all((2, 3)) == there.any((2, 3))).all()
    assert not there.all()
