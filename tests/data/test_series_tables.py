"""Tables of series as people have them: delimiters, decimal commas, dates, compression, Parquet, DataFrames."""

from __future__ import annotations

import gc
import gzip
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statewise.data.decimals import decimal_mark
from statewise.data.series import SeriesDataConfig, open_series
from statewise.data.series_cells import Notation, read_cells
from statewise.data.series_dates import DateFormat, read_dates
from statewise.data.series_files import SeriesFile, read_series
from statewise.data.series_times import Frequency, times_after
from statewise.errors import DataError

MONTHS = [date(2019 + m // 12, m % 12 + 1, 1) for m in range(30)]


def read(source: Any, targets: tuple[str, ...] = (), **fields: Any) -> SeriesFile:
    options = {name: fields.pop(name, None) for name in ("time", "series", "frequency")}
    notation = Notation(**{name: fields.pop(name) for name in list(fields) if name in Notation._fields})
    return read_series(source, targets=targets, covariates=fields.pop("covariates", ()), notation=notation, **options)


def write(folder: Path, text: str, name: str = "sales.csv", encoding: str = "utf-8") -> Path:
    (folder / name).write_bytes(text.encode(encoding))
    return folder / name


def moments(*stamps: str) -> list[float]:
    return np.array(stamps, "datetime64[s]").astype(np.int64).tolist()


# ---- text


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_any_delimiter(tmp_path: Path, delimiter: str) -> None:
    rows = ["month,sold,promo", *(f"{month},{i}.5,{i % 2}" for i, month in enumerate(MONTHS))]
    found = read(write(tmp_path, "\n".join(rows).replace(",", delimiter)), covariates=("promo",))
    assert found.targets == ("sold",)
    assert (str(found.frequency), found.time) == ("month", "month")
    assert found.series[0].values.ravel().tolist() == [i + 0.5 for i in range(30)]
    assert found.series[0].covariates.ravel().tolist() == [i % 2 for i in range(30)]


def test_a_delimiter_that_nobody_has_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, "t^y\n1^2\n2^4\n3^5\n")
    assert read(path, delimiter="^").series[0].values.ravel().tolist() == [2, 4, 5]
    both = write(tmp_path, "a;b,c\n1;2,3\n2;3,4\n", "both.csv")
    with pytest.raises(DataError, match=r"separated by ',' or ';'; say which: data\.delimiter=','"):
        read(both)


def test_as_a_spreadsheet_in_german_writes_it(tmp_path: Path) -> None:
    text = "Tag;Umsatz;Menge;\r\n01.03.2024;1.234,50;7;\r\n02.03.2024;987,25;;\r\n03.03.2024;1.000.000,00;9;\r\n"
    found = read(write(tmp_path, text, encoding="utf-8-sig"))
    assert found.targets == ("Umsatz", "Menge")
    assert str(found.frequency) == "day"
    assert found.series[0].times.tolist() == moments("2024-03-01", "2024-03-02", "2024-03-03")
    expected = [[1234.5, 7], [987.25, np.nan], [1e6, 9]]
    assert np.array_equal(found.series[0].values, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("cells", "delimiter", "mark"),
    [
        (["1,5", "2"], ";", ","),
        (["1.5", "2"], ";", "."),
        (["1.234,5"], ";", ","),
        (["1,234.5"], ",", "."),
        (["1,234,567", "12"], ",", "."),
        (["1.234.567", "12"], ";", ","),
        (["1,234", "0.5"], ",", "."),
        (["1.234", "0,5"], ";", ","),
        (["1.234", "2.345"], ",", "."),
        (["1.234", "12345"], ";", "."),
        (["1,234", "12345"], ";", ","),
        (["0.234", "1.345"], ";", "."),
        (["1 234,5"], ";", ","),
        (["12", ""], ";", "."),
        (["1.234", "950"], ";", None),
        (["1,234", "950"], ",", None),
        (["1,5", "1.5"], ";", None),
        (["1.234,5", "1,234.5"], ";", None),
    ],
)
def test_which_mark_is_decimal(cells: list[str], delimiter: str, mark: str | None) -> None:
    if mark is None:
        with pytest.raises(DataError, match=r"here: .*data\.decimal=',' or data\.decimal='\.'") as error:
            decimal_mark([cells], delimiter, "here")
        assert "\n" not in str(error.value)
    else:
        assert decimal_mark([cells], delimiter, "here") == mark


def test_what_is_said_of_decimals_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path, "t;y\n1;1.234\n2;950\n3;2.000\n")
    assert read(path, decimal=",").series[0].values.ravel().tolist() == [1234, 950, 2000]
    assert read(path, decimal=".").series[0].values.ravel().tolist() == [1.234, 950, 2]
    spaced = write(tmp_path, "t;y\n1;1\u00a0234,5\n2;1 000,0\n3;7\n", "spaced.csv")
    assert read(spaced).series[0].values.ravel().tolist() == [1234.5, 1000, 7]


