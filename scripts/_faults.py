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


FAULTS: tuple[Fault, ...] = ()
