"""Training of navigators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, final

from tensordict import TensorDictBase
from torchrl.envs import EnvBase

from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.specs import GROUP
from torchrl_gpu.policies import IQN, PolicyWrapper
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.training.off_policy import OffPolicy


@final
class Navigation(OffPolicy):
    """Trains an agent to bring every robot of a `MarineNavEnv` to its goal; arguments are those of `OffPolicy`.

    One agent acts for all robots. The row of the environment's curriculum is that of the frames played so far, a frame
    being a step of one environment with all its robots; what is not a world of the new row yet is played to its end.
    """

    counted = ("success", "collided")

    def before_play(self) -> None:
        """Goes on to the row of the curriculum that it is time for."""
        cast("MarineNavEnv", self.env).set_level(self.frames)

    def count(self, steps: TensorDictBase) -> None:
        """Counts worlds that are over: all robots arrived; any collided."""
        after = steps["next"]
        collided = after["collided"] if not self.group else after[GROUP, "collided"].any(-2)
        self.meter.count(after.select("done", "success").set("collided", collided))

    def contestants(self, env: EnvBase) -> Mapping[str, Policy]:
        """The same weights at the level of risk that follows the clearance, where they can be asked for it."""
        if not isinstance(self.agent, IQN):
            return {}
        return {"adaptive IQN": PolicyWrapper(self.agent, cvar="adaptive")}
