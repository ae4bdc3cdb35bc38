"""Assignment of environments, and of their parts of tensors, to workers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import NestedKey

from torchrl_gpu.envs.workers.shard import Tensors


def shares(num_envs: int, num_workers: int) -> list[tuple[int, int]]:
    """First environment and number of environments of each worker: multiples of 16 where there are enough.

    Then no row is computed by the scalar remainder of a vectorised loop here and by the loop itself there, which may
    differ in the last bit.
    """
    unit = 16 if num_envs >= 16 * num_workers else 1
    ends = [num_envs // unit * (i + 1) // num_workers * unit for i in range(num_workers - 1)] + [num_envs]
    return [(start, end - start) for start, end in zip([0, *ends], ends, strict=False)]


def axes(whole: Tensors, part: Tensors, num_envs: int, of_part: int) -> dict[NestedKey, int]:
    """Axis of environments of every tensor, found by comparing shapes with those of fewer environments.

    Raises:
        ValueError: A tensor has none, or several.
    """
    found = {}
    for key, tensor in whole.items():
        shape, other = tuple(tensor.shape), tuple(part[key].shape)
        differ = [i for i, (a, b) in enumerate(zip(shape, other, strict=False)) if a != b]
        if len(shape) != len(other) or [(shape[i], other[i]) for i in differ] != [(num_envs, of_part)]:
            raise ValueError(
                f"EnvWorkers: want a state whose entries have one axis of environments each, to be split; got {key} of"
                f" {shape} for {num_envs} environments and of {other} for {of_part}"
            )
        found[key] = differ[0]
    return found


class SplitTensors:
    """Tensors of all environments on the CPU, and each worker's part of them: views, not copies.

    Args:
        like: Shapes and dtypes.
        axes: The axis of environments of each; 0 where it is missing.
        parts: As `shares` returns them.
        shared: Whether they lie in shared memory.
    """

    def __init__(
        self, like: Tensors, axes: dict[NestedKey, int], parts: Sequence[tuple[int, int]], shared: bool
    ) -> None:
        self.whole: Tensors = {
            key: torch.empty(value.shape, dtype=value.dtype, device="cpu") for key, value in like.items()
        }
        if shared:
            for value in self.whole.values():
                value.share_memory_()
        self.parts: list[Tensors] = [
            {key: value.narrow(axes.get(key, 0), start, count) for key, value in self.whole.items()}
            for start, count in parts
        ]

    def put(self, values: Tensors) -> None:
        """Copies values in, from any device."""
        for key, place in self.whole.items():
            place.copy_(values[key])

    def copy(self, device: torch.device) -> Tensors:
        """Copies of the tensors on a device."""
        return {key: value.to(device, copy=True) for key, value in self.whole.items()}
