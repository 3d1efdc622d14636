"""`record-trace`: the requests that have ended, piece by piece, as the rows of a trace."""

from ipc.control.declaration import (
    Argument,
    ArgumentKind,
    Command,
    Destination,
    Effect,
    ResultField,
)

MAX_ROWS = 1000
DEFAULT_ROWS = 500

COMMAND = Command(
    name="record-trace",
    summary="Write the requests that have ended as a trace, without any text",
    destination=Destination.SCHEDULER,
    effect=Effect.READ,
    arguments=(
        Argument(
            name="first",
            kind=ArgumentKind.INTEGER,
            help="number of the first row, since the scheduler's start (default: the oldest kept)",
            minimum=0,
            maximum=2**53,
        ),
        Argument(
            name="limit",
            kind=ArgumentKind.INTEGER,
            help=f"at most so many rows; one answer has no more than {MAX_ROWS} (default: "
            f"{DEFAULT_ROWS}; a file has all that are kept)",
            minimum=1,
            maximum=2**53,
        ),
    ),
    result=(
        ResultField("rows", "list of lists", "a request each, in the order of their ends"),
        ResultField("columns", "list of text", "what the entries of a row are"),
        ResultField("first", "integer", "number of the first row; larger if rows are gone"),
        ResultField("next", "integer", "number of the row after the last one here"),
        ResultField("total", "integer", "requests that have ended since the scheduler's start"),
        ResultField("machine", "record", "if there are no rows: what steps cost, and sizes"),
    ),
    joins_trace=True,
)
