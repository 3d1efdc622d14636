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


PROPERTIES = "tests/properties/"
ACCOUNTS = PROPERTIES + "test_accounts.py::"
FAIRNESS = PROPERTIES + "test_fairness.py::"
TENANTS_APART = FAIRNESS + "test_no_tenant_gets_further_ahead_of_another_than_the_bound"
CLASSES_APART = FAIRNESS + "test_no_class_gets_further_ahead_of_another_than_the_bound"
FLOOD = PROPERTIES + "test_isolation.py::test_a_flooder_delays_the_quiet_by_no_more_than_the_bound"
REASONS = (
    PROPERTIES
    + "test_work_conservation.py::test_what_is_left_unused_has_a_reason_and_the_reason_is_true"
)
PROMISED = PROPERTIES + "test_deadlines.py::"
HISTORIES = PROPERTIES + "test_engine_core.py::test_a_seed_finds_no_history_that_harms_a_request"
PRESSURE = PROPERTIES + "test_memory_pressure.py::"
INVARIANCE = PROPERTIES + "test_invariance.py::"
TRICKS = PROPERTIES + "test_tricks.py::test_no_trick_gets_more_than_the_share"
SHARES = "core/policy/fairness/shares.py"
FAIR_QUEUE = "core/policy/queues/fair_queue.py"
CLOSURES = "core/policy/turns/closures.py"
CONTENDERS = "core/policy/turns/contenders.py"
GATHERING = PROPERTIES + "test_gathering.py::test_prompts_are_held_only_for_others_of_their_class"
PROTECTION = "core/policy/lateness/protection.py"
SHEDDING = "core/policy/lateness/shedding.py"
PREEMPTION = "core/policy/kv_memory/preemption.py"
SCHEDULER = "core/scheduler/scheduler.py"
REPLICA = "core/scheduler/replica.py"
GAPS = "core/policy/pacing/gaps.py"
PAUSING = "core/policy/pacing/pauses.py"
EXACT_GAPS = "tests/properties/test_pace.py::test_an_exact_model_makes_no_gap_late[all-capped-0]"
PAUSES = "tests/properties/test_pace.py::test_decodes_are_paused_and_resumed_within_the_bound"
URGENT = (
    "tests/properties/test_pace.py::"
    "test_decodes_that_make_room_for_urgent_prompts_keep_their_own_gaps"
)
START_LIMITS = "core/policy/hard_limits/start_limits.py"
BUDGETS = "core/policy/hard_limits/budgets.py"
DEBITS = "core/policy/hard_limits/debits.py"
GATES = "tests/policy/test_gates.py"
BUDGET_TESTS = "tests/policy/test_budgets.py"
LIMITS = (
    "tests/properties/test_hard_limits.py::test_no_event_exceeds_a_hard_limit_and_everything_ends"
)
SWAP = "tests/scheduler/test_swap.py::"
PARTIAL = "tests/scheduler/test_partial_preemption.py::"

