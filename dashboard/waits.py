"""What holds a request back, in words: the sentence, its two numbers, and what an operator can do.

Owns: a sentence for each of the engine's reasons; `docs/waits.md` says more. Never knows: how a
reason came about. Pure. A reason that this version does not know is shown as it is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dashboard.format import count, milliseconds
from dashboard.source.base import Record
from dashboard.tables.records import number, words


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One reason; `numbers` has places for what was measured, its limit, and how many times that
    it is; "" = nothing is compared.
    """

    sentence: str
    numbers: str = ""
    helps: str = ""
    show: Callable[[float], str] = count


UNKNOWN = WaitReason("", "measured {0}, limit {1}", "see docs/waits.md")

REASONS = {
    "nothing": WaitReason("nothing: it has not been looked at yet"),
    "tokens": WaitReason("steps are full", "{0} of {1} tokens of a step", "fewer requests"),
    "itl": WaitReason(
        "a longer step would break the promised gap of a stream", "{0}, {1} allowed",
        "a larger classes.NAME.itl_ms, a faster machine", milliseconds),
    "deadline_order": WaitReason("others of its tenant and class are due sooner"),
    "window": WaitReason(
        "its tenant or class is ahead of its share",
        "{2:.1f} windows ahead",
        "a larger weight; it goes on once others have caught up"),
    "sequences": WaitReason(
        "as many requests run as may", "{0} of {1}", "a larger engine.max_num_seqs"),
    "partial_prefills": WaitReason("as many prompts are under way as may", "{0} of {1}"),
    "memory": WaitReason(
        "its KV blocks do not fit", "{0} needed, {1} available", "cancel or preempt others"),
    "headroom": WaitReason(
        "it would fit, but those that run could not grow", "{0} needed, {1} available",
        "cancel or preempt others"),
    "claim": WaitReason("blocks are kept for one before it that does not fit yet"),
    "reserve": WaitReason(
        "what is left is reserved for another class", "{0} of {1} sequences",
        "a smaller reserve of the other classes"),
    "class_cap": WaitReason(
        "its class has all that it may", "{0} of {1}", "a larger cap of classes.NAME"),
    "concurrency": WaitReason(
        "its tenant runs as many requests as it may", "{0} of {1}",
        "a larger tenants.NAME.max_concurrency"),
    "kv_quota": WaitReason(
        "its tenant holds all the KV blocks that it may", "{0} of {1}",
        "a larger tenants.NAME.kv_quota_fraction"),
    "rate": WaitReason(
        "its tenant's token budget is overdrawn", "by {0} of refilling, {1} allowed",
        "a larger tenants.NAME.tokens_per_minute", milliseconds),
    "paused": WaitReason("an operator has paused its tenant or class", helps="resume"),
    "draining": WaitReason("its replica takes nothing new", helps="undrain"),
    "elsewhere": WaitReason("another replica will have its first token sooner"),
    "incompatible": WaitReason("no replica may serve it", helps="tenants.NAME.replicas"),
}  # fmt: skip


def reason_of(record: Record) -> WaitReason:
    """Return the reason in `blocked` of what `show` says of a request."""
    return REASONS.get(words(record, "blocked"), UNKNOWN)


def numbers_of(record: Record) -> str:
    """Return the two numbers that were compared, "" if none were."""
    reason = reason_of(record)
    measured, threshold = number(record, "measured"), number(record, "threshold")
    if not (measured or threshold):
        return ""
    times = measured / threshold if threshold else 0.0
    return reason.numbers.format(reason.show(measured), reason.show(threshold), times)
