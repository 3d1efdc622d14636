"""Rotary tables."""

import math
from dataclasses import replace

import torch

from core.models.rope import rope_table, rotary_order
from core.models.rope_config import RopeConfig

HEAD_DIM = 16
PLAIN = RopeConfig(theta=10000.0, rotary_dim=HEAD_DIM)
LONG = replace(
    PLAIN,
    kind="longrope",
    original_max_position=32,
    attention_factor=1.5,
    short_factors=(1.0,) * 8,
    long_factors=(4.0,) * 8,
)


def test_angles_are_position_times_frequency() -> None:
    """Column i of the table turns by position / theta^(2i / head_dim)."""
    table = rope_table(PLAIN, HEAD_DIM, 40)
    for position, i in ((0, 0), (1, 0), (39, 3), (17, 7)):
        angle = position / PLAIN.theta ** (2 * i / HEAD_DIM)
        assert math.isclose(table[position, i], math.cos(angle), abs_tol=1e-6)
        assert math.isclose(table[position, 8 + i], math.sin(angle), abs_tol=1e-6)


def test_linear_scaling_stretches_positions() -> None:
    """Position 4 under a factor of 4 turns like position 1."""
    scaled = replace(PLAIN, kind="linear", factor=4.0)
    plain = rope_table(PLAIN, HEAD_DIM, 9)
    torch.testing.assert_close(rope_table(scaled, HEAD_DIM, 9)[4], plain[1])


def ratio_of_angles(scaled: RopeConfig) -> torch.Tensor:
    """How much slower each pair turns than unscaled."""
    plain = torch.atan2(*reversed(rope_table(PLAIN, HEAD_DIM, 2)[1].chunk(2)))
    return plain / torch.atan2(*reversed(rope_table(scaled, HEAD_DIM, 2)[1].chunk(2)))


def test_llama3_scaling_touches_long_waves_only() -> None:
    """Short wavelengths stay, long ones are stretched by the factor, between them it blends."""
    scaled = replace(PLAIN, kind="llama3", factor=8.0, original_max_position=512)
    ratio = ratio_of_angles(scaled)
    assert math.isclose(ratio[0], 1.0, rel_tol=1e-5)
    assert math.isclose(ratio[-1], 8.0, rel_tol=1e-4)
    assert (ratio.diff() >= -1e-4).all()


def test_yarn_keeps_what_turns_often_and_divides_what_does_not() -> None:
    """Between `beta_fast` and `beta_slow` turns in the old context the pairs blend."""
    ratio = ratio_of_angles(replace(PLAIN, kind="yarn", factor=4.0, original_max_position=512))
    assert math.isclose(ratio[0], 1.0, rel_tol=1e-5)
    assert math.isclose(ratio[-1], 4.0, rel_tol=1e-4)
    assert ((ratio > 1.01) & (ratio < 3.99)).any()


def test_dynamic_scaling_begins_beyond_the_old_context() -> None:
    """Up to the context of training nothing changes; beyond it slow pairs turn slower."""
    scaled = replace(PLAIN, kind="dynamic", factor=2.0, original_max_position=64)
    assert torch.equal(rope_table(scaled, HEAD_DIM, 64), rope_table(PLAIN, HEAD_DIM, 64))
    longer = rope_table(scaled, HEAD_DIM, 128)[1] - rope_table(PLAIN, HEAD_DIM, 128)[1]
    assert longer[8] == 0
    assert (longer[9:] < 0).all()


def test_longrope_goes_by_the_longest_sequence() -> None:
    """An engine within the old context takes the short factors, any other the long ones."""
    short, long = rope_table(LONG, HEAD_DIM, 32), rope_table(LONG, HEAD_DIM, 33)
    torch.testing.assert_close(short, 1.5 * rope_table(PLAIN, HEAD_DIM, 32))
    torch.testing.assert_close(long[4], short[1])


def test_a_part_of_a_head_turns() -> None:
    """Pairs beyond the rotary dimensions have cosine 1 and sine 0, whatever the scaling."""
    part = replace(LONG, rotary_dim=8, short_factors=(1.0,) * 4, long_factors=(4.0,) * 4)
    cos, sin = rope_table(part, HEAD_DIM, 40).chunk(2, dim=1)
    assert (cos[:, 4:] == 1).all()
    assert (sin[:, 4:] == 0).all()
    assert (sin[1:, :4] != 0).all()


def test_the_order_puts_partners_half_a_head_apart() -> None:
    """Dimension i of the files, which turns with i + 4, comes to stand half a head before it."""
    order = rotary_order(HEAD_DIM, 8).tolist()
    assert sorted(order) == list(range(HEAD_DIM))
    for i in range(4):
        assert order.index(i) + HEAD_DIM // 2 == order.index(i + 4)
        assert order.index(i) < 4
    assert rotary_order(HEAD_DIM, HEAD_DIM).tolist() == list(range(HEAD_DIM))
