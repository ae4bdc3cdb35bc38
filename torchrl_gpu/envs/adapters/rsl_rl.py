"""`RslRlVecEnv`: any `BatchedEnv` for the runners of rsl_rl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical

from torchrl_gpu.envs.adapters.agent_rows import AgentRows
from torchrl_gpu.envs.base import BatchedEnv

_ENDLESS = 1_000_000


@final
class RslRlVecEnv:
    """A `BatchedEnv` under the contract of `rsl_rl.env.VecEnv`, version 5.5; nothing is read back in a step.

    Rows are environments, or, where these group their robots, robots: N = environments · robots. A robot is done once
    in an episode, when it ends by itself or is cut off; until the next episode it then earns 0. Environments restart
    their own rows. Rows whose count was assigned to `episode_length_buf`, as `init_at_random_ep_len` does, are cut off
    after the environment's `max_steps`, where it has some.

    rsl_rl has Gaussian policies only. A continuous action is what they give, from [−1, 1] to the bounds and no further.
    Of discrete actions each has a number of its own, and the legal one with the largest is taken.

    Limits of rsl_rl itself: it bootstraps a time-out from the state before the last step; its checkpoints hold no
    environment. Give its runner `check_for_nan: False`, else it reads the device at every step.

    Args:
        env: The environment.
        observations: Numbers and flags that are joined, in this order, to the observation group "policy"; None for all
            vectors of several real numbers.

    Raises:
        ValueError: There is no such observation, several actions, or one that is neither an index nor bounded.
    """

    def __init__(self, env: BatchedEnv, observations: Sequence[str] | None = None) -> None:
        self.env = env
        self._rows = AgentRows(env, type(self).__name__)
        self.num_envs = self._rows.number
        spec = self._rows.action
        self._discrete = isinstance(spec, Categorical)
        self.num_actions = int(spec.space.n) if isinstance(spec, Categorical) else int(spec.shape[-1])
        if isinstance(spec, Bounded):
            self._low, self._high = spec.space.low, spec.space.high
        self.max_episode_length = int(getattr(env, "max_steps", _ENDLESS))
        self.device = env.device
        self.cfg: dict[str, Any] = {"environment": type(env).__name__, "num_envs": env.num_envs}
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.int64, device=env.device)
        self._recent = {name: torch.zeros((), device=env.device, dtype=torch.float32) for name in env.outcome_names}
        self._current = env.reset()
        self._names = self._vectors() if observations is None else list(observations)
        shown = self._rows.entries(self._current)
        if not self._names or not set(self._names) <= set(shown.keys()):
            there = ", ".join(map(str, shown.keys()))
            raise ValueError(f"RslRlVecEnv: want observations among {there}; got {', '.join(self._names) or 'none'}")

    def get_observations(self) -> TensorDict:
        """Current observations: "policy" (N, D) float32."""
        shown = [self._rows.shown(name, self._current) for name in self._names]
        parts = [value.reshape(self.num_envs, -1).float() for value in shown]
        joined = torch.cat(parts, -1) if len(parts) > 1 else parts[0].clone()
        return TensorDict({"policy": joined}, [self.num_envs], device=self.device)

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Plays actions (N, A), real numbers, and restarts the episodes that end.

        Returns:
            Next observations; rewards (N,) float32; ends (N,) bool; `time_outs` (N,) bool, the ends that are no
            terminations, and in `log` the mean outcomes of the episodes that have ended last.
        """
        before = self._rows.entries(self._current)
        stepped = self.env.step(self._current.set(self._rows.action_key, self._given(actions, before)))
        after = stepped["next"]
        self.episode_length_buf = self.episode_length_buf + 1
        long = self.episode_length_buf >= self.max_episode_length
        over = after["done"] | long.view(self.env.num_envs, -1).any(-1, keepdim=True)
        reward, terminated, done = self._rows.earned(stepped, after, over)
        self.episode_length_buf = torch.where(self._rows.flat(over), 0, self.episode_length_buf)
        self._log(after, over)
        following = self.env._step_mdp(stepped)
        self._current = self.env.maybe_reset(following.set("done", over))
        extras = {"time_outs": done & ~terminated, "log": {f"/{name}": value for name, value in self._recent.items()}}
        return self.get_observations(), reward.float(), done, extras

    def _vectors(self) -> list[str]:
        lead = len(self._rows.shape)
        return [
            name
            for name, each in self._rows.observations.items()
            if each.ndim == lead + 1 and each.shape[-1] > 1 and each.dtype.is_floating_point
        ]

    def _given(self, actions: Tensor, shown: TensorDictBase) -> Tensor:
        actions = actions.view(*self._rows.shape, self.num_actions)
        if self._discrete:
            mask: Tensor | None = shown.get("action_mask", None)
            return (actions if mask is None else torch.where(mask, actions, -torch.inf)).argmax(-1)
        scaled = self._low + (actions + 1) * (self._high - self._low) / 2
        return scaled.clamp(self._low, self._high)

    def _log(self, after: TensorDictBase, over: Tensor) -> None:
        number = over.sum()
        for name, value in self.env.episode_outcomes(after).items():
            mean = torch.where(over, value.float(), 0.0).sum() / number.clamp_min(1)
            self._recent[name] = torch.where(number > 0, mean, self._recent[name])
