"""`FromPixels`: video clips as observations of any environment that can be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs import clips
from torchrl_gpu.envs.base import BatchedEnv, Conflict, where_rows
from torchrl_gpu.envs.state_validation import Bounds
from torchrl_gpu.envs.viewable import Decision, Overlaid, Overlay, Viewable
from torchrl_gpu.envs.workers.shard import Recipe
from torchrl_gpu.system import arguments

_OWN = ("clip", "shown", "age")


class FromPixels(BatchedEnv):
    """Wrapper that adds video clips to an environment's observations: `clip`, and `frame` and `frame_at` for replay.

    An agent's networks choose among the other observations; action masks stay in force. Pictures are those of the
    environment's `pictures`, for all rows as a tensor on its device; there, too, they are to be drawn.

    Args:
        env: Environment without groups of robots; the wrapper owns it from here on.
        clip_length: T.
        frame_size: H and W of pictures, pixels.
        device: Device to move it to; "auto" leaves it where it is.

    Raises:
        ValueError: It has groups, cannot be drawn, or has keys of these names of its own.
    """

    def __init__(
        self,
        env: BatchedEnv,
        clip_length: int = 4,
        frame_size: Sequence[int] = (64, 64),
        *,
        device: str | torch.device = "auto",
    ) -> None:
        where = type(self).__name__
        self.clip_length, self.frame_size = clips.clip_size(where, clip_length, frame_size, 1)
        if str(device) != "auto" and env.device != torch.device(device):
            env = env.like(env.num_envs, device=device)
        if any(isinstance(key, tuple) for key in (*env.action_keys, *env.observation_spec.keys(True, True))):
            raise ValueError(f"{where}: want an environment without groups; {type(env).__name__} has some")
        if not isinstance(env, Viewable):
            raise ValueError(f"{where}: want an environment with `metrics` and `pictures`; got {type(env).__name__}")
        self.__dict__["_wrapped"] = env  # no submodule: its state is part of this one's
        super().__init__(env.num_envs, env.device, env.seed, env.first_env)
        taken = {*env.observation_spec.keys(), *env._env_state()} & {*_OWN, *clips.STORED_KEYS}
        if taken:
            raise ValueError(f"{where}: want an environment without {min(taken)}; {type(env).__name__} has one")
        self.action_spec, self.reward_spec = env.full_action_spec.clone(), env.full_reward_spec.clone()
        self.done_spec = env.full_done_spec.clone()
        self.observation_spec = env.observation_spec.clone()
        for name, spec in clips.clip_specs(self.clip_length, *self.frame_size).items():
            self.observation_spec[name] = spec.to(self.device).expand(self.num_envs, *spec.shape)
        self.outcomes, self._cleared = env.outcomes, env._cleared
        self.reads_host, self.is_native, self.far = env.reads_host, env.is_native, env.far
        nothing = torch.zeros(self.num_envs, 3, *self.frame_size, dtype=torch.uint8, device=self.device)
        self._clip = clips.first_clip(nothing, self.clip_length)
        self._age = torch.zeros_like(self._env_index)
        self._shown = self._age
        self._rows = torch.arange(self.num_envs, device=self.device, dtype=torch.int64)

    @property
    def env(self) -> Any:
        """The wrapped environment, a `BatchedEnv` that is `Viewable`."""
        return self.__dict__["_wrapped"]

    # -- delegated to the wrapped environment -----------------------------------------------------------------------

    @property
    def stored_keys(self) -> list[str]:
        return [*self.env.stored_keys, *clips.STORED_KEYS]

    @property
    def space_extras(self) -> dict[str, Any]:
        return self.env.space_extras

    def restore(self, tensordict: TensorDictBase, replay: Any = None) -> TensorDictBase:
        restored = self.env.restore(tensordict, replay)
        return clips.restore_clips(f"{type(self).__name__}.restore", restored, replay, self.clip_length)

    def episode_outcomes(self, after: TensorDictBase) -> dict[str, Tensor]:
        return self.env.episode_outcomes(after)

    def set_frames(self, frames: int) -> None:
        self.env.set_frames(frames)

    def renumber(self, first_env: int, copies: int = 1) -> None:
        super().renumber(first_env, copies)
        self.env.renumber(first_env, copies)

    def like(self, num_envs: int, **changes: Any) -> Self:
        """As in the base class; other changes than those of this constructor go to the wrapped environment."""
        own = {name: changes.pop(name, getattr(self, name)) for name in ("clip_length", "frame_size")}
        return type(self)(self.env.like(num_envs, **changes), **own)

    def shard_arguments(self, num_envs: int, first_env: int) -> dict[str, Any]:
        """As in the base class; the wrapped environment is made with as many rows."""
        env = Recipe(type(self.env), self.env.shard_arguments(num_envs, first_env))
        return {"env": env, "clip_length": self.clip_length, "frame_size": self.frame_size}

    def metrics(self) -> Mapping[str, Tensor]:
        return self.env.metrics()

    def pictures(self, index: Sequence[int], width: int, height: int) -> Any:
        return self.env.pictures(index, width, height)

    @property
    def overlays(self) -> Mapping[str, Overlay]:
        """Overlay of the policy's clip, and those of the wrapped environment."""
        others = self.env.overlays if isinstance(self.env, Overlaid) else {}
        return {"seen": Overlay("What the policy sees", "env"), **others}

    def overlay(self, name: str, index: int, width: int, height: int, decision: Decision | None) -> Tensor | np.ndarray:
        """Contact sheet of the clip of one environment, or an overlay of that environment; uint8 (H, W, 3) RGB."""
        if name != "seen":
            return self.env.overlay(name, index, width, height, decision)
        return clips.sheet(self._clip[index], width, height)

    def _restart_episodes(self) -> None:
        self.env.seed = self.seed
        self.env._restart_episodes()

    # -- steps ------------------------------------------------------------------------------------------------------

    def _draw(self) -> Tensor:
        height, width = self.frame_size
        drawn = torch.as_tensor(self.env.pictures(self._rows, width, height), device=self.device)
        wanted = self.num_envs, height, width, 3
        return arguments.tensor(type(self.env).__name__, "pictures", drawn, torch.uint8, wanted).permute(0, 3, 1, 2)

    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        observed = self.env._observe_reset(mask)
        self._clip = where_rows(mask, clips.first_clip(self._draw(), self.clip_length), self._clip)
        self._shown, self._age = self._shown + mask, self._age * ~mask
        return observed | clips.seen(self._clip, self._shown, self._age)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        after = self.env._step(tensordict)
        self._clip = clips.next_clip(self._clip, self._draw())
        self._shown, self._age = self._shown + 1, self._age + 1
        return after.update(clips.seen(self._clip, self._shown, self._age))

    def observation(self, index: int) -> TensorDictBase:
        """Current observation of one environment, batch size (1,)."""
        seen = TensorDict(clips.seen(self._clip, self._shown, self._age), [self.num_envs], device=self.device)
        return self.env.observation(index).update(seen[index : index + 1])

    # -- state ------------------------------------------------------------------------------------------------------

    def _env_state(self) -> dict[str, Tensor]:
        return self.env._env_state() | {"clip": self._clip, "shown": self._shown, "age": self._age}

    def _set_env_state(self, state: dict[str, Tensor]) -> None:
        self.env.seed = self.seed
        self.env._set_env_state(_without_clips(state))
        self._clip, self._shown, self._age = (state[name] for name in _OWN)

    def _state_bounds(self) -> dict[str, Bounds]:
        return self.env._state_bounds() | {"shown": Bounds(0, 2**62), "age": Bounds(0, 2**62)}

    def _state_conflict(self, state: dict[str, Tensor]) -> Conflict | None:
        return self.env._state_conflict(_without_clips(state))

    def _derived_state(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.env._derived_state(_without_clips(state))


def _without_clips(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name not in _OWN}
