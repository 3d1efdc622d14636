"""Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011, section 4.3).

A draw is a pure function of (seed, choice, output index), so a token sampled again after a
preemption, a restart or on another replica is the same token. The key is the 64-bit seed, the
counter (output index, choice, 0, 0). Plain integer arithmetic, vectorized over rows.
"""

import numpy as np
import numpy.typing as npt

UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]

MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
ROUNDS = 10
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def philox4x32(counter: UInt32Array, key: UInt32Array) -> UInt32Array:
    """Return 4 random words for each counter: counter [n, 4], key [n, 2] -> [n, 4]."""
    c0, c1, c2, c3 = counter.astype(np.uint64).T
    k0, k1 = key.astype(np.uint64).T
    for _ in range(ROUNDS):
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ k0, p1 & LOW, (p0 >> HALF) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return np.stack((c0, c1, c2, c3), axis=1).astype(np.uint32)


def words(
    seeds: UInt64Array, choices: npt.NDArray[np.int32], indices: npt.NDArray[np.int32]
) -> UInt32Array:
    """Return the 4 words of each (seed, choice, output index): uint32 [n, 4]."""
    key = np.stack((seeds & LOW, seeds >> HALF), axis=1).astype(np.uint32)
    counter = np.zeros((len(seeds), 4), dtype=np.uint32)
    counter[:, 0] = indices
    counter[:, 1] = choices
    return philox4x32(counter, key)


def uniforms(
    seeds: UInt64Array, choices: npt.NDArray[np.int32], indices: npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    """Return one number of [0, 1) with 53 random bits per row: float64 [n].

    The first word gives the upper 27 bits, the second the lower 26.
    """
    drawn = words(seeds, choices, indices).astype(np.uint64)
    high, low = drawn[:, 0] >> np.uint64(5), drawn[:, 1] >> np.uint64(6)
    return (high * np.uint64(2**26) + low).astype(np.float64) / 2.0**53
