"""What the runs that learn values of bins after placements share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torchrl_gpu.envs import BatchedEnv, PackingEnv
from torchrl_gpu.policies.packing.conv_values import ConvValues
from torchrl_gpu.policies.packing.packed_tables import pack_tables, unpack_tables
from torchrl_gpu.policies.packing.patch_tables import PatchTables
from torchrl_gpu.policies.packing.pretrained import PackingPolicy
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.policies.spaces import AgentSpace
from torchrl_gpu.training.run import EnvRun

_STATES = {"state_dict", "current_model_state"}  # the second where the first is an average of `WeightAveraging`


class AfterstateRun(EnvRun):
    """An `EnvRun` that learns what bins of boxes are worth after placements. A subclass sets `space` in `build`."""

    space: AgentSpace

    @property
    @abstractmethod
    def placement_values(self) -> PatchTables | ConvValues:
        """What is learned."""

    def packing_env(self, *included: str) -> PackingEnv:
        """The environment.

        Args:
            included: Observations that it must give.

        Raises:
            ValueError: It is no `PackingEnv` of boxes whose reward is the utilization, or leaves one of them out.
        """
        env, where = self.env, type(self).__name__
        if not isinstance(env, PackingEnv) or not env.catalogue.flat or env.reward != "utilization":
            came = f"{type(env).__name__} with reward {getattr(env, 'reward', 'of its own')!r}"
            raise ValueError(f"{where}: want a PackingEnv of boxes with reward 'utilization'; got {came}")
        for name in included:
            if name not in env.include:
                raise ValueError(f"{where}: want an env that includes {name}; got include={list(env.include)}")
        return env

    @property
    def learner_name(self) -> str:
        """What the values are of."""
        return "afterstate values"

    @property
    def has_values(self) -> bool:
        """Every placement has one."""
        return True

    def policy_for(self, env: BatchedEnv) -> Policy:
        """The placement of the largest value."""
        return PackingPolicy(self.space, self.placement_values)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds what the values observe, for a policy without an environment; of tables it saves what has learned."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["agent_space"] = self.space.to_dict()
        for name in _STATES & set(checkpoint):
            checkpoint[name] = pack_tables(self, checkpoint[name])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Makes tables whole, before anybody takes them."""
        super().on_load_checkpoint(checkpoint)
        for name in _STATES & set(checkpoint):
            checkpoint[name] = unpack_tables("checkpoint", self, checkpoint[name])
