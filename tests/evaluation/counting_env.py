"""A small environment of no family, with outcomes and pictures, whose episodes can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Categorical, Composite, Unbounded

from torchrl_gpu.envs import BatchedEnv
from torchrl_gpu.envs.base import where_rows


class CountingEnv(BatchedEnv):
    """Adds up actions 0, 1 or 2 until the sum reaches a goal; each step costs 1, and overshooting 10.

    The goal of an episode follows from the seed and the number of the row: 2, 3, 4 or 5.
    """

    outcomes: ClassVar[Sequence[str]] = ("exact",)

    def __init__(
        self,
        num_envs: int = 4,
        *,
        masked: bool = True,
        device: str = "cpu",
        seed: int | None = None,
        first_env: int = 0,
    ) -> None:
        super().__init__(num_envs, device, seed)
        self.masked, self.first_env = masked, first_env
        self._episode = torch.zeros(num_envs, dtype=torch.int64)
        self._sum, self._goal = torch.zeros(num_envs, dtype=torch.int64), torch.zeros(num_envs, dtype=torch.int64)
        flag = Binary(1, (num_envs, 1), dtype=torch.bool)
        seen: dict[str, Any] = {"left": Unbounded((num_envs, 1)), "exact": flag.clone()}
        if masked:
            seen["action_mask"] = Binary(3, (num_envs, 3), dtype=torch.bool)
        self.observation_spec = Composite(seen, shape=(num_envs,))
        self.action_spec = Categorical(3, shape=(num_envs,), dtype=torch.int64)
        self.reward_spec = Bounded(-11, 0, (num_envs, 1))
        self.done_spec = Composite({k: flag.clone() for k in ("done", "terminated", "truncated")}, shape=(num_envs,))

    def like(self, num_envs: int, **changes: Any) -> CountingEnv:
        names = ("masked", "device", "seed", "first_env")
        return CountingEnv(num_envs, **{name: getattr(self, name) for name in names} | changes)

    def renumber(self, first_env: int) -> None:
        self.first_env = first_env

    def _observed(self) -> dict[str, Tensor]:
        left = (self._goal - self._sum)[:, None]
        seen = {"left": left.float(), "exact": left == 0}
        return seen | ({"action_mask": torch.arange(3) <= left.clamp_min(1)} if self.masked else {})

    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        number = torch.arange(self.num_envs) + self.first_env
        goal = 2 + (self.seed + 7 * number + 5 * self._episode) % 4
        self._goal = where_rows(mask, goal, self._goal)
        self._sum = where_rows(mask, torch.zeros_like(self._sum), self._sum)
        self._episode = self._episode + mask
        return self._observed()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._sum = self._sum + self._given_action(tensordict, "action", (self.num_envs,), whole=True)
        over = (self._sum > self._goal)[:, None]
        done = (self._sum >= self._goal)[:, None]
        ends = {"done": done, "terminated": done.clone(), "truncated": torch.zeros_like(done)}
        return type(tensordict)(
            self._observed() | ends | {"reward": -1.0 - 10.0 * over}, batch_size=self.batch_size, device=self.device
        )

    def episode_outcomes(self, after: TensorDictBase) -> dict[str, Tensor]:
        return {"exact": after["exact"]}

    def _env_state(self) -> dict[str, Tensor]:
        return {"sum": self._sum, "goal": self._goal, "episode": self._episode}

    def _set_env_state(self, state: dict[str, Tensor]) -> None:
        self._sum, self._goal, self._episode = state["sum"], state["goal"], state["episode"]

    def _restart_streams(self) -> None:
        self._episode = torch.zeros_like(self._episode)

    # -- what can be watched --

    def figures(self) -> dict[str, Tensor]:
        return {
            "step": self._sum,
            "episode": self._episode,
            "return": -self._sum.float(),
            "exact": self._sum == self._goal,
        }

    def pictures(self, index: Sequence[int], width: int, height: int) -> Tensor:
        """As bright as the sum, in tens."""
        return torch.stack([torch.full((height, width, 3), 10 * int(self._sum[i]), dtype=torch.uint8) for i in index])
