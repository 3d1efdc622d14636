"""A step as flat arrays for the device, exact or padded to the room of a graph.

Owns: the order of the arrays and what padding holds. Never knows: devices, or how the arrays get
there. Padding belongs to no sequence: its tokens write nothing, no unit of attention names it, and
what is computed of it is read by nobody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from core.executor.backend import attention_batch
from core.executor.input_batch import InputBatch, Int32Array
from core.kernels.paged_attention import AttentionBatch
from core.kernels.triton.paged_attention import AttentionUnits, TritonPagedAttention
from core.kernels.triton.work_units import NO_SEQUENCE, WorkUnits


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Room for so many decodes and units of attention; without `merges` no context is in parts."""

    num_sequences: int
    num_units: int
    merges: bool


class StepArrays(NamedTuple):
    """int32; the first four [tokens], the others [sequences]."""

    token_ids: Int32Array
    token_row: Int32Array
    token_sequence: Int32Array
    positions: Int32Array
    row: Int32Array
    first_token: Int32Array
    num_tokens: Int32Array
    first_position: Int32Array

    def padded(self, num_sequences: int) -> "StepArrays":
        """Return a step of decodes with as many sequences as wanted."""
        missing = num_sequences - len(self.row)
        padded = [np.concatenate((array, np.zeros(missing, np.int32))) for array in self]
        arrays = StepArrays(*padded)
        arrays.token_sequence[len(self.row) :] = NO_SEQUENCE
        return arrays


class StepTensors(NamedTuple):
    """`StepArrays` on the device."""

    token_ids: Tensor
    token_row: Tensor
    token_sequence: Tensor
    positions: Tensor
    row: Tensor
    first_token: Tensor
    num_tokens: Tensor
    first_position: Tensor


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A step on the device: its tensors, and the units of each attention of the model."""

    tensors: StepTensors
    units: tuple[tuple[AttentionUnits, ...], ...]


@dataclass(frozen=True, slots=True)
class HostStep:
    """What `arrays` hold, so that tensors of the same shapes can be told apart again."""

    step: StepArrays
    units: tuple[tuple[WorkUnits, ...], ...]
    room_for_partials: int = 0  # 0: as many as there are

    @property
    def arrays(self) -> list[Int32Array]:
        """All arrays, in a row."""
        cut = [array for units in self.units for each in units for array in each.arrays]
        return [*self.step, *cut]

    def named(self, sent: Sequence[Tensor]) -> DeviceStep:
        """Return `sent`, which are the arrays on the device, by their names."""
        rest = iter(sent)
        tensors = StepTensors(*[next(rest) for _ in self.step])
        units = tuple(
            tuple(
                AttentionUnits(
                    each.tile_rows,
                    self.room_for_partials or each.num_partials,
                    tuple(next(rest) for _ in each.arrays),
                )
                for each in units
            )
            for units in self.units
        )
        return DeviceStep(tensors, units)

    @property
    def num_units(self) -> int:
        """The most units of an attention."""
        return max(sum(len(each.sequence) for each in units) for units in self.units)

    @property
    def has_merges(self) -> bool:
        """Whether some context is in parts."""
        return any(len(each.merge_count) for units in self.units for each in units)

    def padded(self, bucket: Bucket) -> "HostStep":
        """Return the step, of decodes, with the shapes that every step of `bucket` has."""
        count = bucket.num_sequences if bucket.merges else 0
        units = tuple(
            tuple(each.padded(bucket.num_units, count) for each in units) for units in self.units
        )
        room = bucket.num_units if bucket.merges else 0
        return HostStep(self.step.padded(bucket.num_sequences), units, room)


def empty_step(attentions: Sequence[TritonPagedAttention]) -> HostStep:
    """Return a step of decodes without any, to be padded."""
    zero = np.zeros(1, dtype=np.int32)
    one = np.ones(1, dtype=np.int32)
    decode = AttentionBatch(zero, one, zero, zero.reshape(1, 1))
    units = tuple(tuple(each.without_units() for each in a.cut(decode)) for a in attentions)
    return HostStep(StepArrays(*[zero[:0]] * len(StepArrays._fields)), units)


def host_step(batch: InputBatch, attentions: Sequence[TritonPagedAttention]) -> HostStep:
    """Return a step as arrays, its attention cut into units."""
    attended = attention_batch(batch)
    token_sequence = attended.token_sequence()
    step = StepArrays(
        token_ids=batch.token_ids,
        token_row=batch.row[token_sequence],
        token_sequence=token_sequence,
        positions=attended.positions(),
        row=batch.row,
        first_token=batch.first_token,
        num_tokens=batch.num_tokens,
        first_position=batch.first_position,
    )
    return HostStep(step, tuple(tuple(attention.cut(attended)) for attention in attentions))
