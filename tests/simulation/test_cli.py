"""`headrace simulate` as its user sees it."""

import io
import json
from pathlib import Path

import pytest

from core.errors import ConfigError
from core.simulation import cli
from core.simulation.options import Sweep, class_shares, number, promises, sweep
from core.simulation.workload import Promise
from core.tenancy.classes import TrafficClass
from core.terminal import ExitCode, Parser, Terminal, guarded

TRACE = """arrival_s,prompt_tokens,output_tokens,tenant,class
0,100,5,a,interactive
0.1,200,5,b,batch
0.2,300,5,a,standard
"""


def simulate(*arguments: str) -> tuple[int, str, str]:
    """Run the verb in this process; return exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err, io.StringIO(), {})

    def body() -> int:
        parser = Parser(prog="headrace simulate")
        cli.add_arguments(parser)
        return cli.run(parser.parse_args(arguments), terminal)

    return guarded(body, terminal), out.getvalue(), err.getvalue()


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A small trace file."""
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    return str(path)


def test_policies_are_compared_in_tables(trace: str) -> None:
    """A row for each policy, and one for each class under it."""
    code, out, err = simulate("--trace", trace, "--policy", "fcfs,edf-256")
    assert (code, err) == (ExitCode.OK, "")
    starts = [line.split("  ")[0] for line in out.splitlines() if line]
    assert starts[:3] == ["policy", "fcfs", "edf-256"]
    assert "fcfs, interactive" in starts
    assert "edf-256, batch" in starts


def test_json_holds_every_figure(trace: str) -> None:
    """One document on stdout, the same for the same seed but for the speed."""
    documents = []
    for _ in range(2):
        code, out, _ = simulate("--trace", trace, "--json", "--seed", "3", "--outliers")
        assert code == ExitCode.OK
        document = json.loads(out)
        [case] = document["cases"]
        assert case.pop("speed")["steps"] > 0
        documents.append(case)
    assert documents[0] == documents[1]
    assert documents[0]["label"] == "headrace"
    assert set(documents[0]["classes"]) == {"interactive", "standard", "batch"}
    assert set(documents[0]["tenants"]) == {"a", "b"}


def test_a_sweep_runs_each_value(trace: str) -> None:
    """Under a label that names it."""
    arguments = ("--trace", trace, "--sweep", "engine.max_num_batched_tokens=256,512", "--json")
    document = json.loads(simulate(*arguments)[1])
    assert [case["label"] for case in document["cases"]] == [
        "headrace engine.max_num_batched_tokens=256", "headrace engine.max_num_batched_tokens=512",
    ]  # fmt: skip


def test_the_configuration_is_the_engines(trace: str, tmp_path: Path) -> None:
    """Limits of the file hold: a context of 250 tokens refuses the longest prompt."""
    config = tmp_path / "c.toml"
    config.write_text("[engine]\nmax_model_len = 250\n")
    arguments = ("--trace", trace, "--config", str(config), "--max-tokens", "0", "--json")
    [case] = json.loads(simulate(*arguments)[1])["cases"]
    assert case["refusals"] == {"context_length_exceeded": 1}


CONFIG = """
[classes.interactive]
ttft_ms = 1
[[tenants]]
name = "a"
default_class = "batch"
max_queued_requests = 1
[[tenants]]
name = "c"
"""


def test_tenants_and_classes_are_the_configured_ones(tmp_path: Path) -> None:
    """Promises, default classes and caps hold; who is not in the file is named."""
    config, trace = tmp_path / "c.toml", tmp_path / "t.csv"
    config.write_text(CONFIG)
    trace.write_text(
        "arrival_s,prompt_tokens,output_tokens,tenant,class\n"
        "0,900,9,b,interactive\n0,100,9,a,\n0,100,9,a,\n0,100,9,a,standard\n"
    )
    flags = ("--trace", str(trace), "--config", str(config), "--json")
    code, out, err = simulate(*flags, "--policy", "headrace")
    assert (code, err) == (
        ExitCode.OK, "tenant b is not in the configuration: it has the defaults\n",
    )  # fmt: skip
    [case] = json.loads(out)["cases"]
    assert set(case["classes"]) == {"interactive", "batch", "standard"}
    code, out, _ = simulate(*flags, "--policy", "fcfs")
    [case] = json.loads(out)["cases"]
    assert case["classes"]["interactive"]["miss_share"] == 1.0
    code, out, _ = simulate(*flags, "--policy", "fcfs", "--promise", "interactive=9/0")
    [case] = json.loads(out)["cases"]
    assert case["classes"]["interactive"]["miss_share"] == 0.0


def test_drawn_tenants_have_the_configured_names(trace: str, tmp_path: Path) -> None:
    """And further names when those are used up."""
    config = tmp_path / "c.toml"
    config.write_text(CONFIG)
    arguments = ("--qps", "9", "--requests", "50", "--tenants-from", "zipf:3", "--json")
    code, out, _ = simulate("--trace", trace, "--config", str(config), *arguments)
    assert code == ExitCode.OK
    assert set(json.loads(out)["cases"][0]["tenants"]) == {"a", "c", "t3"}


