"""The faults that `scripts/mutants` plants: each a small slip that a person could make.

Owns: what is changed where, which property must notice, and by which test. Never knows: how faults
are planted or judged. The text before must occur exactly once, so that a fault cannot quietly
become none when the source changes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One wrong change of one file."""

    name: str
    property: str  # P1 … P16
    test: str  # pytest's name of the test that must fail
    path: str
    before: str
    after: str

    def planted(self, source: str) -> str:
        """Return `source` with the fault; raises ValueError if its place is not unique."""
        if source.count(self.before) != 1:
            raise ValueError(
                f"{self.name}: {self.path} has {source.count(self.before)} of {self.before!r}"
            )
        return source.replace(self.before, self.after)


PACE = "core/policy/pace.py"
EXACT_GAPS = "tests/properties/test_pace.py::test_an_exact_model_makes_no_gap_late[all-capped-0]"
PAUSES = "tests/properties/test_pace.py::test_decodes_are_paused_and_resumed_within_the_bound"
URGENT = (
    "tests/properties/test_pace.py::"
    "test_decodes_that_make_room_for_urgent_prompts_keep_their_own_gaps"
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        "gap-from-now", "P8", PAUSES, PACE,
        "slack -= np.where(last > 0, np.maximum(begin_ns - last, 0), 0)",
        "slack -= 0",
    ),
    Fault(
        "pause-without-bound", "P8", URGENT, PACE,
        "patience > 2 * max(tightest_ns, all_ns)",
        "patience > -(1 << 62)",
    ),
    Fault(
        "margin-upside-down", "P8", EXACT_GAPS, PACE,
        "int(slack / (1 + margin))",
        "int(slack * (1 + margin))",
    ),
    Fault(
        "loosest-gap", "P8", EXACT_GAPS, PACE,
        "tightest_ns = int(slack.min(initial=UNLIMITED_NS))",
        "tightest_ns = int(slack.max(initial=0)) or UNLIMITED_NS",
    ),
)  # fmt: skip
