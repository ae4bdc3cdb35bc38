"""Environments for the tests of workers, in a module that a worker can import."""

from __future__ import annotations

import multiprocessing
from typing import Any

import torch
from torch import Tensor
from torchrl.data import Bounded, Categorical

from tests.records import with_values
from torchrl_gpu.envs import Advanced, EpisodicEnv


class Walk(EpisodicEnv):
    """A number that goes up or down by a random step.

    It is over at 2 and beyond.
    """

    def __init__(
        self, num_envs: int = 6, *, stride: Any = 0.5, device: object = "cpu", seed: object = 0, first_env: int = 0
    ) -> None:
        self.stride = stride
        given = {"device": device, "seed": seed, "first_env": first_env, "max_steps": 9}
        seen = {"place": Bounded(-3.0, 3.0, (1,))}
        super().__init__(num_envs, observations=seen, action=Categorical(2), **given)

    def begin(self) -> dict[str, Tensor]:
        return {"place": self.uniform(1) - 0.5}

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        place = state["place"] + (2 * action[:, None] - 1) * self.stride * self.uniform(1)
        return Advanced({"place": place}, -place[:, 0].abs(), place[:, 0].abs() >= 2)


class Thrower(Walk):
    """Raises in a worker, in the steps of environments from number 3 on."""

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        if multiprocessing.parent_process() is not None and self.first_env >= 3:
            raise RuntimeError("the simulator\nlost its licence")
        return super().advance(state, action)


class Neighbours(Walk):
    """Each row looks at the one beside it, so that it cannot be split."""

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        moved = super().advance(state, action)
        return with_values(moved, state={"place": moved.state["place"] + 0.1 * state["place"].roll(1, 0)})


class Global(Walk):
    """Its state has a number that belongs to no environment."""

    def env_state(self) -> dict[str, Tensor]:
        return super().env_state() | {"weather": torch.zeros(3)}

    def set_env_state(self, state: dict[str, Any]) -> None:
        super().set_env_state({name: value for name, value in state.items() if name != "weather"})
