"""What tenants have used: exact at any moment, over restarts of everything."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import RejectionReason
from frontends.admin.state.usage import (
    HOUR_S,
    by_tenant,
    counted_to_ns,
    counters_of,
    first_hour,
    growth,
    report,
)
from frontends.boards import Boards
from ipc.control.declaration import ArgumentError
from tests.support.control_plane.boards import (
    NOW_NS,
    healthy,
    page,
    refusal_fields,
    scheduler_fields,
)

KEYS = st.tuples(st.sampled_from(["acme", "zeta"]), st.sampled_from(["requests", "tokens"]))
NOW_S = 1_764_500_000.0  # 2025-11-30 10:53:20 UTC


def test_the_counters_are_those_of_scheduler_and_http() -> None:
    """Tokens of each tenant, its clients' requests, refusals by reason, each with the process and
    the tenure that counts it; nothing that is 0.
    """
    tenants = [
        {"name": b"acme", "tenure": 3, "generated_tokens": 70},
        {"name": b"zeta"},
    ]
    fields = scheduler_fields(num_tenants=2, tenants=tenants)
    told = page("http.0", refusal_fields(b"acme", RejectionReason.TENANT_RATE, 4, requests=5))
    boards = healthy({"scheduler": page("scheduler", fields), "http.0": told})
    assert counters_of(boards) == {
        ("acme", "requests@http.0/0"): 5,
        ("acme", "generated_tokens@scheduler/3"): 70,
        ("acme", "rejected.tenant_rate@http.0/0"): 4,
    }
    assert by_tenant(counters_of(boards)) == {
        ("acme", "requests"): 5,
        ("acme", "generated_tokens"): 70,
        ("acme", "rejected.tenant_rate"): 4,
    }


def test_a_tenant_that_has_its_second_row_is_counted_from_0_again() -> None:
    """And together with what it has in another process, where it kept its first."""

    def boards(tenure: int, requests: int) -> Boards:
        rows = [{"name": b"acme", "tenure": tenure, "requests": requests}]
        pages = {
            "http.0": page("http.0", {"num_tenants": 1, "tenants": rows}),
            "http.1": page("http.1", refusal_fields(b"acme", RejectionReason.TENANT_RATE, 0, 5)),
        }
        return healthy(pages)

    first, second = counters_of(boards(1, 10)), counters_of(boards(2, 3))
    assert by_tenant(growth(first, {})) == {("acme", "requests"): 15}
    assert by_tenant(growth(second, first)) == {("acme", "requests"): 3}


def test_counters_are_whole_up_to_the_oldest_page() -> None:
    """Of those that are summed; as long as one of them cannot be read they are not whole at all."""
    boards = healthy()
    old = replace(boards.pages["http.0"], written_ns=NOW_NS - 7)
    pages = dict(boards.pages)
    assert counted_to_ns(healthy({"http.0": old})) == NOW_NS - 7
    del pages["http.0"]
    assert counted_to_ns(replace(boards, pages=pages)) == 0
    assert counted_to_ns(Boards(NOW_NS)) == 0


@given(steps=st.lists(st.dictionaries(KEYS, st.integers(0, 5)), max_size=20))
def test_the_growths_add_up_to_the_counters(steps: list[dict[tuple[str, str], int]]) -> None:
    """However often one looks."""
    counted: dict[tuple[str, str], int] = {}
    sums: dict[tuple[str, str], int] = {}
    counters: dict[tuple[str, str], int] = {}
    for step in steps:
        counters = {k: counters.get(k, 0) + step.get(k, 0) for k in {*counters, *step}}
        for key, amount in growth(counters, counted).items():
            sums[key] = sums.get(key, 0) + amount
        counted = counted | counters
    assert sums == {key: value for key, value in counters.items() if value}


def test_a_page_that_cannot_be_read_has_grown_by_nothing() -> None:
    """Not by minus what it had; one of several is missing in the sum."""
    assert growth({}, {("acme", "requests"): 10}) == {}
    assert growth({("acme", "requests"): 3}, {("acme", "requests"): 10}) == {}


def test_the_report_has_a_row_for_each_tenant() -> None:
    """Parts are added; one tenant can be asked for."""
    parts = [
        {("acme", "requests"): 2, ("acme", "rejected.tenant_rate"): 1},
        {("acme", "requests"): 3, ("zeta", "generated_tokens"): 9},
    ]
    assert report(parts, None) == {
        "usage": [
            {
                "tenant": "acme", "requests": 5, "prompt_tokens": 0, "cached_tokens": 0,
                "generated_tokens": 0, "rejected": {"tenant_rate": 1},
            },
            {
                "tenant": "zeta", "requests": 0, "prompt_tokens": 0, "cached_tokens": 0,
                "generated_tokens": 9, "rejected": {},
            },
        ]
    }  # fmt: skip
    assert [row["tenant"] for row in report(parts, "zeta")["usage"]] == ["zeta"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("since", "seconds_back"),
    [
        ("0h", 0),
        ("1h", HOUR_S),
        ("30m", 0),
        ("60m", HOUR_S),
        ("7d", 7 * 24 * HOUR_S),
        ("2025-11-30", 10 * HOUR_S),
        ("2025-11-30T09", HOUR_S),
        ("2025-11-30T09:59:59+00:00", HOUR_S),
        ("2025-11-30T10:30+01:00", HOUR_S),
        ("99999d", None),
    ],
)
def test_usage_counts_from_whole_hours(since: str, seconds_back: int | None) -> None:
    """Back from now, or from a date in UTC unless it says otherwise; never before 1970."""
    this_hour_s = int(NOW_S) // HOUR_S * HOUR_S
    expected = 0 if seconds_back is None else this_hour_s - seconds_back
    assert first_hour(since, NOW_S) == expected


@pytest.mark.parametrize("since", ["", "1", "h", "1w", "-1h", "yesterday", "2025-13-01", "9" * 99])
def test_what_is_no_time_is_refused_with_examples(since: str) -> None:
    """Whatever was typed."""
    with pytest.raises(ArgumentError, match="is none of 30m, 12h, 7d"):
        first_hour(since, NOW_S)
