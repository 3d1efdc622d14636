"""Words for the numbers on the board's pages.

Owns: the names, in the order of the engine's enumerations. The dashboard may not import them from
`core`, so they are said again here, and a test holds the two against each other. A number this
version does not know is shown as a number.
"""

from collections.abc import Sequence

CLASSES = ("interactive", "standard", "batch", "administrative")

REJECTIONS = (
    "none",
    "context_length_exceeded",
    "kv_never_fits",
    "rate_never_fits",
    "tenant_forbidden",
    "queue_full_requests",
    "queue_full_tokens",
    "tenant_queue_full_requests",
    "tenant_queue_full_tokens",
    "tenant_rate",
    "tenant_paused",
    "shed_infeasible",
    "shed_predicted",
    "deadline_exceeded",
    "draining",
    "no_replica",
    "engine_restarted",
    "executor_fault",
    "tokenizer_busy",
    "class_prompt_cap",
)

PROMISE_BREAKS = ("shed_infeasible", "shed_predicted", "deadline_exceeded")
"""Refusals that say: what was promised could not be kept."""

PROCESS_STATES = (
    "stopped",
    "starting",
    "running",
    "stopping",
    "exited",
    "backoff",
    "given_up",
)

PREEMPTION_KINDS = ("recompute", "swap", "partial")
PREEMPTION_CAUSES = ("growth", "admission", "lost_result", "standstill", "operator")

FIRST_FINAL_STATUS = 4
"""From this request status on a request has ended."""


def word(words: Sequence[str], number: int) -> str:
    """Return the name of a number, or the number."""
    return words[number] if 0 <= number < len(words) else str(number)
