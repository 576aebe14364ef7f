"""Folders of pictures and of sounds whose subfolders are classes; wrong ones of each kind, refused in a line."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile import refused
from own_files import Image, own, pictures, rows_of, soundfile, tone, write_pictures, write_sounds

from statewise.errors import ConfigError, StatewiseError
from statewise.files.pictures import fit_picture, look_at_picture
from statewise.files.sounds import look_at_sound, read_sound

# ---- pictures


@pytest.mark.parametrize("ending", ["png", "bmp", "gif", "webp"])
def test_pictures_are_their_pixels_row_by_row(tmp_path: Path, ending: str) -> None:
    lossless = {"png": "L", "bmp": "L", "gif": "L", "webp": "RGB"}[ending]
    place = tmp_path / "a"
    for i, pixels in enumerate(stored := pictures(12, mode=lossless)):
        (folder := place / f"{i % 3 + 8}").mkdir(parents=True, exist_ok=True)
        options = {"lossless": True} if ending == "webp" else {}
        Image.fromarray(pixels).save(folder / f"{i:02}.{ending}", **options)
    data = own(place, channels=None if lossless == "RGB" else "grey")
    assert data.classes == ("8", "9", "10"), "numbers are sorted as numbers"
    expected = [stored[i].reshape(20, -1) for k in (2, 0, 1) for i in range(k, 12, 3)]  # by name
    assert all(np.array_equal(a, b) for a, b in zip(rows_of(data), expected, strict=True))
    assert (data.d_input, data.max_length) == (stored[0].reshape(20, -1).shape[1], 20)
    assert f"data       a/: pictures in 3 folders, 5 x 4, {'rgb' if data.d_input == 3 else 'grey'}" in data.describe()
    assert "classes 8, 9, 10" in data.describe()


def test_sizes_colours_and_hidden_files(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "photos")
    Image.fromarray(pictures(1, (10, 8), "RGB")[0]).save(folder / "cat" / "large.jpg", quality=95)
    (folder / "cat" / ".DS_Store").write_bytes(b"\0")
    (folder / "Thumbs.db").write_bytes(b"\0")
    data = own(folder)
    assert "5 x 4, rgb (1 resized); classes cat, dog; skipped 2 hidden; 3 numbers a step" in data.describe()
    grey = own(folder, channels="grey", image_size=(2, 3))
    assert (grey.d_input, grey.max_length) == (1, 6)
    assert "2 x 3, grey (25 resized)" in grey.describe()
    assert own(folder, channels="grey", max_length=7).max_length == 7


def test_what_tells_of_a_folder_is_passed_over_by_name(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "photos", 12)
    rows = rows_of(own(folder))
    for name in ("README.txt", "LICENSE", "cat/Readme.md", "dog/licence-of-photos.pdf", "THUMBS.DB", "desktop.ini"):
        (folder / name).write_bytes(b"of these photos\n")
    data = own(folder)
    assert all(np.array_equal(a, b) for a, b in zip(rows_of(data), rows, strict=True))
    told = "skipped 2 hidden, LICENSE, README.txt, cat/Readme.md, dog/licence-of-photos.pdf;"
    assert told in data.describe()
    for part in ("train", "test"):
        write_pictures(tmp_path / "parts" / part, 6)
    (tmp_path / "parts" / "README.txt").write_text("of these photos\n")
    assert len(own(tmp_path / "parts").split("test")) == 6
    shutil.copy(folder / "cat" / "00.png", folder / "cat" / "license_plate.png")
    assert len(rows_of(own(folder))) == 13, "a picture is one, whatever it shows"
    sounds = write_sounds(tmp_path / "sounds", 4)
    (sounds / "README").write_text("of these sounds\n")
    assert "skipped README;" in own(sounds).describe()


def test_splits_of_their_own(tmp_path: Path) -> None:
    for part, n in (("train", 10), ("val", 4), ("Test", 6)):
        write_pictures(tmp_path / "a" / part, n)
    data = own(tmp_path / "a")
    assert [len(data.split(name)) for name in ("train", "validation", "test")] == [10, 4, 6]
    assert "in train and validation and test" in data.describe()
    assert "the file has its own test rows" in refused(lambda: own(tmp_path / "a", test_fraction=0.1))
    shutil.rmtree(tmp_path / "a" / "val")
    fewer = own(tmp_path / "a")
    assert [len(fewer.split(name)) for name in ("train", "validation", "test")] == [8, 2, 6]
    assert fewer.fingerprint != data.fingerprint
    for name in ("train", "test"):  # also the names of classes
        (tmp_path / "b" / name).mkdir(parents=True)
        shutil.copy(tmp_path / "a" / "train" / "cat" / "00.png", tmp_path / "b" / name / "0.png")
    assert own(tmp_path / "b", test_fraction=0.0).classes == ("test", "train")
    write_pictures(tmp_path / "c" / "test", 4)
    assert "no train" in refused(lambda: own(tmp_path / "c"))


def test_how_the_camera_was_held_and_what_is_transparent(tmp_path: Path) -> None:
    pixels = pictures(1, (4, 6))[0]
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it to the right
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    assert look_at_picture(tmp_path / "a.png").size == (6, 4)
    np.testing.assert_array_equal(fit_picture(tmp_path / "a.png", size=(6, 4), mode="L"), np.rot90(pixels, -1))
    clear = np.zeros((4, 6, 4), np.uint8)
    clear[0, 0] = (0, 0, 0, 255)
    Image.fromarray(clear).save(tmp_path / "b.png")
    found = fit_picture(tmp_path / "b.png", size=(4, 6), mode="L")
    assert (found[0, 0], found[1:].min()) == (0, 255)


def png(**options: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pictures(1)[0]).save(out, "PNG", **options)
    return out.getvalue()


def sixteen_bits() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((5, 4), 60_000, np.uint16)).save(out, "PNG")
    return out.getvalue()


def animated() -> bytes:
    out = io.BytesIO()
    first, *rest = map(Image.fromarray, pictures(3))
    first.save(out, "GIF", save_all=True, append_images=rest)
    return out.getvalue()


def tiff() -> bytes:
    out = io.BytesIO()
    Image.fromarray(pictures(1)[0]).save(out, "TIFF")
    return out.getvalue()


def bomb() -> bytes:
    """A PNG whose header claims 12,000 x 12,000 pixels."""
    import zlib

    data = bytearray(png())
    data[16:24] = (12_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


WRONG_PICTURES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "a text": ("cat/notes.txt", lambda: b"some notes\n", "notes.txt is plain text, among pictures; move it out"),
    "a text named .png": ("cat/x.png", lambda: b"no picture", "x.png is called .png, but is plain text; replace it"),
    "a text above the classes": ("notes.txt", lambda: b"some notes\n", "notes.txt is plain text, among pictures; mo"),
    "labels above the classes": ("labels.csv", lambda: b"a,b\n1,2\n3,4\n", "labels.csv is a table, cells with separ"),
    "a table called so": ("cat/readme.csv", lambda: b"a,b\n1,2\n3,4\n", "readme.csv is a table, cells with separators"),
    "a sound": ("dog/x.wav", lambda: b"RIFF\0\0\0\0WAVE" + bytes(40), "is a sound, among pictures"),
    "a table": ("cat/x.csv", lambda: b"a,b\n1,2\n3,4\n", "is a table, cells with separators, among pictures"),
    "nothing": ("cat/x.png", lambda: b"", "x.png is called .png, but is empty; replace it, or move"),
    "cut short": ("cat/x.png", lambda: png()[:50], "; replace it, or move it out"),
    "noise": ("cat/x.png", lambda: png()[:40] + bytes(30), "x.png is not an image"),
    "above the classes": ("x.png", png, "is not in a folder of a class"),
    "16 bits": ("cat/x.png", sixteen_bits, "has more than 8 bits a number"),
    "several in one": ("cat/x.gif", animated, "holds 3 pictures; expected one"),
    "TIFF": ("cat/x.tif", tiff, "x.tif is not an image"),
    "a bomb": ("cat/x.png", bomb, "expands to 576,000,000 bytes"),
}


@pytest.mark.parametrize("what", WRONG_PICTURES)
def test_wrong_pictures_are_refused_in_a_line(tmp_path: Path, what: str) -> None:
    name, make, said = WRONG_PICTURES[what]
    folder = write_pictures(tmp_path / "a", 4)
    (folder / name).write_bytes(make())
    assert said in refused(lambda: own(folder))


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "has no files" in refused(lambda: own(tmp_path / "empty"))
    assert "does not exist; give a folder, a table" in refused(lambda: own(tmp_path / "nothing"))
    shutil.rmtree(write_pictures(tmp_path / "one", 4) / "dog")
    assert "has only the class cat" in refused(lambda: own(tmp_path / "one"))
    (tmp_path / "texts" / "a").mkdir(parents=True)
    (tmp_path / "texts" / "a" / "b.txt").write_text("a text, of words\n")
    assert "holds texts, but source 'files' reads numbers" in refused(lambda: own(tmp_path / "texts"))
    folder = write_pictures(tmp_path / "a", 4)
    assert "is a picture, a single file; give the folder" in refused(lambda: own(folder / "cat" / "00.png"))
    for options, said in (
        ({"label_field": "kind"}, "data.label_field is not for a folder"),
        ({"sampling_rate": 8000}, "data.sampling_rate is not for pictures"),
        ({"channels": "mono"}, "data.channels='mono' is not for pictures; use one of"),
        ({"labels": "x.npy"}, "data.labels is not for a folder"),
    ):
        assert said in refused(lambda options=options: own(folder, **options), ConfigError)  # type: ignore[misc]


# ---- sounds


@pytest.mark.parametrize(("ending", "exact"), [("wav", 2**-15), ("flac", 2**-15), ("ogg", 0.1)])
def test_sounds_are_their_samples(tmp_path: Path, ending: str, exact: float) -> None:
    data = own(write_sounds(tmp_path / "a", 6, ending), normalize="none")
    rows = rows_of(data)
    first = tone(8000, 1000)
    assert rows[0].dtype == np.float32
    assert len(rows[0]) >= len(first)
    np.testing.assert_allclose(rows[0][: len(first)], first, atol=exact)
    assert "sounds in 2 folders, 8,000 samples a second, mono; classes high, low" in data.describe()
    assert data.found.sampling_rate == 8000


def test_sampling_rates_and_channels(tmp_path: Path) -> None:
    folder = write_sounds(tmp_path / "a", 12, rates=(8000, 8000, 44100))
    data = own(folder)
    assert "8,000 samples a second (4 resampled), mono" in data.describe()
    fast = own(folder, sampling_rate=16000, normalize="none")
    assert (fast.max_length, fast.found.sampling_rate) == (352, 16000)
    path = folder / "high" / "04.wav"  # of 44,100 a second
    sound = read_sound(path, rate=8000, mono=True)[:, 0]
    expected = tone(8000, 1004, 0.021)[:, 0]
    assert abs(len(sound) - len(expected)) <= 1
    np.testing.assert_allclose(sound[20:140], expected[20:140], atol=0.01)  # its ends ring

    stereo = write_sounds(tmp_path / "b", 4, channels=2)
    mixed = own(stereo)
    assert "mono (the mean of their channels)" in mixed.describe()
    both = own(stereo, channels="all", normalize="none")
    assert both.d_input == 2
    np.testing.assert_allclose(rows_of(both)[0].mean(1), rows_of(own(stereo, normalize="none"))[0][:, 0], atol=1e-7)
    write_sounds(stereo, 1)
    assert 'has 2 channels, 00.wav 1; use data.channels="mono"' in refused(lambda: own(stereo, channels="all"))


def wave(write: Callable[[io.BytesIO], object]) -> bytes:
    out = io.BytesIO()
    write(out)
    return out.getvalue()


def plain(rate: int = 8000, n: int = 80) -> bytes:
    return wave(lambda out: soundfile.write(out, np.zeros(n), rate, format="WAV"))


def not_finite() -> bytes:
    return wave(lambda out: soundfile.write(out, np.full(50, np.nan), 8000, format="WAV", subtype="FLOAT"))


def aiff() -> bytes:
    return wave(lambda out: soundfile.write(out, np.zeros(9), 8000, format="AIFF"))


def zeros_in_flac() -> bytes:
    return wave(lambda out: soundfile.write(out, np.zeros(18_000_000, np.int16), 8000, format="FLAC"))


WRONG_SOUNDS: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "a text": ("low/notes.txt", lambda: b"some notes\n", "notes.txt is plain text, among sounds; move it out"),
    "a text named .wav": ("low/x.wav", lambda: b"no sound", "x.wav is called .wav, but is plain text; replace it"),
    "a picture": ("low/x.png", png, "is a picture, among sounds"),
    "JSON lines": ("low/x.jsonl", lambda: b'{"a": 1}\n{"a": 2}\n', "is JSON lines (a document a line), among sounds"),
    "nothing": ("low/x.wav", lambda: b"", "x.wav is called .wav, but is empty; replace it, or move"),
    "cut short": ("low/x.wav", lambda: plain()[:-60], "is cut short: its header says"),
    "a cut FLAC": ("low/x.flac", lambda: zeros_in_flac()[:60], "x.flac"),
    "a header alone": ("low/x.wav", lambda: plain(n=0), "has no samples, only a header"),
    "noise": ("low/x.wav", lambda: plain()[:12] + bytes(range(200)), "x.wav"),
    "above the classes": ("x.wav", plain, "is not in a folder of a class"),
    "not finite": ("low/x.wav", not_finite, "has samples that are not finite"),
    "another format": ("low/x.wav", aiff, "is not a WAV, FLAC or OGG file; convert it"),
    "too fast": ("low/x.wav", lambda: plain(1_000_000), "has 1,000,000 samples a second; expected 1 to 384,000"),
    "a bomb": ("low/x.flac", zeros_in_flac, "expands to 72,000,000 bytes"),
    "slow, and so a bomb": ("low/x.wav", lambda: plain(1, 9000), "expands to"),
}


@pytest.mark.parametrize("what", WRONG_SOUNDS)
def test_wrong_sounds_are_refused_in_a_line(tmp_path: Path, what: str) -> None:
    name, make, said = WRONG_SOUNDS[what]
    folder = write_sounds(tmp_path / "a", 4)
    (folder / name).write_bytes(make())
    assert said in refused(lambda: own(folder), StatewiseError)


def test_a_wave_that_was_written_to_a_pipe_is_read(tmp_path: Path) -> None:
    data = bytearray(plain())
    data[4:8] = b"\xff" * 4
    (tmp_path / "x.wav").write_bytes(data)
    assert look_at_sound(tmp_path / "x.wav") == (8000, 1, 80)


def test_a_folder_that_would_fill_the_memory_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statewise.files.limits.LEAST", 0)
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        for i in range(3):
            Image.new("L", (300, 300)).save(tmp_path / kind / f"{i}.png")
    monkeypatch.setattr("statewise.data.own.media.require_within", lambda what, n, n_bytes: within(what, n, n_bytes))
    from statewise.files.limits import require_within

    def within(what: str, n: int, n_bytes: int) -> None:
        require_within(what, n, n_bytes, least=0)

    assert "6 pictures together expands to 540,000 bytes" in refused(lambda: own(tmp_path))
