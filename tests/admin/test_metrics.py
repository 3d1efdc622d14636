"""The scrape: what a standard parser reads in it is what the pages say."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import ipc.pages
from core.clock import NS_PER_S
from core.errors import RejectionReason
from core.messages.http import Chunk
from core.metering import PreemptionCause, PreemptionKind
from core.request import RequestStatus
from core.tenancy.classes import TrafficClass
from frontends.boards import Boards, Page
from frontends.http.telemetry import StreamTimer, Telemetry
from frontends.metrics.exposition import Exposition, Family, Kind
from frontends.metrics.reference import FAMILIES
from frontends.metrics.reference import page as reference_page
from frontends.metrics.render import render
from frontends.metrics.vllm import EngineFacts
from ipc.pages import HTTP_PAGE, MAX_PAGE_TENANTS, TTFT_BUCKETS_S
from tests.support.control_plane.boards import (
    NOW_NS,
    beat,
    child_row,
    healthy,
    page,
    replica_fields,
    scheduler_fields,
    supervisor_fields,
)

DOCS = (Path(ipc.pages.__file__).parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")
FACTS = EngineFacts("smol", 32, "bfloat16", True, 0.35)
NUM_REASONS = len(RejectionReason) - 1
MAX_LINES = 50_000
ENGINE = {"model_name": "smol", "engine": "0"}


def scrape(boards: Boards) -> dict[str, Metric]:
    """Return the families of a scrape by name, counters without `_total`."""
    text = render(boards, FACTS).decode()
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    return {family.name: family for family in families}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """Return the one sample of this name and these labels."""
    family = families[name.removesuffix("_total").removesuffix("_sum").removesuffix("_count")]
    found = [float(s.value) for s in family.samples if (s.name, s.labels) == (name, labels)]
    assert len(found) == 1, (name, labels, family.samples)
    return found[0]


def total(samples: Iterable[Any], name: str) -> float:
    """Return the sum over all samples of a name."""
    return float(sum(sample.value for sample in samples if sample.name == name))


def test_every_declared_family_is_scraped_and_no_other() -> None:
    """The table of families, which the documentation is checked against, is complete."""
    found = {
        f"{name}_total" if family.type == "counter" else name
        for name, family in scrape(healthy()).items()
    }
    assert found == {family.name for family in FAMILIES}


def test_the_reference_page_is_the_one_that_the_declarations_make() -> None:
    """docs/metrics.md is generated, so it has every metric with its type, labels and meaning."""
    assert reference_page() == DOCS


def test_series_carry_exactly_the_declared_labels() -> None:
    """A family's labels are the same in its declaration and in its series."""
    declared = {family.name: set(family.labels) for family in FAMILIES}
    for family in scrape(busy()).values():
        for sample in family.samples:
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert set(sample.labels) - {"le"} == declared[name], sample


def busy() -> Boards:
    """Return an engine with two http processes, two replicas and three tenants at work."""
    tenants = [
        {
            "name": name,
            "num_running": index + 1,
            "num_waiting": 2,
            "prompt_tokens": 10 * (index + 1),
            "generated_tokens": 100 * (index + 1),
            "oldest_wait_ns": 1_500_000_000,
        }
        for index, name in enumerate((b"acme", b"zeta", b"_other"))
    ]
    rejections = np.zeros(32, np.uint64)
    rejections[RejectionReason.QUEUE_FULL_TOKENS] = 4
    tenants[1]["rejections"] = rejections
    scheduler = scheduler_fields(
        replicas=[
            replica_fields(num_held_blocks=30, num_evictable_blocks=20, num_fenced_blocks=10),
            replica_fields(num_held_blocks=0),
        ],
        num_running=6,
        num_waiting=6,
        num_preempted=2,
        num_swapped=1,
        prompt_tokens=60,
        generated_tokens=600,
        prefix_queries_tokens=60,
        prefix_hits_tokens=20,
        preemptions=3,
        finished=np.arange(10),
        rejections=rejections,
        num_tenants=3,
        tenants=tenants,
    )
    return healthy(
        {
            "scheduler": page("scheduler", scheduler),
            "http.0": page("http.0", http_fields(first=1)),
            "http.1": page("http.1", http_fields(first=2)),
        }
    )


def http_fields(first: int) -> dict[str, Any]:
    """Return an http page with `first` in the first TTFT bucket and 5 beyond the last."""
    counts = np.zeros(len(TTFT_BUCKETS_S) + 1, np.uint64)
    counts[0], counts[-1] = first, 5
    return {"requests": first, "ttft": {"counts": counts, "sum": 0.25 * first}}


