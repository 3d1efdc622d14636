"""Sums over the pages of all http processes, for whoever shows them as one.

Owns: which tenants' rows belong together. Never knows: who shows them. Each process has the tenants
in an order of its own, the shared row `_other` first.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ipc.pages import HTTP_CLASS, HTTP_TENANT, MAX_PAGE_TENANTS, NUM_PAGE_CLASSES

OTHER = 0
TIMES = ("ttft", "itl", "e2e")


def http_tenants(pages: Sequence[Any]) -> npt.NDArray[np.void]:
    """Return HTTP_TENANT[n], the tenants of all `pages` (HTTP_PAGE records) summed by name.

    Tenants beyond MAX_PAGE_TENANTS are added to the first row.
    """
    parts = [page["tenants"][: int(page["num_tenants"])] for page in pages]
    if len(parts) == 1:
        return np.asarray(parts[0])  # the usual case: nothing is copied
    names = list(dict.fromkeys(name for part in parts for name in part["name"].tolist()))
    rows = {name: row if row < MAX_PAGE_TENANTS else OTHER for row, name in enumerate(names)}
    total = np.zeros(min(len(names), MAX_PAGE_TENANTS), HTTP_TENANT)
    total["name"] = names[: len(total)]
    for part in parts:
        targets = [rows[name] for name in part["name"].tolist()]
        np.add.at(total["requests"], targets, part["requests"])
        np.add.at(total["rejections"], targets, part["rejections"])
        _add_times(total, targets, part)
    return total


def http_classes(pages: Sequence[Any]) -> npt.NDArray[np.void]:
    """Return HTTP_CLASS[classes], summed over all `pages` (HTTP_PAGE records)."""
    total = np.zeros(NUM_PAGE_CLASSES, HTTP_CLASS)
    for page in pages:
        _add_times(total, range(NUM_PAGE_CLASSES), page["classes"])
    return total


def _add_times(total: npt.NDArray[np.void], targets: Sequence[int], part: Any) -> None:
    for field in TIMES:
        for name in ("counts", "sum"):
            np.add.at(total[field][name], list(targets), part[field][name])