# ---- dates

DAYS = [date(2024, 3, 1) + timedelta(i) for i in range(20)]


@pytest.mark.parametrize(
    "letters",
    ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%Y/%m/%d", "%Y.%m.%d", "%Y%m%d"]
    + ["%d %b %Y", "%d-%b-%y", "%B %d, %Y", "%b %d %Y", "%m/%d/%y", "%Y-%m-%dT%H:%M:%SZ", "%d.%m.%Y %H:%M"]
    + ["%m/%d/%Y %I:%M %p", "%Y-%m-%d %H:%M:%S+00:00"],
)
def test_dates_as_people_write_them(letters: str) -> None:
    found = read_dates([day.strftime(letters) for day in DAYS], DateFormat(), lambda row: "")
    assert found is not None
    assert found.stamps.tolist() == moments(*map(str, DAYS))


@pytest.mark.parametrize(
    "cells", [["2024-01", "2024-02"], ["01/2024", "02/2024"], ["Jan 2024", "Feb 2024"], ["Jan-24", "Feb-24"]]
)
def test_months_without_a_day(cells: list[str]) -> None:
    found = read_dates(cells, DateFormat(), lambda row: "")
    assert found is not None
    assert found.stamps.tolist() == moments("2024-01-01", "2024-02-01")
    quarters = read_dates(["2024Q1", "2024-Q2", "Q3 2024"][:2], DateFormat(), lambda row: "")
    assert quarters is not None
    assert quarters.stamps.tolist() == moments("2024-01-01", "2024-04-01")


def test_day_or_month_is_told_by_the_whole_column_or_asked_for() -> None:
    def read_them(*cells: str, **given: Any) -> list[float]:
        found = read_dates(cells, DateFormat(**given), lambda row: f"line {row + 2}")
        assert found is not None
        return found.stamps.tolist()  # type: ignore[no-any-return]

    months = [f"{m % 12 + 1:02}/01/{2020 + m // 12}" for m in range(15)]  # the other way they have gaps
    assert read_them(*months)[1] == moments("2020-02-01")[0]
    assert read_them(*months, day_first=False)[1] == moments("2020-02-01")[0]
    assert read_them("01.02.2024", "01.03.2024") == moments("2024-02-01", "2024-03-01")
    assert read_them("01/02/2024", "13/02/2024") == moments("2024-02-01", "2024-02-13")
    for given, expected in ((True, "2024-02-01"), (False, "2024-01-02")):
        assert read_them("01/02/2024", "01/03/2024", day_first=given)[0] == moments(expected)[0]
    with pytest.raises(DataError, match=r"line 2: .*day first or month first; say which: data\.day_first=true or"):
        read_them("01/02/2024", "01/03/2024", "01/04/2024")
    with pytest.raises(DataError, match=r"are not dates with the month first; leave out data\.day_first=false"):
        read_them("13/02/2024", "14/02/2024", day_first=False)
    with pytest.raises(DataError, match=r"day first or year first; say which: data\.day_first=true"):
        read_them("01.03.24", "02.03.24", "03.03.24", "13.03.24")
    assert read_them("01.03.24", "13.03.24", day_first=True)[0] == moments("2024-03-01")[0]
    with pytest.raises(DataError, match="are not dates in any order"):
        read_them("13/13/2024", "14/02/2024")
    with pytest.raises(DataError, match=r"line 3: the time '3 Mar 2024' is written differently"):
        read_them("01/02/2024", "3 Mar 2024")
    assert read_them("1 2024 7", date_format="%d %Y %m") == moments("2024-07-01")
    with pytest.raises(DataError, match=r"line 3: the time 'x' is not written as data\.date_format='%Y'"):
        read_them("2024", "x", date_format="%Y")


