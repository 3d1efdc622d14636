"""Streams of requests with promises, for properties of refusals: random, and made to hurt.

Owns: what arrives when, all from one seed, for a machine that computes TOKENS_PER_S prompt tokens a
second. Never knows: the policy, or what must hold.

    stream         Poisson arrivals of two classes
    crowds         many tenants at one instant, with prompts of one length or of all
    returns        newcomers, and right behind them those whom the others were served more than
    waves          a queue with a long promise, then more than the machine can do with a short one
    long_prompts   prompts that take up to two thirds of their promise
    conversations  prompts of which all but the last tokens were computed before
"""

from collections.abc import Sequence

import numpy as np

from core.simulation.workload import Promise, Workload
from core.tenancy.classes import TrafficClass
from tests.support.loads.workloads import make_workload

FAST, SLOW = TrafficClass.INTERACTIVE, TrafficClass.STANDARD
PROMISES = {FAST: Promise(2.0, 0.06), SLOW: Promise(20.0, 0.4)}
TOKENS_PER_S = 9000.0
PROMPTS_PER_S = 11.0  # of a stream, at a load of 1
BLOCK = 512  # tokens, of the names in `hash_ids`
Row = tuple[float, int, int]  # ms, prompt tokens, output tokens


def stream(seed: int, load: float, count: int = 400, num_tenants: int = 1) -> Workload:
    """Return Poisson arrivals of two classes at `load` times of what the machine can do; prompts
    of 50 to 3,200 tokens, evenly in the logarithm.
    """
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1000 / PROMPTS_PER_S / load, count))
    prompts = np.exp(random.uniform(np.log(50), np.log(3200), count)).astype(int)
    outputs = random.integers(1, 12, count)
    rows = list(zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True))
    return make_workload(
        rows,
        tenants=random.integers(0, num_tenants, count).tolist(),
        classes=[(FAST, SLOW)[each] for each in random.integers(0, 2, count).tolist()],
        promises=PROMISES,
    )


def crowds(seed: int, num_crowds: int = 6) -> Workload:
    """Return crowds of up to 40 tenants with a prompt each, of which the first few can be in time;
    by turns all of one class, or of two with the same promise, and all of one length, or of 50 to
    8,000 tokens: longer ones that come later should start first.
    """
    random = np.random.default_rng(seed)
    classes = (FAST, SLOW) if seed % 2 else (FAST,)
    rows, kinds, tenants = _greeting(classes)
    at_ms = 1500.0
    for _ in range(num_crowds):
        count = int(random.integers(15, 40))
        is_even = random.random() < 0.3
        shortest, longest = (400, 3200) if is_even else (50, 8000)
        prompts = np.exp(random.uniform(np.log(shortest), np.log(longest), count)).astype(int)
        prompts = np.full(count, prompts[0]) if is_even else prompts
        at = at_ms + random.uniform(0, 20, count)
        rows += [(float(ms), int(prompt), 2) for ms, prompt in zip(at, prompts, strict=True)]
        kinds += [classes[each] for each in random.integers(0, len(classes), count)]
        tenants += range(count)
        at_ms += random.uniform(3000, 6000)
    return _in_order(rows, kinds, tenants, {each: Promise(2.0, 0.06) for each in classes})


def returns(seed: int) -> Workload:
    """Return a tenant that nearly fills the machine for seconds, beside some that only decode and
    so fall behind; then a few prompts of newcomers, and after them crowds of those.
    """
    random = np.random.default_rng(seed)
    rows, kinds, tenants = _greeting((FAST,))
    behind = range(2, 2 + int(random.integers(1, 4)))
    rows += [(50.0 + each, 200, int(random.integers(150, 250))) for each in behind]
    tenants += behind
    at_ms, end_ms = 100.0, float(random.uniform(4000, 8000))
    while at_ms < end_ms:
        prompt = int(random.integers(300, 1500))
        rows.append((at_ms, prompt, 2))
        tenants.append(1)
        at_ms += 1000 * prompt / TOKENS_PER_S / 0.9
    newcomers = int(random.integers(2, 8))
    rows += [(end_ms + n, int(random.integers(300, 700)), 2) for n in range(newcomers)]
    tenants += [10 + n % 2 for n in range(newcomers)]
    for tenant in behind:
        rows += [(end_ms + 20 + n, int(random.integers(300, 900)), 2) for n in range(20)]
        tenants += [tenant] * 20
    kinds = [FAST] * len(rows)
    return _in_order(rows, kinds, tenants, {FAST: Promise(4.0, 0.06)})