def test_the_load_is_what_the_scheduler_shows() -> None:
    """Running, waiting and KV use have vLLM's meaning: preempted requests wait, cached blocks are
    free."""
    families = scrape(busy())
    assert value(families, "vllm:num_requests_running", **ENGINE) == 6
    assert value(families, "vllm:num_requests_waiting", **ENGINE) == 9
    assert value(families, "vllm:kv_cache_usage_perc", **ENGINE) == pytest.approx(40 / 200)
    assert value(families, "vllm:prefix_cache_queries_total", **ENGINE) == 60
    assert value(families, "vllm:prefix_cache_hits_total", **ENGINE) == 20


def test_finished_requests_are_counted_by_vllms_reasons() -> None:
    """Shed and expired requests are aborts; nothing that ended is missing."""
    families = scrape(busy())
    finished = np.arange(10)
    aborts = (
        RequestStatus.FINISHED_ABORTED,
        RequestStatus.FINISHED_SHED,
        RequestStatus.FINISHED_EXPIRED,
    )
    name = "vllm:request_success_total"
    assert value(families, name, finished_reason="abort", **ENGINE) == sum(finished[list(aborts)])
    assert value(families, name, finished_reason="stop", **ENGINE) == 4
    assert total(families["vllm:request_success"].samples, name) == sum(finished[4:])


def test_latencies_of_all_http_processes_are_summed() -> None:
    """Buckets are cumulative, end at +Inf with the count, and add up over processes."""
    family = scrape(busy())["vllm:time_to_first_token_seconds"]
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert buckets["0.001"] == 3
    assert buckets["2560.0"] == 3
    assert buckets["+Inf"] == 13
    assert value({family.name: family}, f"{family.name}_count", **ENGINE) == 13
    assert value({family.name: family}, f"{family.name}_sum", **ENGINE) == pytest.approx(0.75)
    assert list(buckets.values()) == sorted(buckets.values())


def test_the_sum_over_tenants_is_the_total() -> None:
    """No tenant's share is lost, whatever is put together in `_other`."""
    families = scrape(busy())
    for tenant, engine in (
        ("headrace_tenant_prompt_tokens_total", "vllm:prompt_tokens_total"),
        ("headrace_tenant_generated_tokens_total", "vllm:generation_tokens_total"),
        ("headrace_tenant_requests_running", "vllm:num_requests_running"),
    ):
        family = families[tenant.removesuffix("_total")]
        assert total(family.samples, tenant) == value(families, engine, **ENGINE)


def test_refusals_are_shown_by_reason_and_process_and_tenant() -> None:
    """A reason is a label with the public code of the refusal; a tenant's are what its clients were
    told, by whichever http process.
    """
    counts = np.zeros(32, np.uint64)
    counts[RejectionReason.QUEUE_FULL_TOKENS] = 4
    told = {"num_tenants": 1, "tenants": [{"name": b"zeta", "rejections": counts}]}
    families = scrape(
        healthy(
            {
                "scheduler": page("scheduler", scheduler_fields(rejections=counts)),
                "http.0": page("http.0", told),
                "http.1": page("http.1", told | {"rejections": counts}),
            }
        )
    )
    name = "headrace_rejections_total"
    assert value(families, name, process="scheduler", reason="queue_full_tokens") == 4
    assert value(families, name, process="http.0", reason="queue_full_tokens") == 0
    name = "headrace_tenant_rejections_total"
    assert value(families, name, tenant="zeta", reason="queue_full_tokens") == 8
    assert len(families["headrace_tenant_rejections"].samples) == 1


def test_preemptions_are_shown_by_kind_and_cause() -> None:
    """And what was swapped, in tokens and in blocks of host memory."""
    by = np.zeros((len(PreemptionKind), len(PreemptionCause)), np.uint64)
    by[PreemptionKind.SWAP, PreemptionCause.GROWTH] = 5
    scheduler = scheduler_fields(
        replicas=[replica_fields(num_host_blocks=9, num_held_host_blocks=4)],
        preemptions_by=by,
        swapped_out_tokens=70,
    )
    families = scrape(healthy({"scheduler": page("scheduler", scheduler)}))
    name = "headrace_preemptions_total"
    assert value(families, name, kind="swap", cause="growth") == 5
    assert total(families["headrace_preemptions"].samples, name) == 5
    assert value(families, "headrace_swapped_out_tokens_total") == 70
    assert value(families, "headrace_host_blocks", replica="0", state="held") == 4
    assert value(families, "headrace_host_blocks", replica="0", state="free") == 5