def test_months_go_on_as_months() -> None:
    month = Frequency("months", 1)
    at = lambda *days: np.array(days, "datetime64[s]").astype(np.int64).tolist()  # noqa: E731
    assert times_after(at("2023-12-31")[0], 3, month).tolist() == at("2024-01-31", "2024-02-29", "2024-03-31")
    assert times_after(at("2023-02-28")[0], 2, month).tolist() == at("2023-03-28", "2023-04-28")
    ends = times_after(at("2023-02-28")[0], 2, month, at_month_ends=True)
    assert ends.tolist() == at("2023-03-31", "2023-04-30")
    quarters = times_after(at("2023-11-15T06:00")[0], 2, Frequency("months", 3))
    assert quarters.tolist() == at("2024-02-15T06:00", "2024-05-15T06:00")


def test_a_gap_of_months_keeps_its_place_in_the_season(tmp_path: Path) -> None:
    rows = ["month,y", *(f"{month},{i}" for i, month in enumerate(MONTHS) if i not in (1, 13))]
    options: dict[str, Any] = {"horizon": 2, "history": 4, "calendar": ("season",), "test_fraction": 0.2}
    (table,) = open_series(SeriesDataConfig(source=str(write(tmp_path, "\n".join(rows))), **options)).tables
    assert table.times[:3].tolist() == moments("2019-01-01", "2019-02-01", "2019-03-01")
    assert np.allclose(table.covariates[:, 0], np.sin(2 * np.pi * np.arange(30) / 12))


# ---- other files


