"""The studies of `scripts/bench/policy` by name: which runs answer which question, and the bars.

A study is a function of `Asked` that returns its figures; its bars name them by their path below
the study's name.
"""

from collections.abc import Mapping

from scripts.bench.benchmarks.policy import capacity, company
from scripts.bench.benchmarks.policy.study import Study

STUDIES: Mapping[str, Study] = {
    "references": Study(capacity.references, capacity.reference_bars),
    "strict": Study(capacity.strict, capacity.strict_bars),
    "overload": Study(capacity.overload, capacity.overload_bars),
    "fairness": Study(company.fairness, company.fairness_bars),
    "locality": Study(company.locality, company.locality_bars),
    "isolation": Study(company.isolation, company.isolation_bars),
    "colocation": Study(company.colocation, company.colocation_bars),
    "memory": Study(company.memory, company.memory_bars),
    "optimality": Study(capacity.optimality, capacity.optimality_bars),
    "cost": Study(capacity.cost, capacity.cost_bars),
}
