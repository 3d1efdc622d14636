"""What the clients of each tenant were refused, by reason: the sum over all http processes. Pure.

Owns: this reading of the pages, for metrics, commands and usage alike. Never knows: who asks. A
refusal counts once, where a client is told of it, whether http, tokenizer or scheduler decided it.
"""

from core.errors import RejectionReason
from frontends.boards import Boards, text_of
from ipc.page_sums import http_tenants

REASON_CODES = tuple((reason.value, reason.code) for reason in RejectionReason if reason.value)


def refusals(boards: Boards) -> dict[str, dict[str, int]]:
    """Return how many refusals of each reason the clients of each tenant were told; only those that
    occurred.
    """
    rows = http_tenants([page.record for _, page in boards.of_kind("http")])
    told = zip(rows["name"].tolist(), rows["rejections"].tolist(), strict=True)
    return {
        text_of(name): {code: counts[value] for value, code in REASON_CODES if counts[value]}
        for name, counts in told
        if any(counts)
    }
