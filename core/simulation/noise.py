"""Step times that scatter, from a seed.

Owns: the factor by which a step differs from its model. Never knows: the model. Factors are drawn
in blocks, because a draw of one costs as much as a draw of a thousand.
"""

from dataclasses import dataclass

import numpy as np

BLOCK = 4096
OUTLIER_SHARE = 0.005
OUTLIER_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class NoiseSettings:
    """Log-normal, mean 1; `sigma` 0 is none. With `outliers` 0.5 % of steps take 3 × as long."""

    sigma: float = 0.0
    outliers: bool = False


NO_NOISE = NoiseSettings()


class Noise:
    """An endless sequence of factors."""

    def __init__(self, settings: NoiseSettings, seed: int) -> None:
        """Begin the sequence that belongs to `seed`."""
        self._settings = settings
        self._random = np.random.default_rng(seed)
        self._block: list[float] = []

    def apply(self, duration_ns: int) -> int:
        """Return a duration that scatters around `duration_ns`, ns."""
        if self._settings == NO_NOISE:
            return duration_ns
        if not self._block:
            self._block = self._draw()
        return max(1, round(duration_ns * self._block.pop()))

    def _draw(self) -> list[float]:
        sigma = self._settings.sigma
        factors = self._random.lognormal(-(sigma**2) / 2, sigma, BLOCK)
        if self._settings.outliers:
            factors[self._random.random(BLOCK) < OUTLIER_SHARE] *= OUTLIER_FACTOR
        block: list[float] = factors.tolist()
        return block
