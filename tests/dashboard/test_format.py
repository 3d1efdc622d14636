"""Numbers as people read them, and the charts of characters."""

import pytest

from dashboard.format import (
    ASCII,
    UNICODE,
    chart,
    count,
    counted,
    duration,
    measured,
    meter,
    most_common,
    percent,
    rate,
    size,
)
from dashboard.lines import Tone, beside, crop, fit, line, plain, width_of


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (9999, "9999"), (10_000, "10.0k"), (123_456, "123k"),
     (999_999, "1000k"), (12_345_678, "12.3M"), (5e12, "5T"), (-12_000, "-12.0k")],
)  # fmt: skip
def test_a_count_is_short(value: float, text: str) -> None:
    """Four digits are shown whole; beyond that with a unit."""
    assert count(value) == text


def test_one_thing_is_not_many() -> None:
    """The word agrees with the number."""
    assert [counted(n, "time") for n in (0, 1, 2, 12_000)] == [
        "0 times", "1 time", "2 times", "12.0k times"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0s"), (0.00085, "850us"), (0.0042, "4.2ms"), (0.0995, "100ms"),
     (0.9994, "999ms"), (0.9996, "1.0s"), (59.94, "59.9s"), (59.96, "1m00s"), (125, "2m05s"),
     (3599, "59m59s"), (3600, "1h00m"), (12_000, "3h20m"), (352_800, "4d02h"), (-3.0, "-3.0s")],
)  # fmt: skip
def test_a_duration_is_short(seconds: float | None, text: str) -> None:
    """At most six cells, with the unit that suits."""
    assert duration(seconds) == text


def test_no_duration_is_wider_than_its_column() -> None:
    """From a microsecond to three months, none takes more than six cells."""
    seconds = 1e-6
    while seconds < 8e6:
        assert len(duration(seconds)) <= 6, seconds
        seconds *= 1.013


def test_no_count_is_wider_than_its_column() -> None:
    """From one to a hundred trillion, none takes more than six cells."""
    value = 1.0
    while value < 1e14:
        assert len(count(value)) <= 6, value
        value *= 1.017


def test_a_quantile_in_the_first_bucket_is_only_a_bound() -> None:
    """Nothing more is known of it."""
    assert measured(0.15, (0.3, 0.5)) == "<300ms"
    assert measured(0.31, (0.3, 0.5)) == "310ms"
    assert measured(None, (0.3, 0.5)) == "-"


@pytest.mark.parametrize(
    ("shown", "text"),
    [(percent(0.042), "4.2%"), (percent(0.37), "37%"), (percent(1), "100%"), (percent(0), "0%"),
     (percent(None), "-"), (rate(3.21), "3.2"), (rate(0), "0"), (rate(None), "-"),
     (size(512), "512B"), (size(1536), "1.5KiB"), (size(2**30), "1.0GiB"), (size(2**42), "4.0TiB")],
)  # fmt: skip
def test_shares_rates_and_sizes_are_short(shown: str, text: str) -> None:
    """Small numbers have a decimal, large ones have none."""
    assert shown == text


def test_a_chart_is_exactly_as_wide_and_newest_last() -> None:
    """Older values are cut off, missing ones are gaps, and fewer are moved to the right."""
    assert chart((1, 2, 3, 4), 2, 1, UNICODE) == ("▆▇",)
    assert chart((4, None, 0), 5, 1, UNICODE) == ("  ▇ ▁",)
    assert chart((), 3, 1, UNICODE) == ("   ",)
    assert chart((1, 2), 0, 1, UNICODE) == ("",)


def test_a_bar_of_a_chart_is_several_lines_high() -> None:
    """Below a bar's top every cell is full, above it nothing; a gap is empty from top to bottom."""
    rows = chart((0.0, 1.0, None, 4.0, 2.0), 6, 3, UNICODE)
    assert [len(row) for row in rows] == [6, 6, 6]
    columns = ["".join(cells) for cells in zip(*rows, strict=True)]
    assert columns[0] == columns[3] == "   "
    assert columns[1] == "  ▁"
    assert columns[4][1:] == "██"
    assert columns[4][0] != " "
    assert columns[5][2] == "█"
    assert columns[5][0] == " "


def test_a_meter_has_exactly_its_width() -> None:
    """Whatever the parts are, also if they are more than the whole, or the whole is nothing."""
    for parts in ([0, 0], [1, 0], [30, 30], [60, 80], [1000, 1], [0.1, 0.1]):
        for whole in (0, 1, 100):
            drawn = meter([(p, "#", Tone.ACCENT) for p in parts], whole, 17, ".")
            assert width_of(drawn) == 17, (parts, whole)


def test_a_part_that_is_there_gets_a_cell() -> None:
    """One block of a million is not nothing."""
    assert plain(meter([(1, "#", Tone.ACCENT)], 1e6, 10, ".")) == "#........."
    assert plain(meter([(0, "#", Tone.ACCENT)], 1e6, 10, ".")) == ".........."


def test_ascii_glyphs_are_ascii() -> None:
    """All of them."""
    glyphs = [getattr(ASCII, name) for name in ASCII.__slots__]
    assert all(glyph.isascii() for glyph in glyphs)


def test_text_is_fitted_by_cells_not_by_characters() -> None:
    """Wide characters take two cells; what is cut ends in an ellipsis."""
    assert fit("ab", 4) == "ab  "
    assert fit("ab", 4, right=True) == "  ab"
    assert fit("abcdef", 4) == "abc…"
    assert width_of(((fit("日本語日本語", 5), Tone.PLAIN),)) == 5


def test_a_line_is_cropped_at_a_width() -> None:
    """Spans beyond it are dropped, the one across it is cut."""
    assert plain(crop(line("abc", "def", "ghi"), 5)) == "abcde"


def test_blocks_stand_side_by_side() -> None:
    """The right one begins at the same cell in every line, whichever is longer."""
    drawn = beside([line("a")], [line("x"), line("y")], 4, gap=1)
    assert [plain(each) for each in drawn] == ["a    x", "     y"]


def test_the_most_common_key_is_named() -> None:
    """Of nothing there is none."""
    assert most_common({"a": 1, "b": 3}) == "b"
    assert most_common({}) == ""
