"""A small environment of no task, with outcomes and pictures.

Its episodes can be worked out by hand.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchrl.data import Binary, Categorical, TensorSpec, Unbounded

from torchrl_gpu.envs.episodic import Advanced, EpisodicEnv


class CountingEnv(EpisodicEnv):
    """Adds up actions 0, 1 or 2 until the sum reaches a goal.

    Each step costs 1, and overshooting 10.

    The goal of an episode follows from the seed and the number of the row: 2, 3, 4 or 5.
    """

    def __init__(
        self, num_envs: int = 4, *, masked: bool = True, device: str = "cpu", seed: int = 0, first_env: int = 0
    ) -> None:
        self.masked = masked
        observations: dict[str, TensorSpec] = {"left": Unbounded((1,))}
        if masked:
            observations["action_mask"] = Binary(3, dtype=torch.bool)
        super().__init__(
            num_envs,
            observations=observations,
            action=Categorical(3, shape=(), dtype=torch.int64),
            outcomes={"exact": Binary(1, dtype=torch.bool)},
            max_steps=10_000,
            device=device,
            seed=seed,
            first_env=first_env,
        )

    def begin(self) -> dict[str, Tensor]:
        goal = 2 + (self.seed + 7 * self._env_index + 5 * self._state["episode"]) % 4
        return {"sum": torch.zeros_like(goal), "goal": goal}

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        total, goal = state["sum"] + action, state["goal"]
        state = {"sum": total, "goal": goal}
        return Advanced(state, -1.0 - 10.0 * (total > goal), total >= goal, {"exact": total == goal})

    def observe(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        left = (state["goal"] - state["sum"])[:, None]
        seen = {"left": left.float()}
        return seen | ({"action_mask": torch.arange(3) <= left.clamp_min(1)} if self.masked else {})

    def pictures(self, index: Sequence[int], width: int, height: int) -> Tensor:
        sums = self.entries["sum"]
        return torch.stack([torch.full((height, width, 3), 10 * int(sums[i]), dtype=torch.uint8) for i in index])
