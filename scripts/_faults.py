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
START_LIMITS = "core/policy/start_limits.py"
BUDGETS = "core/policy/budgets.py"
GATES = "tests/policy/test_gates.py"
BUDGET_TESTS = "tests/policy/test_budgets.py"
LIMITS = (
    "tests/properties/test_hard_limits.py::test_no_event_exceeds_a_hard_limit_and_everything_ends"
)
SWAP = "tests/scheduler/test_swap.py::"
PARTIAL = "tests/scheduler/test_partial_preemption.py::"

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
    Fault(
        "concurrency-off-by-one", "P7", f"{LIMITS}[0]", START_LIMITS,
        "0 < config.max_concurrency <= self._num_running[tenant]",
        "0 < config.max_concurrency < self._num_running[tenant]",
    ),
    Fault(
        "quota-without-growth", "P7", f"{LIMITS}[0]", START_LIMITS,
        "if on.tenants[tenant].num_blocks + needed > on.quotas[tenant]:",
        "if on.tenants[tenant].num_blocks > on.quotas[tenant]:",
    ),
    Fault(
        "class-share-without-growth", "P7", f"{LIMITS}[8]", START_LIMITS,
        "if on.classes[traffic_class].num_blocks + needed > on.shares[traffic_class]:",
        "if on.classes[traffic_class].num_blocks > on.shares[traffic_class]:",
    ),
    Fault(
        "class-sequences-off-by-one", "P7", f"{LIMITS}[8]", START_LIMITS,
        "0 < config.max_seqs <= running[index]",
        "0 < config.max_seqs < running[index]",
    ),
    Fault(
        "reserve-for-nobody", "P6",
        f"{GATES}::test_reserved_sequences_are_lent_only_to_those_that_can_be_preempted",
        START_LIMITS,
        "elif self._is_fixed[index] and 0 <",
        "elif not self._is_fixed[index] and 0 <",
    ),
    Fault(
        "row-lent-for-good", "P6",
        "tests/scheduler/test_lent_rows.py::test_a_lent_row_is_back_within_a_step",
        "core/policy/lent_rows.py",
        "            self._call_back(step, limits)",
        "            pass",
    ),
    Fault(
        "give-back-what-time-has-filled", "P7",
        f"{BUDGET_TESTS}::test_giving_back_late_gives_no_second_burst", BUDGETS,
        "self.tat_ns = max(self.tat_ns - excess_ns, later_ns)",
        "self.tat_ns = self.tat_ns - excess_ns",
    ),
    Fault(
        "settle-twice", "P7", f"{BUDGET_TESTS}::test_a_second_settlement_gives_nothing", BUDGETS,
        "self._reservations.pop(request, None)",
        "self._reservations.get(request)",
    ),
    Fault(
        "cancel-for-free", "P16",
        f"{BUDGET_TESTS}::test_no_trick_gets_more_than_the_budget", BUDGETS,
        "FREE = frozenset({RequestStatus.FINISHED_SHED,",
        "FREE = frozenset({RequestStatus.FINISHED_ABORTED, RequestStatus.FINISHED_SHED,",
    ),
    Fault(
        "times-not-spaced", "P7",
        f"{BUDGET_TESTS}::test_every_client_of_a_crowd_gets_in_at_the_time_it_was_told",
        "core/token_rate.py",
        "tat_ns = max(tat_ns, entry.due_ns) + entry.time_ns",
        "tat_ns = max(tat_ns, entry.due_ns)",
    ),
    Fault(
        "host-block-reused-at-once", "P12",
        "tests/kv_cache/test_host_pool.py::"
        "test_what_was_returned_is_free_only_for_the_next_plan",
        "core/kv_cache/host_pool.py",
        "        self._returned += block_ids",
        "        self._free += block_ids",
    ),
    Fault(
        "copies-from-the-start", "P12",
        SWAP + "test_a_swapped_request_computes_nothing_twice[True]",
        "core/kv_cache/manager.py",
        "return swapped.host_blocks[num_hits - swapped.first_block :]",
        "return swapped.host_blocks",
    ),
    Fault(
        "swapped-end-keeps-its-copies", "P12", SWAP + "test_an_abort_while_swapped_frees_the_host",
        "core/scheduler/scheduler.py",
        "            if request.status is RequestStatus.SWAPPED:\n                self.replicas",
        "            if request.status is RequestStatus.WAITING:\n                self.replicas",
    ),
    Fault(
        "lost-tail-counts-as-computed", "P12", PARTIAL + "test_it_keeps_its_row_and_its_head",
        "core/scheduler/running_table.py",
        "num_kept = min(int(self.num_computed[row]), num_blocks * block_size)",
        "num_kept = int(self.num_computed[row])",
    ),
    Fault(
        "tail-taken-in-flight", "P12",
        PARTIAL + "test_with_a_plan_in_flight_it_gives_everything",
        "core/scheduler/step_memory.py",
        "request not in self._in and not self._replica.is_named(request)",
        "request not in self._in",
    ),
    Fault(
        "filled-after-its-end", "P12",
        SWAP + "test_one_that_is_preempted_where_it_returned_is_not_filled",
        "core/scheduler/step_memory.py",
        "if self._in.pop(request, None):",
        "if self._in.get(request):",
    ),
    Fault(
        "standstill-not-ended", "P12",
        PARTIAL + "test_a_step_that_only_took_memory_is_tried_again",
        "core/scheduler/step_memory.py",
        "return bool(starved) or self._has_freed",
        "return bool(starved)",
    ),
)  # fmt: skip
