"""`FromPixels`: video clips as observations of any environment that can be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from torchrl_gpu.envs import clips
from torchrl_gpu.envs.base import BatchedEnv, Conflict, ConstructorArguments, where_rows
from torchrl_gpu.envs.state_validation import Bounds
from torchrl_gpu.envs.viewable import Decision, Overlaid, Overlay, Viewable
from torchrl_gpu.envs.workers.shard import Recipe
from torchrl_gpu.system import arguments

# Tensors of the state that are the wrapper's own.
_OWN = ("clip", "shown", "age")


class FromPixels(BatchedEnv):
    """Wrapper that adds video clips to an environment's observations.

    They are `clip`, and `frame` and `frame_at` for replay, see `envs.clips`. An agent's networks choose among the other
    observations; action masks stay in force. Pictures come from the environment's `pictures`, which should draw them on
    its device: it is called at every step, with all rows as a tensor there.

    Args:
        env: Environment without groups of robots; the wrapper owns it from here on.
        clip_length: T.
        frame_size: H and W of pictures, pixels.
        device: Device to move it to; "auto" leaves it where it is.

    Raises:
        ValueError: It has groups, cannot be drawn, or has keys of the wrapper's names.
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
        keys = (*env.action_keys, *env.observation_spec.keys(True, True))
        if any(isinstance(key, tuple) for key in keys):
            raise ValueError(f"{where}: env must be without groups of robots; {type(env).__name__} has some")
        if not isinstance(env, Viewable):
            raise ValueError(f"{where}: env must have `metrics` and `pictures`; {type(env).__name__} lacks one")
        # As a submodule it would bring its state into ours a second time.
        self.__dict__["_wrapped"] = env
        super().__init__(env.num_envs, env.device, env.seed, env.first_env)
        taken = {*env.observation_spec.keys(), *env.env_state()} & {*_OWN, *clips.STORED_KEYS}
        if taken:
            raise ValueError(f"{where}: env must be without {min(taken)}; {type(env).__name__} has one")

        self.action_spec = env.full_action_spec.clone()
        self.reward_spec = env.full_reward_spec.clone()
        self.done_spec = env.full_done_spec.clone()
        self.observation_spec = env.observation_spec.clone()
        specs = clips.clip_specs(self.clip_length, *self.frame_size)
        for name, spec in specs.items():
            self.observation_spec[name] = spec.to(self.device).expand(self.num_envs, *spec.shape)
        self.outcomes = env.outcomes
        self.cleared_keys = env.cleared_keys
        self.reads_host = env.reads_host
        self.is_native = env.is_native
        self.far = env.far

        shape = (self.num_envs, 3, *self.frame_size)
        black = torch.zeros(shape, dtype=torch.uint8, device=self.device)
        self._clip = clips.first_clip(black, self.clip_length)
        # Steps of the running episode, and pictures shown before the newest, (N,) each.
        self._age = torch.zeros_like(self._env_index)
        self._num_shown = self._age
        self._rows = torch.arange(self.num_envs, device=self.device, dtype=torch.int64)

    @property
    def env(self) -> BatchedEnv:
        """The wrapped environment, which is also `Viewable`."""
        return cast(BatchedEnv, self.__dict__["_wrapped"])

    @property
    def _view(self) -> Viewable:
        return cast(Viewable, self.__dict__["_wrapped"])

    # -- delegated to the wrapped environment -----------------------------------------------------------------------

    @property
    def stored_keys(self) -> list[str]:
        return [*self.env.stored_keys, *clips.STORED_KEYS]

    @property
    def space_extras(self) -> dict[str, object]:
        return self.env.space_extras

    def restore(self, tensordict: TensorDictBase, replay: object = None) -> TensorDictBase:
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
        """Make an environment with the same arguments, except for `changes`.

        Those that are no arguments of this constructor go to the wrapped environment.
        """
        clip_length = changes.pop("clip_length", self.clip_length)
        frame_size = changes.pop("frame_size", self.frame_size)
        wrapped = self.env.like(num_envs, **changes)
        return type(self)(wrapped, clip_length=clip_length, frame_size=frame_size)

    def shard_arguments(self, num_envs: int, first_env: int) -> ConstructorArguments:
        env = Recipe(type(self.env), self.env.shard_arguments(num_envs, first_env))
        return {"env": env, "clip_length": self.clip_length, "frame_size": self.frame_size}

    def metrics(self) -> Mapping[str, Tensor]:
        return self._view.metrics()

    def pictures(self, index: Sequence[int], width: int, height: int) -> Tensor | np.ndarray:
        return self._view.pictures(index, width, height)

    @property
    def overlays(self) -> Mapping[str, Overlay]:
        """Overlay of the policy's clip, and those of the wrapped environment."""
        others = self._view.overlays if isinstance(self._view, Overlaid) else {}
        return {"seen": Overlay("What the policy sees", "env"), **others}

    def overlay(self, name: str, index: int, width: int, height: int, decision: Decision | None) -> Tensor | np.ndarray:
        """Draw the clip of one environment, or an overlay of that environment.

        Returns:
            uint8 (H, W, 3), RGB.
        """
        if name == "seen":
            return clips.sheet(self._clip[index], width, height)
        return cast(Overlaid, self._view).overlay(name, index, width, height, decision)

    def restart_episodes(self) -> None:
        self.env.seed = self.seed
        self.env.restart_episodes()

    # -- steps ------------------------------------------------------------------------------------------------------

    def _draw(self) -> Tensor:
        height, width = self.frame_size
        # All rows as a tensor on the device, not as numbers: a list would have to be copied there at every step.
        rows = cast(Sequence[int], self._rows)
        given = self._view.pictures(rows, width, height)
        drawn = torch.as_tensor(given, device=self.device)
        shape = self.num_envs, height, width, 3
        where = type(self.env).__name__
        pictures = arguments.tensor(where, "pictures", drawn, torch.uint8, shape)
        return pictures.permute(0, 3, 1, 2)

    def _observe_reset(self, mask: Tensor) -> dict[str, Tensor]:
        observed = self.env._observe_reset(mask)
        self._clip = where_rows(mask, clips.first_clip(self._draw(), self.clip_length), self._clip)
        self._num_shown = self._num_shown + mask
        self._age = self._age * ~mask
        return observed | clips.clip_observations(self._clip, self._num_shown, self._age)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        after = self.env._step(tensordict)
        self._clip = clips.next_clip(self._clip, self._draw())
        self._num_shown = self._num_shown + 1
        self._age = self._age + 1
        return after.update(clips.clip_observations(self._clip, self._num_shown, self._age))

    def observation(self, index: int) -> TensorDictBase:
        """Return the current observation of one environment, batch size (1,)."""
        seen = clips.clip_observations(self._clip, self._num_shown, self._age)
        rows = TensorDict(seen, [self.num_envs], device=self.device)
        return cast(Overlaid, self._view).observation(index).update(rows[index : index + 1])

    # -- state ------------------------------------------------------------------------------------------------------

    def env_state(self) -> dict[str, Tensor]:
        return self.env.env_state() | {"clip": self._clip, "shown": self._num_shown, "age": self._age}

    def set_env_state(self, state: dict[str, Tensor]) -> None:
        self.env.seed = self.seed
        self.env.set_env_state(_without_clips(state))
        self._clip = state["clip"]
        self._num_shown = state["shown"]
        self._age = state["age"]

    def _state_bounds(self) -> dict[str, Bounds]:
        count = Bounds(0, 2**62)
        return self.env._state_bounds() | {"shown": count, "age": count}

    def _state_conflict(self, state: dict[str, Tensor]) -> Conflict | None:
        return self.env._state_conflict(_without_clips(state))

    def _derived_state(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return self.env._derived_state(_without_clips(state))


def _without_clips(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name not in _OWN}
