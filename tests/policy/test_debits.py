"""Giving back what was debited and not used, as if it had never been."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.policy.hard_limits.debits import Debits
from tests.support.policy.gcra import Debit, Reference

Steps = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 100), st.floats(0.0, 1.0), st.booleans()),
    max_size=40,
)


@given(Steps)
@settings(deadline=None)
def test_it_is_as_if_every_debit_had_been_what_was_used(
    steps: list[tuple[int, int, float, bool]],
) -> None:
    """After any debits and settlements the TAT is that of a bucket that knew the use beforehand."""
    debits, reference, open_debits, now = Debits(), Reference(), list[Debit](), 0
    for wait, amount, share, opens in steps:
        now += wait
        if opens or not open_debits:
            debit = Debit(now, amount, debits.open(amount, now))
            reference.debits.append(debit)
            open_debits.append(debit)
        else:
            debit = open_debits.pop(amount % len(open_debits))
            excess = int(debit.time_ns * share)
            debit.time_ns -= excess
            debits.close(debit.number, excess)
        assert max(debits.tat_ns, now) == max(reference.tat_ns(), now)


def test_many_open_debits_cost_little_memory_and_settle_in_any_order() -> None:
    """Thousands of open debits, closed at random, leave nothing behind."""
    debits, rng = Debits(), np.random.default_rng(1)
    numbers = np.array([debits.open(2, now) for now in range(3000)])
    for number in rng.permutation(numbers).tolist():
        debits.close(number, 1)
    assert debits.tat_ns == 3000
    assert debits.num_open == 0
