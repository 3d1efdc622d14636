"""Random examples are judged by what they show, never by how fast they are.

A busy machine makes any of them slow. Where the environment says CI, Hypothesis draws the same ones
at each run, so that a change never fails for what it did not touch; elsewhere it draws others, and
`scripts/swarm` looks much further.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")