def test_blocks_of_a_replica_add_up_to_its_pool() -> None:
    """Held, evictable, fenced and free are all there is."""
    samples = scrape(busy())["headrace_kv_blocks"].samples
    of_first = {s.labels["state"]: s.value for s in samples if s.labels["replica"] == "0"}
    assert of_first == {"held": 30, "evictable": 20, "fenced": 10, "free": 40}


def test_ages_are_measured_from_stamps_to_now() -> None:
    """A stopped process leaves its page as it was, so its age must grow by itself."""
    row = replica_fields(last_step_ns=NOW_NS - 3 * NS_PER_S, plan_sent_ns=NOW_NS - 2 * NS_PER_S)
    boards = healthy(
        {"scheduler": page("scheduler", scheduler_fields(replicas=[row]))},
        {"scheduler": beat(age_s=4.0)},
    )
    families = scrape(boards)
    assert value(families, "headrace_replica_last_step_age_seconds", replica="0") == 3.0
    assert value(families, "headrace_replica_plan_age_seconds", replica="0") == 2.0
    assert value(families, "headrace_heartbeat_age_seconds", process="scheduler") == 4.0
    assert value(families, "headrace_process_overdue_seconds", process="scheduler") == 4.0
    assert value(families, "headrace_process_overdue_seconds", process="http.0") == 0.0
    assert value(families, "headrace_uptime_seconds") == 100.0


def test_nanoseconds_become_seconds() -> None:
    """Base units only, as Prometheus wants it."""
    assert value(scrape(busy()), "headrace_tenant_oldest_wait_seconds", tenant="acme") == 1.5


def test_restarts_are_shown_by_process() -> None:
    """A restarted process is seen without reading its log."""
    rows = [child_row("scheduler", restarts=2, epoch=3)]
    families = scrape(healthy({"supervisor": page("supervisor", supervisor_fields(rows))}))
    assert value(families, "headrace_process_restarts_total", process="scheduler") == 2
    assert value(families, "headrace_process_epoch", process="scheduler") == 3


def test_an_engine_without_any_page_is_scraped_as_zero() -> None:
    """A scrape in the first moments of a start has all vLLM families and no error."""
    families = scrape(Boards(NOW_NS))
    assert value(families, "vllm:num_requests_running", **ENGINE) == 0
    assert value(families, "vllm:time_to_first_token_seconds_count", **ENGINE) == 0


def test_hostile_names_stay_inside_their_label() -> None:
    """Quotes, backslashes, newlines and broken UTF-8 of a page cannot make series of their own."""
    names = [b'a"} 1\nup 1', b"back\\slash", b"\xff\xfe"]
    tenants = [{"name": name, "num_running": 1} for name in names]
    fields = scheduler_fields(num_tenants=3, tenants=tenants)
    family = scrape(healthy({"scheduler": page("scheduler", fields)}))
    samples = family["headrace_tenant_requests_running"].samples
    assert [s.labels["tenant"] for s in samples] == ['a"} 1\nup 1', "back\\slash", "\\xff\\xfe"]
    assert "up" not in family


def test_cardinality_is_bounded_by_the_pages() -> None:
    """Full pages of tenants, other ones in each http process and refused for all reasons, make a
    scrape of bounded size: 256 tenants for each family, the rest in `_other`.
    """
    rows = [{"name": b"t%d" % i} for i in range(MAX_PAGE_TENANTS)]
    pages = {"scheduler": page("scheduler", scheduler_fields(num_tenants=256, tenants=rows))}
    for process in range(3):
        names = [b"_other", *(b"p%d-%d" % (process, i) for i in range(255))]
        told = [{"name": name, "rejections": np.ones(32, np.uint64)} for name in names]
        fields = {"num_tenants": 256, "tenants": told}
        pages[f"http.{process}"] = page(f"http.{process}", fields)
    text = render(healthy(pages), FACTS)
    families = {f.name: f for f in text_string_to_metric_families(text.decode())}
    refused = families["headrace_tenant_rejections"].samples
    assert len({sample.labels["tenant"] for sample in refused}) == MAX_PAGE_TENANTS
    assert total(refused, "headrace_tenant_rejections_total") == 3 * 256 * NUM_REASONS
    assert text.count(b"\n") < MAX_LINES


