"""A token bucket reckoned anew from all its debits: the reference for budgets."""

from dataclasses import dataclass, field


@dataclass
class Debit:
    """A debit as the reference knows it."""

    at_ns: int
    time_ns: int
    number: int = 0


@dataclass
class Reference:
    """GCRA computed anew from all debits, each as large as it is known to be now."""

    debits: list[Debit] = field(default_factory=list)

    def tat_ns(self) -> int:
        """Return when the bucket is full again."""
        tat = 0
        for debit in self.debits:
            tat = max(tat, debit.at_ns) + debit.time_ns
        return tat

    def most_ns(self) -> int:
        """Return the most that any window of arrivals took beyond its own length."""
        most = 0
        for first, start in enumerate(self.debits):
            total = 0
            for debit in self.debits[first:]:
                total += debit.time_ns
                most = max(most, total - (debit.at_ns - start.at_ns))
        return most
