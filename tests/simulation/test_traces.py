"""A trace is read as its schema says, or the line at fault is named."""

import gzip
from pathlib import Path

import pytest

from core.simulation.traces import Trace, TraceError, parse_trace, read_trace
from core.tenancy.classes import TrafficClass

HEADER = "arrival_s,prompt_tokens,output_tokens"


def parsed(*lines: str, header: str = HEADER, limit: int = 0) -> Trace:
    """Read lines below a header."""
    return parse_trace([header, *lines], "t.csv", limit)


def test_columns_may_come_in_any_order() -> None:
    """The header says which is which."""
    trace = parsed("7,a,0.5,3", header="prompt_tokens,tenant,arrival_s,output_tokens")
    assert (trace.arrival_s[0], trace.prompt_tokens[0], trace.output_tokens[0]) == (0.5, 7, 3)
    assert trace.tenants == ("a",)


def test_tenants_and_classes_are_indexes() -> None:
    """In the order in which they appear; a class that is left out is standard."""
    header = f"{HEADER},tenant,class"
    trace = parsed("0,1,1,b,batch", "0,1,1,a,", "1,1,1,b,INTERACTIVE", header=header)
    assert (trace.tenants, trace.tenant_index.tolist()) == (("b", "a"), [0, 1, 0])
    assert trace.traffic_class.tolist() == [
        TrafficClass.BATCH, TrafficClass.STANDARD, TrafficClass.INTERACTIVE,
    ]  # fmt: skip


def test_block_names_are_whole_numbers() -> None:
    """Blank-separated; a request may have none."""
    trace = parsed("0,600,1,4 5", "0,10,1,", header=f"{HEADER},hash_ids_512")
    assert trace.hash_ids == ((4, 5), ())


def test_what_an_engine_recorded_is_a_trace() -> None:
    """What clients asked for is used, what came of it is not."""
    header = f"{HEADER},class,max_tokens,outcome,queue_ms,ttft_ms,e2e_ms"
    trace = parsed("0,5,2,batch,8,stopped,1.5,2.5,9", "0,5,2,,,queue_full,,,", header=header)
    assert trace.max_tokens.tolist() == [8, 0]
    assert trace.names_class.tolist() == [True, False]


def test_a_limit_ends_the_reading() -> None:
    """Lines behind it are not even looked at."""
    assert len(parsed("0,1,1", "0,1,1", "rubbish", limit=2)) == 2


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0,1", "2 fields, the header has 3"),
        ("0,1,1,1", "4 fields, the header has 3"),
        ("x,1,1", "arrival_s = 'x' is not a number"),
        ("nan,1,1", "arrival_s = nan is not a time ≥ 0"),
        ("-1,1,1", "arrival_s = -1 is not a time ≥ 0"),
        ("0.5,1,1", "arrival_s = 0.5 is before the line above"),
        ("1,0,1", "prompt_tokens = '0' is not a number from 1"),
        ("1,1,", "output_tokens = '' is not a number from 1"),
        ("1,1,-3", "output_tokens = '-3' is not a number from 1"),
        ("1,1.5,1", "prompt_tokens = '1.5' is not a number from 1"),
        ("1,99999999999,1", "prompt_tokens = '99999999999' is not a number from 1"),
        ("1,²,1", "prompt_tokens = '²' is not a number from 1"),
        ("", "0 fields, the header has 3"),
    ],
)
def test_a_bad_line_is_named(line: str, said: str) -> None:
    """The third line of the file is the one at fault."""
    with pytest.raises(TraceError, match=r"t\.csv line 3: ") as caught:
        parsed("1,1,1", line)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [("class", "gold", "'gold' is none of interactive"), ("hash_ids_512", "1 x", "whole numbers")],
)
def test_a_bad_optional_field_is_named(column: str, value: str, said: str) -> None:
    """Optional columns are checked too."""
    with pytest.raises(TraceError, match="line 2") as caught:
        parsed(f"0,1,1,{value}", header=f"{HEADER},{column}")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "is empty"),
        ([HEADER], "has no requests"),
        (["arrival_s,prompt_tokens"], "no column output_tokens"),
        ([f"{HEADER},tennant"], "unknown column 'tennant'"),
        ([f"{HEADER},tenant,tenant"], "twice"),
    ],
)
def test_a_bad_header_is_an_error(lines: list[str], said: str) -> None:
    """A misspelt column would otherwise be ignored in silence."""
    with pytest.raises(TraceError, match=said):
        parse_trace(lines, "t.csv")


def test_plain_and_compressed_files_are_the_same(tmp_path: Path) -> None:
    """The ending of the name tells."""
    text = f"{HEADER}\r\n0,1,2\r\n"
    (tmp_path / "a.csv").write_bytes(text.encode())
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("a.csv", "a.csv.gz"):
        assert read_trace(tmp_path / name).output_tokens.tolist() == [2]


@pytest.mark.parametrize("content", [b"not gzip", gzip.compress(b"x" * 1000, mtime=0)[:-20]])
def test_a_file_that_cannot_be_read_is_one_error(tmp_path: Path, content: bytes) -> None:
    """Missing, cut off, or of another kind: the path is named."""
    path = tmp_path / "a.csv.gz"
    path.write_bytes(content)
    for each in (path, tmp_path / "missing.csv"):
        with pytest.raises(TraceError, match=f"cannot read {each}"):
            read_trace(each)


def test_text_that_is_not_unicode_is_one_error(tmp_path: Path) -> None:
    """No traceback reaches the user."""
    path = tmp_path / "a.csv"
    path.write_bytes(HEADER.encode() + b"\n0,1,\xff\n")
    with pytest.raises(TraceError, match="cannot read"):
        read_trace(path)