FAULTS: tuple[Fault, ...] = (
    Fault(
        "refund-is-nobodys", "P1",
        f"{ACCOUNTS}test_every_unit_of_every_step_is_charged_to_exactly_one_account", SHARES,
        "            self._pay(request.flow, -units)\n            self.system_charged += units\n",
        "            self._pay(request.flow, -units)\n",
    ),
    Fault(
        "charged-again-after-a-loss", "P1",
        f"{ACCOUNTS}test_every_unit_of_every_step_is_charged_to_exactly_one_account", SHARES,
        "again = min(max(charged_tokens - context, 0), num_tokens)",
        "again = 0",
    ),
    Fault(
        "preempted-out-of-a-step-pays", "P1",
        f"{ACCOUNTS}test_every_unit_of_every_step_is_charged_to_exactly_one_account", SHARES,
        "        self.take_back(request)\n        decode_units",
        "        decode_units",
    ),
    Fault(
        "virtual-time-falls", "P2",
        "tests/policy/test_fair_queue.py::test_the_parent_is_monotone", FAIR_QUEUE,
        "        self.floor = max(self.floor, least)\n",
        "        self.floor = least\n",
    ),
    Fault(
        "idle-class-saves-up", "P2",
        "tests/policy/test_fair_queue.py::test_idling_saves_nothing_up", FAIR_QUEUE,
        "        self.virtual[child] = max(self.virtual[child], self.floor)\n",
        "        self.virtual[child] += 0\n",
    ),
    Fault(
        "weights-ignored", "P2", TENANTS_APART, FAIR_QUEUE,
        "np.rint(PRECISION * relative)",
        "np.rint(PRECISION * np.ones_like(relative))",
    ),
    Fault(
        "decodes-for-nothing", "P2", TENANTS_APART, SHARES,
        "        self._tenants.charge_all(",
        "        (lambda *_: None)(",
    ),
    Fault(
        "window-in-other-units", "P3", FLOOD, SHARES,
        "self.tenant_window = int(tokens * self.book.prices.prefill_token)",
        "self.tenant_window = int(tokens * 1000 * self.book.prices.prefill_token)",
    ),
    Fault(
        "prefix-of-another-tenant", "P3", FLOOD, "core/kv_cache/manager.py",
        "namespace_digest(self._secret, request.tenant, request.adapter)",
        'namespace_digest(self._secret, "", request.adapter)',
    ),
    Fault(
        "quota-closes-the-class", "P4", REASONS, CLOSURES,
        "OF_CLASS = frozenset({Blocked.CLASS_CAP, Blocked.RESERVE, Blocked.CLAIM})",
        "OF_CLASS = frozenset({"
        "Blocked.CLASS_CAP, Blocked.RESERVE, Blocked.CLAIM, Blocked.KV_QUOTA})",
    ),
    Fault(
        "pause-never-ends", "P4", REASONS, START_LIMITS,
        "self._is_paused = [name in limits.paused for name in names]",
        'self._is_paused = [name in limits.paused or name == "c" for name in names]',
    ),
    Fault(
        "claim-ignored", "P5",
        f"{PRESSURE}test_a_request_that_needs_much_memory_is_not_passed_by_for_ever", CLOSURES,
        "            return self._give_claim(traffic_class)\n",
        "            return ()\n",
    ),
    Fault(
        "idle-budget-saves-up", "P7", LIMITS, DEBITS,
        "self.tat_ns = max(self.tat_ns, now_ns) + time_ns",
        "self.tat_ns = self.tat_ns + time_ns",
    ),
    Fault(
        "pause-ignored", "P7", LIMITS, START_LIMITS,
        "        if self._is_paused[tenant]:\n",
        "        if self._is_paused[tenant] and config.max_concurrency:\n",
    ),
    Fault(
        "margin-dropped", "P8",
        f"{PROPERTIES}test_pace.py::test_noise_makes_few_requests_late[exact]", GAPS,
        "int(tightest_ns / (1 + kept))",
        "int(tightest_ns)",
    ),
    Fault(
        "demand-test-upside-down", "P9", f"{PROMISED}test_p9_who_is_protected_is_in_time",
        PROTECTION,
        "if due > share * possible",
        "if due < share * possible",
    ),
    Fault(
        "shorter-promises-forgotten", "P9", f"{PROMISED}test_p9_who_is_protected_is_in_time",
        PROTECTION,
        "        return self._precedence.left[traffic_class], begin_ns\n",
        "        return 1.0, now_ns + LONGEST_STEP_NS\n",
    ),
    Fault(
        "later-ones-stand-before", "P9", f"{PROMISED}test_p9_who_is_protected_is_in_time",
        PROTECTION,
        "                return place_ns + 1\n",
        "                return wanted_ns\n",
    ),
    Fault(
        "what-is-made-up-for-forgotten", "P9", f"{PROMISED}test_p9_who_is_protected_is_in_time",
        PROTECTION,
        "return due + self._made_up_for(request, own_tokens) <= share",
        "return due <= share",
    ),
    Fault(
        "demand-of-one-class", "P9", f"{PROMISED}test_p9_who_is_protected_is_in_time",
        "core/policy/lateness/deadlines.py",
        "total, node = 0, min(index + 1, self._size)",
        "total, node = 0, min(index, self._size)",
    ),
    Fault(
        "infeasible-upside-down", "P10", f"{PROMISED}test_p10_the_infeasible_miss_even_alone",
        SHEDDING,
        "        if least_ns <= left_ns:\n",
        "        if least_ns > left_ns:\n",
    ),
    Fault(
        "late-heads-upside-down", "P10", f"{PROMISED}test_p10_there_was_no_room_for_the_predicted",
        SHEDDING,
        "            if needed_ns <= left_ns:\n",
        "            if needed_ns > left_ns:\n",
    ),
    Fault(
        "refused-without-an-end", "P11", HISTORIES, SCHEDULER,
        "        self.outputs.add(request, OutputKind.FINISHED, queue_ns=queue_ns)\n",
        "        if was_accepted:\n"
        "            self.outputs.add(request, OutputKind.FINISHED, queue_ns=queue_ns)\n",
    ),
    Fault(
        "released-while-named", "P11", HISTORIES, SCHEDULER,
        "            if request.status.is_finished and not request.num_pins:\n",
        "            if request.status.is_finished:\n",
    ),
    Fault(
        "released-at-its-end", "P11", HISTORIES, SCHEDULER,
        "        if not request.num_pins:\n            self._release(request, now_ns)\n",
        "        self._release(request, now_ns)\n",
    ),
    Fault(
        "fence-off-by-one", "P12", HISTORIES, REPLICA,
        "return bool(self.table.last_step[request.row] > self.acked_step)",
        "return bool(self.table.last_step[request.row] > self.acked_step + 1)",
    ),
    Fault(
        "victims-upside-down", "P12", f"{PRESSURE}test_who_gives_memory_back_loses_nothing_else",
        PREEMPTION,
        "if (its := shares[request.flow]) < share or",
        "if (its := shares[request.flow]) > share or",
    ),
    Fault(
        "preempted-once-too-often", "P12", HISTORIES, "core/scheduler/step_memory.py",
        "r.num_preemptions < limit",
        "r.num_preemptions <= limit",
    ),
    Fault(
        "reserve-not-called-back", "P6",
        "tests/scheduler/test_reserved_memory.py::"
        "test_a_reserve_that_was_lent_is_back_within_a_step", "core/policy/kv_memory/recall.py",
        "        if is_owed:\n            return lower\n",
        "        if is_owed and not lower:\n            return lower\n",
    ),
    Fault(
        "weights-by-value", "P13",
        f"{INVARIANCE}test_names_and_scale_of_weights_change_nothing", FAIR_QUEUE,
        "relative = max(weights) / np.asarray(weights, np.float64)",
        "relative = 1 / np.asarray(weights, np.float64)",
    ),
    Fault(
        "quarters-the-wrong-way", "P14", f"{PROMISED}test_p14_refusals_are_even_over_lengths",
        "core/policy/lateness/fluid_replay.py",
        "key=lambda each: (self._refusals[each.quarter],",
        "key=lambda each: (-self._refusals[each.quarter],",
    ),
    Fault(
        "weights-upside-down", "P15",
        f"{INVARIANCE}test_more_weight_never_means_less_service", FAIR_QUEUE,
        "relative = max(weights) / np.asarray(weights, np.float64)",
        "relative = np.asarray(weights, np.float64) / min(weights)",
    ),
    Fault(
        "cancel-is-refunded", "P16", TRICKS, "core/policy/headrace.py",
        "REFUNDED = frozenset({RequestStatus.FINISHED_SHED, RequestStatus.FINISHED_ERROR})",
        "REFUNDED = frozenset({RequestStatus.FINISHED_SHED, RequestStatus.FINISHED_ABORTED})",
    ),
    Fault(
        "idle-tenant-saves-up", "P16", TRICKS, FAIR_QUEUE,
        "self.virtual[child, group] = max(int(self.virtual[child, group]), least)",
        "self.virtual[child, group] = int(self.virtual[child, group])",
    ),
    Fault(
        "gap-from-now", "P8", PAUSES, GAPS,
        "slack: Times = decodes.itl_cap_ns - waited",
        "slack: Times = decodes.itl_cap_ns - 0",
    ),
    Fault(
        "pause-without-bound", "P8", URGENT, PAUSING,
        "patience > 2 * max(tightest_ns, all_ns)",
        "patience > -(1 << 62)",
    ),
    Fault(
        "held-while-others-are-served", "P4", GATHERING, CONTENDERS,
        "is_concerned and not self.keeps_last(request)",
        "False",
    ),
    Fault(
        "gathers-for-ever", "P4", GATHERING, "core/policy/pacing/company.py",
        "1 - (1 - fraction) ** 2",
        "1.0",
    ),
    Fault(
        "margin-upside-down", "P8", EXACT_GAPS, GAPS,
        "int(tightest_ns / (1 + kept))",
        "int(tightest_ns * (1 + kept))",
    ),
    Fault(
        "loosest-gap", "P8", EXACT_GAPS, GAPS,
        "int(np.minimum.reduce(self.slack_ns, initial=UNLIMITED_NS))",
        "int(self.slack_ns.max(initial=0)) or UNLIMITED_NS",
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
        "or 0 < config.max_seqs <= has.num_requests",
        "or 0 < config.max_seqs < has.num_requests",
    ),
    Fault(
        "reserve-for-nobody", "P6",
        f"{GATES}::test_reserved_sequences_are_lent_only_to_those_that_can_be_preempted",
        START_LIMITS,
        "[is_fixed and num_left <= kept",
        "[not is_fixed and num_left <= kept",
    ),
    Fault(
        "row-lent-for-good", "P6",
        "tests/scheduler/test_lent_rows.py::test_a_lent_row_is_back_within_a_step",
        "core/policy/hard_limits/lent_rows.py",
        "            self._call_back(step, limits)",
        "            pass",
    ),
    Fault(
        "give-back-what-time-has-filled", "P7",
        f"{BUDGET_TESTS}::test_giving_back_late_gives_no_second_burst", DEBITS,
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
        "tests/policy/test_budget_returns.py"
        "::test_every_client_of_a_crowd_gets_in_at_the_time_it_was_told",
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
