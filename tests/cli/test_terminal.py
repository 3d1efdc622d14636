"""Data on stdout, talk on stderr, colour only where somebody sees it."""

import io
from collections.abc import Callable

import pytest

from core.errors import ConfigError, ModelError
from core.terminal import CommandError, ExitCode, Style, Terminal, guarded


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def terminal(
    stream: type[io.StringIO], answer: str = "", **environ: str
) -> tuple[Terminal, io.StringIO, io.StringIO]:
    """Return a terminal of such streams, and its stdout and stderr."""
    out, err = stream(), stream()
    return Terminal(out, err, stream(answer), environ), out, err


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (CommandError("m"), ExitCode.FAILED),
        (CommandError("m", ExitCode.NOT_RUNNING), ExitCode.NOT_RUNNING),
        (ConfigError("m"), ExitCode.USAGE),
        (ModelError("m"), ExitCode.FAILED),
    ],
)
def test_a_fault_of_the_world_is_one_line_and_its_exit_code(
    fault: Exception, code: ExitCode
) -> None:
    """No traceback, whatever the message looks like."""
    there, out, err = terminal(io.StringIO)
    assert guarded(raising(fault), there) == code
    assert (out.getvalue(), err.getvalue()) == ("", "error: m\n")


def raising(fault: BaseException) -> Callable[[], int]:
    """Return a body that fails."""

    def body() -> int:
        raise fault

    return body


def test_a_fault_of_ours_is_not_hidden() -> None:
    """A broken invariant keeps its traceback."""
    there, _, _ = terminal(io.StringIO)
    with pytest.raises(AssertionError):
        guarded(raising(AssertionError()), there)


def test_an_interrupt_has_its_own_exit_code() -> None:
    """Ctrl-C is no error to talk about."""
    there, _, err = terminal(io.StringIO)
    assert guarded(raising(KeyboardInterrupt()), there) == ExitCode.INTERRUPTED
    assert err.getvalue() == ""


@pytest.mark.parametrize(
    ("stream", "environ", "is_coloured"),
    [
        (Screen, {}, True),
        (Screen, {"NO_COLOR": "1"}, False),
        (Screen, {"TERM": "dumb"}, False),
        (io.StringIO, {}, False),
    ],
)
def test_colour_needs_a_terminal_and_no_objection(
    stream: type[io.StringIO], environ: dict[str, str], is_coloured: bool
) -> None:
    """NO_COLOR, a dumb terminal or a pipe switch it off."""
    there, _, _ = terminal(stream, **environ)
    assert (there.style("x", Style.BOLD) != "x") == is_coloured


def test_progress_is_for_terminals_and_leaves_nothing_behind() -> None:
    """The line is removed before anything else is written."""
    there, out, err = terminal(Screen, NO_COLOR="1")
    there.status("loading")
    there.print("data")
    assert out.getvalue() == "data\n"
    assert err.getvalue() == "\r\x1b[Kloading\r\x1b[K"
    silent, _, err = terminal(io.StringIO)
    silent.status("loading")
    assert err.getvalue() == ""


@pytest.mark.parametrize(
    ("answer", "is_confirmed"), [("y\n", True), ("yes\n", True), ("\n", False), ("", False)]
)
def test_a_question_is_answered_no_unless_somebody_says_yes(
    answer: str, is_confirmed: bool
) -> None:
    """Enter, or the end of the input, changes nothing."""
    there, _, _ = terminal(Screen, answer)
    if is_confirmed:
        there.confirm("Stop?")
    else:
        with pytest.raises(CommandError, match="nothing was done"):
            there.confirm("Stop?")


def test_a_question_that_nobody_can_see_is_a_usage_error() -> None:
    """A script must say --yes; it never hangs on a question."""
    there, _, _ = terminal(io.StringIO, "y\n")
    with pytest.raises(CommandError, match="--yes") as refused:
        there.confirm("Stop?")
    assert refused.value.code is ExitCode.USAGE