def test_parquet_that_claims_too_much_is_not_unfolded(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet

    columns = {"step": np.zeros(10_000_000, np.int64), "v": np.zeros(10_000_000)}
    pyarrow.parquet.write_table(arrow.table(columns), tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(DataError, match=r"a\.parquet expands to 160,\d+,\d+ bytes from .* STATEWISE_MAX_EXPANSION"):
        read(tmp_path / "a.parquet")


def test_compressed_text_parquet_and_frames_are_the_same(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    frame = pandas.DataFrame({"when": MONTHS, "y": np.arange(30.0), "shop": ["a"] * 15 + ["b"] * 15})
    frame.loc[4, "y"] = np.nan
    text = frame.to_csv(index=False).encode()
    (tmp_path / "a.csv").write_bytes(text)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a.csv.zst").write_bytes(zstandard.ZstdCompressor().compress(text))
    frame.to_parquet(tmp_path / "a.parquet")
    stamped = frame.assign(when=pandas.to_datetime(frame["when"]))
    zoned = stamped.assign(when=stamped["when"].dt.tz_localize("UTC"))
    words = frame.assign(when=frame["when"].astype(str).astype("category"), shop=frame["shop"].astype("category"))
    for name, other in (("ns", stamped), ("zone", zoned), ("words", words)):
        other.to_parquet(tmp_path / f"{name}.parquet")
    files = ["a.csv", "a.csv.gz", "a.csv.zst", "a.parquet", "ns.parquet", "zone.parquet", "words.parquet"]
    sources = [*(tmp_path / name for name in files), frame, zoned, stamped.set_index("when"), frame.iloc[::-1]]
    first, *others = (read(source, series="shop", time="when") for source in sources)
    for other in others:
        assert (other.targets, other.frequency, other.dates) == (first.targets, first.frequency, True)
        assert {table.name for table in other.series} == {"a", "b"}
        for table in other.series:
            mine = next(one for one in first.series if one.name == table.name)
            assert table.times.tolist() == mine.times.tolist()
            assert np.array_equal(table.values, mine.values, equal_nan=True)
    series = stamped.set_index("when").rename_axis(None)["y"]
    assert read(series).time == "time"
    assert read(pandas.DataFrame({"step": range(9), "y": range(9)})).dates is False
    periods = pandas.DataFrame({"y": range(9)}, index=pandas.period_range("2024-01", periods=9, freq="M"))
    assert str(read(periods).frequency) == "month"
    filtered = pandas.DataFrame({"step": range(9), "y": range(9)})[lambda t: t.step > 3]
    assert read(filtered).series[0].values.ravel().tolist() == [4, 5, 6, 7, 8]


def test_reading_is_linear_in_the_rows(tmp_path: Path) -> None:
    """However many series they are: four times the rows take about four times as long, not sixteen times."""

    def seconds(n: int) -> float:
        rows = (f"{2000 + i % 10},s{i // 10},{i}" for i in range(n))
        path = write(tmp_path, "\n".join(["year,name,y", *rows]))
        gc.disable()  # whose passes take longer the more other tests have left behind
        try:
            begin = time.process_time()
            assert len(read(path, series="name").series) == n // 10
            return time.process_time() - begin
        finally:
            gc.enable()

    seconds(1_000)  # what is imported at the first call
    assert min(seconds(40_000) for _ in range(2)) < 11 * min(seconds(10_000) for _ in range(2))


# ---- wrong files


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "0 rows"),
        ("a.csv", b"month,y\n", "0 rows"),
        ("a.csv", b"month,y\n2024-01-01,1\n2024-02-01\n", "line 3, has 1 cells"),
        ("a.csv", b"2024-01-01;1\n2024-02-01;2\n2024-03-01;3\n", "its first line must name the columns"),
        ("a.csv", "month;verkäufe\n2024-01;1\n2024-02;2\n".encode("cp1252"), "cannot be read as a table in UTF-8"),
        ("a.csv", "month\ty\n2024-01\t1\n".encode("utf-16"), "it is text in UTF-16; save it as UTF-8"),
        (
            "a.csv",
            b'{"t": 1, "y": 2}\n{"t": 2, "y": 3}\n',
            r"it is JSON lines \(a document a line\); make a table of it: pandas\.read_json",
        ),
        ("a.xlsx", b"PK\x03\x04 nothing", "it is a zip; give CSV, TSV or Parquet"),
        ("a.png", b"\x89PNG\r\n\x1a\n....", "it is a picture; give CSV"),
        ("a.parquet", b"PAR1 and then nothing", "cannot read .*a.parquet"),
        ("a.csv.gz", b"\x1f\x8b and then nothing", "cannot read .*a.csv.gz"),
        ("a.csv", b"month,y\n2024-01-01,1\nlast month,2\n", "line 3: the time 'last month' is not an ISO date"),
        (
            "a.csv",
            b"month,y\n202401,1\n202402,2\n202403,3\n",
            r"look like months, as 202401; say data.date_format=",
        ),
        ("a.csv", b"t,y\n1,2\n2,1e999\n", "line 3: y='1e999' is not a finite number"),
        ("a.csv", b't,y\n1,"1.2.3"\n2,4\n', "line 2: y='1.2.3' is not a finite number"),
        ("a.csv", b"t,name,y\n1,a,2\n2,,3\n", "line 3: the cell of name, the series, is empty"),
    ],
)
def test_wrong_files_are_refused_in_a_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    if name == "a.parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    (tmp_path / name).write_bytes(content)
    series = "name" if b"name" in content else None
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path / name, series=series)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_wrong_tables_in_memory(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    for table, message in (
        (3, "the table is a int; give a path or a DataFrame"),
        (pandas.DataFrame({"t": [], "y": []}), "has no rows"),
        (pandas.DataFrame([[1, 2]], columns=["t", "t"]), "its own name"),
        (pandas.DataFrame({"t": [1, None, 3], "y": [1, 2, 3]}), "row 2: the time is missing"),
        (pandas.DataFrame({"t": [1, 2, 3], "y": [1, np.inf, 3]}), "row 2: y='inf' is not a finite number"),
        (pandas.DataFrame({"t": [1, 2, 3], "y": ["a", "2", "3"]}), "row 1: y='a' is not a finite number"),
    ):
        with pytest.raises(DataError, match=message):
            read(table)
    with pytest.raises(DataError, match="there is no file"):
        read_cells(tmp_path / "none.csv", Notation())
