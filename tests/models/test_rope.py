"""Rotary tables."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from core.models.llama_config import LlamaConfig, RopeScaling, read_model_config
from core.models.rope import rope_table
from tests.support.tiny_model import write_tiny_model


def tiny_config(directory: Path) -> LlamaConfig:
    """The tiny model's facts."""
    return read_model_config(write_tiny_model(directory))


def test_angles_are_position_times_frequency(tmp_path: Path) -> None:
    """Column i of the table turns by position / theta^(2i / head_dim)."""
    config = tiny_config(tmp_path)
    table = rope_table(config, 40)
    for position, i in ((0, 0), (1, 0), (39, 3), (17, 7)):
        angle = position / config.rope_theta ** (2 * i / config.head_dim)
        assert math.isclose(table[position, i], math.cos(angle), abs_tol=1e-6)
        assert math.isclose(table[position, 8 + i], math.sin(angle), abs_tol=1e-6)


def test_linear_scaling_stretches_positions(tmp_path: Path) -> None:
    """Position 4 under a factor of 4 turns like position 1."""
    config = tiny_config(tmp_path)
    scaled = replace(config, rope_scaling=RopeScaling("linear", 4.0))
    torch.testing.assert_close(rope_table(scaled, 9)[4], rope_table(config, 9)[1])


def test_llama3_scaling_touches_long_waves_only(tmp_path: Path) -> None:
    """Short wavelengths stay, long ones are stretched by the factor, between them it blends."""
    config = replace(tiny_config(tmp_path), rope_theta=10000.0)
    scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, original_max_position=512)
    plain = torch.atan2(*reversed(rope_table(config, 2)[1].chunk(2)))
    scaled = rope_table(replace(config, rope_scaling=scaling), 2)[1]
    ratio = plain / torch.atan2(*reversed(scaled.chunk(2)))
    assert math.isclose(ratio[0], 1.0, rel_tol=1e-5)
    assert math.isclose(ratio[-1], 8.0, rel_tol=1e-4)
    assert (ratio.diff() >= -1e-4).all()