def test_arrivals_can_be_resampled_and_owners_drawn(trace: str) -> None:
    """A rate, a number of requests, tenants and classes of the user's choice."""
    code, out, _ = simulate(
        "--trace", trace, "--qps", "5", "--requests", "30", "--tenants-from", "zipf:3",
        "--classes-from", "mix:batch=1", "--promise", "batch=1/0.5", "--json",
    )  # fmt: skip
    assert code == ExitCode.OK
    [case] = json.loads(out)["cases"]
    assert set(case["classes"]) == {"batch"}
    assert set(case["tenants"]) <= {"t1", "t2", "t3"}
    assert case["all"]["num_requests"] == 27


def test_a_report_is_written(trace: str, tmp_path: Path) -> None:
    """To the file that was named; a folder that is not there is one line."""
    path = tmp_path / "r.html"
    code, _, err = simulate("--trace", trace, "--report", str(path))
    assert (code, err) == (ExitCode.OK, f"report: {path}\n")
    assert path.read_text().startswith("<!doctype html>")
    code, _, err = simulate("--trace", trace, "--report", str(tmp_path / "no" / "r.html"))
    assert (code, err.count("\n")) == (ExitCode.FAILED, 1)


def test_this_machine_is_the_one_of_the_last_recording(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its overhead, and with the limits that an engine here has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, _, err = simulate("--trace", trace, "--hardware", "this-machine")
    assert (code, err.count("\n")) == (ExitCode.FAILED, 1)
    machine = {
        "basis": [1e7, 0.0, 0.0, 0.0, 0.0], "sigma": 0.0,
        "overhead_us": 500.0, "num_kv_blocks": 100, "block_size": 32,
    }  # fmt: skip
    path = tmp_path / "headrace" / "this-machine.json"
    path.parent.mkdir()
    path.write_text(json.dumps(machine))
    flags = ("--trace", trace, "--hardware", "this-machine", "--policy", "fcfs", "--json")
    [case] = json.loads(simulate(*flags)[1])["cases"]
    assert case["all"]["itl_s"]["p50"] == pytest.approx(0.0105)
    [case] = json.loads(simulate(*flags, "--overhead-us", "0")[1])["cases"]
    assert case["all"]["itl_s"]["p50"] == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--policy", "best"), ExitCode.USAGE, "policy 'best' is unknown"),
        (("--speed", "0"), ExitCode.USAGE, "--speed 0.0 is out of range"),
        (("--noise", "nan"), ExitCode.USAGE, "--noise nan is out of range"),
        (("--set", "engine.blocks=1"), ExitCode.USAGE, "unknown key engine.blocks"),
        (("--tenants-from", "zipf:0"), ExitCode.USAGE, "zipf:N"),
        (("--classes-from", "mix:gold=1"), ExitCode.USAGE, "'gold' is none of interactive"),
        (("--promise", "batch=1"), ExitCode.USAGE, "CLASS=TTFT_S/ITL_S"),
        (("--sweep", "engine.replicas"), ExitCode.USAGE, "KEY=A,B,C"),
        (("--hardware", "abacus"), ExitCode.USAGE, "invalid choice: 'abacus'"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    trace: str, arguments: tuple[str, ...], code: ExitCode, said: str
) -> None:
    """With the exit code of wrong usage."""
    got, out, err = simulate("--trace", trace, *arguments)
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert said in err


def test_a_bad_trace_names_its_line(tmp_path: Path) -> None:
    """One line, exit code 1."""
    path = tmp_path / "t.csv"
    path.write_text(TRACE + "1,x,5,a,batch\n")
    code, out, err = simulate("--trace", str(path))
    assert (code, out) == (ExitCode.FAILED, "")
    assert err == f"error: {path} line 5: prompt_tokens = 'x' is not a number from 1 to 10000000\n"


@pytest.mark.parametrize("form", ["tenant", "class"])
def test_a_column_that_is_not_there_cannot_be_used(tmp_path: Path, form: str) -> None:
    """The flag and the column are named."""
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,1,1\n")
    flag = "--tenants-from" if form == "tenant" else "--classes-from"
    code, _, err = simulate("--trace", str(path), flag, form)
    assert code == ExitCode.USAGE
    assert f"no column {form}" in err


def test_small_forms_are_read_as_documented() -> None:
    """Shares, promises, sweeps and numbers."""
    assert class_shares("interactive=1,batch=2.5") == {
        TrafficClass.INTERACTIVE: 1.0, TrafficClass.BATCH: 2.5,
    }  # fmt: skip
    assert promises(["batch=1.5/0"]) == {TrafficClass.BATCH: Promise(1.5, 0.0)}
    assert sweep("a.b=1, 2") == Sweep("a.b", ("1", "2"))
    for text in ("x", "-1", "inf", ""):
        with pytest.raises(ConfigError):
            number(text, "--x")
    with pytest.raises(ConfigError, match="add up to nothing"):
        class_shares("batch=0")