def waves(seed: int) -> Workload:
    """Return many of a class with a promise of some seconds, and from then on 1.5 times of what the
    machine can do in a class with a promise of one.
    """
    random = np.random.default_rng(seed)
    rows, kinds, tenants = _greeting((FAST, SLOW))
    promised_s = float(random.uniform(3, 5))
    prompt, count = int(random.integers(300, 1200)), int(random.integers(30, 60))
    rows += [(500.0 + each, prompt, 2) for each in random.uniform(0, 20, count)]
    kinds += [SLOW] * count
    prompt = int(random.integers(100, 1500))
    count = int(1.5 * (promised_s + 2) * TOKENS_PER_S / prompt)
    gaps = random.exponential(1000 * prompt / TOKENS_PER_S / 1.5, count)
    rows += [(520.0 + each, prompt, 2) for each in np.cumsum(gaps)]
    kinds += [FAST] * count
    promises = {FAST: Promise(1.0, 0.06), SLOW: Promise(promised_s, 0.4)}
    return _in_order(rows, kinds, tenants + [0] * (len(rows) - len(tenants)), promises)


def long_prompts(seed: int, load: float, count: int) -> Workload:
    """Return Poisson arrivals of one class; prompts of 50 to 12,800 tokens, evenly in the
    logarithm.
    """
    random = np.random.default_rng(seed)
    prompts = np.exp(random.uniform(np.log(50), np.log(12_800), count)).astype(int)
    gap_ms = float(prompts.mean()) / TOKENS_PER_S * 1000 / load
    arrivals = np.cumsum(random.exponential(gap_ms, count))
    outputs = random.integers(1, 12, count)
    rows = list(zip(arrivals.tolist(), prompts.tolist(), outputs.tolist(), strict=True))
    return make_workload(rows, classes=[FAST] * count, promises=PROMISES)


def conversations(seed: int, load: float, count: int) -> Workload:
    """Return Poisson arrivals of one class, promised in 0.6 s; prompts of 4 blocks that all share
    and 100 to 1,023 tokens of their own, which make the load.
    """
    random = np.random.default_rng(seed)
    own = random.integers(100, 2 * BLOCK, count)
    gap_ms = float(own.mean()) / TOKENS_PER_S * 1000 / load
    arrivals = np.cumsum(random.exponential(gap_ms, count))
    outputs = random.integers(1, 6, count)
    rows = list(zip(arrivals.tolist(), (own + 4 * BLOCK).tolist(), outputs.tolist(), strict=True))
    return make_workload(
        rows,
        classes=[FAST] * count,
        promises={FAST: Promise(0.6, 0.06)},
        hash_ids=tuple(_names(each, int(length)) for each, length in enumerate(own)),
    )


def _names(index: int, own_tokens: int) -> tuple[int, ...]:
    """Return the names of the blocks of a prompt: 4 that all share, and its own."""
    return (0, 1, 2, 3, *(4 + 2 * index + each for each in range(-(-own_tokens // BLOCK))))


def _greeting(classes: Sequence[TrafficClass]) -> tuple[list[Row], list[TrafficClass], list[int]]:
    """Return rows, classes and tenants of a few requests that make all promises known."""
    rows = [(10.0 * each, 200, 2) for each in range(len(classes))]
    return rows, list(classes), [0] * len(classes)


def _in_order(
    rows: list[Row],
    kinds: list[TrafficClass],
    tenants: list[int],
    promises: dict[TrafficClass, Promise],
) -> Workload:
    """Return the workload, sorted by arrival."""
    order = sorted(range(len(rows)), key=lambda index: rows[index][0])
    return make_workload(
        [rows[index] for index in order],
        tenants=[tenants[index] for index in order],
        classes=[kinds[index] for index in order],
        promises=promises,
    )