def test_random_names_do_not_grow_the_scrape() -> None:
    """However many names are counted, one http process tells 255 of them apart."""
    telemetry, fields = Telemetry(), np.zeros((), HTTP_PAGE)
    for number in range(5_000):
        StreamTimer(telemetry, 0, f"name-{number}", TrafficClass.STANDARD).end(NS_PER_S)
        telemetry.count_rejection(RejectionReason.TENANT_RATE, f"name-{number}")
    telemetry.fill(fields, dropped_frames=0)
    record = fields.reshape(1)[0]
    families = scrape(healthy({"http.0": Page(1, NOW_NS, record)}))
    samples = families["headrace_tenant_rejections"].samples
    assert len(samples) == MAX_PAGE_TENANTS
    assert total(samples, "headrace_tenant_rejections_total") == 5_000
    name = "headrace_tenant_e2e_request_latency_seconds"
    assert total(families[name].samples, f"{name}_count") == 5_000
    assert value(families, f"{name}_count", tenant="_other") == 5_000 - 255


def test_the_text_is_the_one_that_prometheus_client_writes() -> None:
    """Bucket labels, numbers and counters are spelled as the reference library spells them."""
    registry = CollectorRegistry()
    counter = Counter("tokens", "Tokens.", ["who"], registry=registry)
    counter.labels("me").inc(12)
    latency = Histogram("wait_seconds", "Wait.", buckets=TTFT_BUCKETS_S, registry=registry)
    latency.observe(0.5)
    theirs = [
        line for line in generate_latest(registry).decode().splitlines() if "_created" not in line
    ]
    out = Exposition()
    out.add(Family("tokens_total", Kind.COUNTER, "Tokens."), [((("who", "me"),), 12.0)])
    counts = [int(bound == 0.5) for bound in (*TTFT_BUCKETS_S, 0)]
    out.add_histogram(
        Family("wait_seconds", Kind.HISTOGRAM, "Wait."), TTFT_BUCKETS_S, [((), counts, 0.5)]
    )
    ours = out.text().decode().splitlines()
    assert [canonical(line) for line in ours] == [canonical(line) for line in theirs]


def canonical(line: str) -> str:
    """Return a line with a whole number spelled without its fraction; both spellings are
    allowed."""
    head, _, number = line.rpartition(" ")
    return f"{head} {number.removesuffix('.0')}" if not line.startswith("#") else line


def test_a_restarted_http_process_goes_on_counting() -> None:
    """No counter falls when a process is replaced, in whatever order it meets tenants then."""
    first, last_page = Telemetry(), np.zeros((), HTTP_PAGE)
    first.requests, first.num_streams = 5, 3
    first.choices.observe(2)
    first.count_request("acme")
    first.count_rejection(RejectionReason.TENANT_RATE, "acme")
    StreamTimer(first, 0, "zeta", TrafficClass.BATCH).output(Chunk("op", 0, "x"), NS_PER_S // 4)
    first.fill(last_page, dropped_frames=7)
    second, page_now = Telemetry(), np.zeros((), HTTP_PAGE)
    second.resume(last_page)
    second.requests += 1
    for tenant in ("new", "zeta"):
        timer = StreamTimer(second, 0, tenant, TrafficClass.STANDARD)
        timer.output(Chunk("op", 0, "x"), NS_PER_S // 4)
    second.fill(page_now, dropped_frames=1)
    assert page_now["requests"] == 6
    assert page_now["dropped_frames"] == 8
    assert page_now["rejections"][RejectionReason.TENANT_RATE] == 1
    assert page_now["num_streams"] == 0
    assert page_now["choices"]["counts"].sum() == 1
    assert page_now["ttft"]["counts"].sum() == 3
    assert page_now["ttft"]["sum"] == pytest.approx(0.75)
    assert page_now["classes"]["ttft"]["counts"].sum(axis=1).tolist() == [0, 2, 1, 0]
    rows = page_now["tenants"][: int(page_now["num_tenants"])]
    counts = dict(zip(rows["name"].tolist(), rows["ttft"]["counts"].sum(axis=1), strict=True))
    assert counts == {b"_other": 0, b"acme": 0, b"zeta": 2, b"new": 1}
    assert rows["rejections"].sum(axis=1).tolist() == [0, 1, 0, 0]
    assert rows["requests"].tolist() == [0, 1, 0, 0]
