"""`RslRlVecEnv`: any `BatchedEnv` for the runners of rsl_rl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, Categorical

from torchrl_gpu.envs.adapters.agent_rows import AgentRows
from torchrl_gpu.envs.base import BatchedEnv

# Length of an episode that is never cut off: rsl_rl wants a number.
_ENDLESS = 1_000_000


@final
class RslRlVecEnv:
    """A `BatchedEnv` under the contract of `rsl_rl.env.VecEnv`, version 5.5.

    A step reads nothing back to the host. Rows are environments, or robots if the environment groups them: N =
    environments · robots. A robot is done once in an episode, when it ends by itself or is cut off. From then on, until
    the next episode, it earns 0. Environments restart their own rows. Rows whose count was assigned to
    `episode_length_buf`, as `init_at_random_ep_len` does, are cut off after the environment's `max_steps`, if it has
    any.

    rsl_rl has Gaussian policies only. Their numbers from −1 to 1 are scaled to the bounds of a continuous action;
    numbers beyond are clipped. Among discrete actions each has a number of its own, and the legal one with the largest
    is taken.

    Limits of rsl_rl itself: it bootstraps a time-out from the state before the last step; its checkpoints hold no
    environment. Give its runner `check_for_nan: False`, else it reads the device at every step.

    Args:
        env: The environment.
        observations: Names of numbers and flags, which are joined in this order to the observation group "policy"; None
            for all vectors of several real numbers.

    Raises:
        ValueError: There is no such observation, several actions, or one that is neither an index nor bounded.
    """

    def __init__(self, env: BatchedEnv, observations: Sequence[str] | None = None) -> None:
        self.env = env
        self._rows = AgentRows(env, type(self).__name__)
        self.num_envs = self._rows.num_rows
        spec = self._rows.action
        self._discrete = isinstance(spec, Categorical)
        self.num_actions = int(spec.space.n) if isinstance(spec, Categorical) else int(spec.shape[-1])
        if isinstance(spec, Bounded):
            # The bounds that a policy's −1 and 1 stand for.
            self._low = spec.space.low
            self._high = spec.space.high
        self.max_episode_length = int(getattr(env, "max_steps", _ENDLESS))
        self.device = env.device
        self.cfg: dict[str, object] = {"environment": type(env).__name__, "num_envs": env.num_envs}
        self.episode_length_buf = torch.zeros(self.num_envs, dtype=torch.int64, device=env.device)
        # Mean outcomes of the episodes that ended last.
        self._recent = {name: torch.zeros((), device=env.device, dtype=torch.float32) for name in env.outcome_names}
        self._current = env.reset()
        self._names = self._vectors() if observations is None else list(observations)
        known = self._rows.entries(self._current).keys()
        if not self._names or not set(self._names) <= set(known):
            among = ", ".join(map(str, known))
            raise ValueError(f"RslRlVecEnv: observations must be among {among}, not {', '.join(self._names) or 'none'}")

    def get_observations(self) -> TensorDict:
        """Return the current observations: "policy" (N, D) float32."""
        values = [self._rows.observe(name, self._current) for name in self._names]
        parts = [value.reshape(self.num_envs, -1).float() for value in values]
        # A copy in either case, since the caller keeps it while the environment steps.
        joined = torch.cat(parts, -1) if len(parts) > 1 else parts[0].clone()
        return TensorDict({"policy": joined}, [self.num_envs], device=self.device)

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, object]]:
        """Play actions (N, A), real numbers, and restart the episodes that end.

        Returns:
            Next observations; rewards (N,) float32; ends (N,) bool; and extras: `time_outs` (N,) bool, the ends that
            are no terminations, and `log`, the mean outcomes of the episodes that ended last.
        """
        before = self._rows.entries(self._current)
        self._current.set(self._rows.action_key, self._choose_action(actions, before))
        stepped = self.env.step(self._current)
        after = stepped["next"]
        # A new tensor, since the runner may hold the old one.
        self.episode_length_buf = self.episode_length_buf + 1
        is_long = self.episode_length_buf >= self.max_episode_length
        # Robots of one environment restart together.
        by_env = is_long.view(self.env.num_envs, -1)
        cut_off = by_env.any(-1, keepdim=True)
        over = after["done"] | cut_off
        reward, terminated, done = self._rows.results(stepped, after, over)
        self.episode_length_buf = torch.where(self._rows.flatten(over), 0, self.episode_length_buf)
        self._log(after, over)
        following = self.env._step_mdp(stepped)
        self._current = self.env.maybe_reset(following.set("done", over))
        # rsl_rl logs names with a slash as they are, and puts others under a heading of its own.
        log = {f"/{name}": value for name, value in self._recent.items()}
        extras: dict[str, object] = {"time_outs": done & ~terminated, "log": log}
        return self.get_observations(), reward.float(), done, extras

    def _vectors(self) -> list[str]:
        """Return the names of observations that are vectors of several real numbers."""
        lead = len(self._rows.shape)
        names = []
        for name, spec in self._rows.observations.items():
            is_vector = spec.ndim == lead + 1 and spec.shape[-1] > 1
            if is_vector and spec.dtype.is_floating_point:
                names.append(name)
        return names

    def _choose_action(self, actions: Tensor, before: TensorDictBase) -> Tensor:
        """Return the environment's actions for the numbers of a policy."""
        actions = actions.view(*self._rows.shape, self.num_actions)
        if self._discrete:
            mask: Tensor | None = before.get("action_mask", None)
            legal = actions if mask is None else torch.where(mask, actions, -torch.inf)
            return legal.argmax(-1)
        span = self._high - self._low
        scaled = self._low + (actions + 1) * span / 2
        return scaled.clamp(self._low, self._high)

    def _log(self, after: TensorDictBase, over: Tensor) -> None:
        """Keep the mean outcomes of the episodes that end.

        The host does not ask whether any does.
        """
        number = over.sum()
        for name, value in self.env.episode_outcomes(after).items():
            total = torch.where(over, value.float(), 0.0).sum()
            mean = total / number.clamp_min(1)
            # Where no episode has ended the last mean stays: that of none would be 0, and look like a result.
            before = self._recent[name]
            self._recent[name] = torch.where(number > 0, mean, before)
