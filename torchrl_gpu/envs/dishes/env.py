"""`DishwashingEnv`: batched shifts at a sink."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.data import Bounded, TensorSpec, Unbounded

from torchrl_gpu.envs import clips
from torchrl_gpu.envs.base import NumEnvs
from torchrl_gpu.envs.dishes import dynamics
from torchrl_gpu.envs.dishes.camera import VISIBLE, Camera
from torchrl_gpu.envs.dishes.economics import MOST_BROKEN, Economics, Optimum, stationary_optimum
from torchrl_gpu.envs.episodic import Advanced, EpisodicEnv
from torchrl_gpu.envs.state_validation import Bounds
from torchrl_gpu.envs.viewable import Decision, Overlay
from torchrl_gpu.system import arguments

# Most that is observed of the demand, in multiples of the usual one.
_MOST_DEMAND = 4.0

# Most that a phase turns from slice to slice: less than half a turn, so that its direction is visible.
_TURN = 0.45

_PHASES = ("belt", "arm", "shake", "foam")


class DishwashingEnv(EpisodicEnv):
    """Shifts at a sink, in which each step is a minute of washing.

    Speed washes more dishes, but costs energy, tires and breaks dishes. Care keeps dishes whole, but costs attention
    and tires. Demand swings, dishes pile up, and the sponge wears. The reward is what a slice of a minute earns, EUR:
    clean dishes, minus damage, energy, attention, wage and new sponges. See `Economics` and
    `docs/environments/dishwashing.md`.

    The action is (speed, care), (N, 2) float32 in [0, 1]. Observations depend on `observe_as`:

    - "state": `observation` (N, 6) float32: stack over its limit, fatigue, wear, demand over 4 times the usual one (at
      most 1), share of the shift that is over, and whether a dish broke in the last slice;
    - "video": `clip` (N, T, 3, H, W) uint8, the pictures of the last T slices, the oldest first; before there are T,
      the first is repeated. Everything except stack and time must be inferred from motion. `frame` and `frame_at` are
      for replay, see `clip_specs`.

    Episodes last `max_steps` slices. Their outcomes are `profit`, the sum of rewards in EUR, and the numbers of `clean`
    and `broken` dishes.

    Args:
        num_envs: N; in the config of a run also "auto", see `docs/training.md`.
        observe_as: Kind of observations.
        clip_length: T.
        frame_size: H and W, pixels, 16 or more each.
        stationary: Whether conditions are constant: always enough dishes, and neither stack, fatigue nor wear. The best
            policy is known then, see `optimum`.
        economics: Prices and rates.
        max_steps: Slices of a shift.
        device, seed, first_env: As in `EpisodicEnv`.
    """

    def __init__(
        self,
        num_envs: NumEnvs = 64,
        *,
        observe_as: Literal["state", "video"] = "state",
        clip_length: int = 4,
        frame_size: Sequence[int] = (64, 64),
        stationary: bool = False,
        economics: Economics = Economics(),
        max_steps: int = 120,
        device: str | torch.device = "auto",
        seed: int | None = None,
        first_env: int = 0,
    ) -> None:
        where = type(self).__name__
        self.observe_as = arguments.choice(where, "observe_as", observe_as, ("state", "video"))
        self.clip_length, self.frame_size = clips.clip_size(where, clip_length, frame_size, 16)
        self.stationary = arguments.flag(where, "stationary", stationary)
        self.economics = economics
        action = Bounded(0.0, 1.0, (2,), dtype=torch.float32)
        outcomes = {name: Unbounded((1,), dtype=torch.float32) for name in ("profit", "clean", "broken")}
        super().__init__(
            num_envs,
            observations=self._observations(),
            action=action,
            outcomes=outcomes,
            max_steps=max_steps,
            device=device,
            seed=seed,
            first_env=first_env,
        )

    def _observations(self) -> dict[str, TensorSpec]:
        if self.observe_as == "state":
            return {"observation": Bounded(0.0, 1.0, (6,), dtype=torch.float32)}
        height, width = self.frame_size
        return clips.clip_specs(self.clip_length, height, width)

    @property
    def stored_keys(self) -> list[str]:
        """Observation keys that replay must store: for clips, each frame once."""
        return list(clips.STORED_KEYS) if self.observe_as == "video" else super().stored_keys

    def restore(self, tensordict: TensorDictBase, replay: object = None) -> TensorDictBase:
        if self.observe_as == "state":
            return super().restore(tensordict, replay)
        return clips.restore_clips(f"{type(self).__name__}.restore", tensordict, replay, self.clip_length)

    @property
    def optimum(self) -> Optimum:
        """Optimal speed and care of a stationary shift, and the reward of a slice."""
        return stationary_optimum(self.economics)

    def begin(self) -> dict[str, Tensor]:
        """Return the state of a new shift.

        It begins rested, with a new sponge and up to a quarter of a full stack.
        """
        drawn = self.uniform(8)
        zero = torch.zeros_like(drawn[:, 0])
        if self.stationary:
            stack = zero
            trend = zero.clone()
        else:
            stack = drawn[:, 0] * (self.economics.stack_limit / 4)
            trend = self.economics.demand_swing * dynamics.normal(drawn[:, 1:4])
        state = {
            "stack": stack,
            "fatigue": zero.clone(),
            "wear": zero.clone(),
            "trend": trend,
            "broken": zero.clone(),
            "clean": zero.clone(),
            "broken_so_far": zero.clone(),
            "profit": zero.clone(),
        }
        for i, phase in enumerate(_PHASES):
            state[phase] = drawn[:, 4 + i]
        if self.observe_as == "video":
            picture = self._camera.draw(state, zero)
            state["clip"] = clips.first_clip(picture, self.clip_length)
            # How many pictures were shown before is not reset with the episode: replay numbers frames by it.
            shown = self._state.get("shown")
            state["shown"] = torch.zeros_like(self._env_index) if shown is None else shown + 1
        return state

    def advance(self, state: dict[str, Tensor], action: Tensor) -> Advanced:
        # NaN of a policy that diverged is no work at all.
        action = action.nan_to_num(0.0).clamp(0.0, 1.0)
        drawn = self.uniform(4)
        prices = self.economics
        weather = dynamics.normal(drawn[:, 1:])
        chance = drawn[:, 0]
        worked = dynamics.work(prices, state, action, chance, weather, stationary=self.stationary)
        # The belt shows the demand as a share of what the stack can take.
        coming = dynamics.demand_of(prices, worked.trend) / prices.stack_limit
        after = {
            "stack": worked.stack,
            "fatigue": worked.fatigue,
            "wear": worked.wear,
            "trend": worked.trend,
            "broken": worked.broken,
        }
        after["clean"] = state["clean"] + worked.washed - worked.broken
        after["broken_so_far"] = state["broken_so_far"] + worked.broken
        after["profit"] = state["profit"] + worked.reward
        after["belt"] = _turn(state["belt"], coming)
        after["arm"] = _turn(state["arm"], action[:, 0])
        # The arm trembles equally fast at any time: fatigue shows in how wide it does.
        after["shake"] = _turn(state["shake"], torch.full_like(coming, 0.7))
        after["foam"] = _turn(state["foam"], 1 - worked.wear)
        if self.observe_as == "video":
            picture = self._camera.draw(after, self._clock)
            after["clip"] = clips.next_clip(state["clip"], picture)
            after["shown"] = state["shown"] + 1
        outcomes = {"profit": after["profit"], "clean": after["clean"], "broken": after["broken_so_far"]}
        # A shift ends by the clock alone.
        never = torch.zeros_like(coming, dtype=torch.bool)
        return Advanced(after, worked.reward, never, outcomes)

    def observe(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return observations as numbers or clips, by `observe_as`."""
        if self.observe_as == "video":
            return clips.clip_observations(state["clip"], state["shown"], self._state["step_count"])
        prices = self.economics
        most_demand = _MOST_DEMAND * prices.demand
        demand = dynamics.demand_of(prices, state["trend"]) / most_demand
        has_broken = (state["broken"] > 0).float()
        stack = state["stack"] / prices.stack_limit
        seen = [stack, state["fatigue"], state["wear"], demand, self._clock, has_broken]
        return {"observation": torch.stack(seen, 1).clamp(0.0, 1.0)}

    def metrics(self) -> dict[str, Tensor]:
        """Return counts, return, dishes, fatigue and wear of the running shifts."""
        counts = {"waiting": "stack", "clean": "clean", "broken": "broken_so_far", "fatigue": "fatigue", "wear": "wear"}
        entries = self.entries
        return super().metrics() | {name: entries[key] for name, key in counts.items()}

    def pictures(self, index: Sequence[int] | Tensor, width: int, height: int) -> Tensor:
        """Draw some of the shifts, uint8 (B, H, W, 3), RGB."""
        if isinstance(index, Tensor):
            rows = index
        else:
            rows = torch.tensor(list(index), device=self.device, dtype=torch.int64)
        camera = Camera(height, width, self.economics.stack_limit, self.device)
        seen = {name: self.entries[name][rows] for name in VISIBLE}
        drawn = camera.draw(seen, self._clock[rows])
        return drawn.permute(0, 2, 3, 1).contiguous()

    @property
    def overlays(self) -> Mapping[str, Overlay]:
        """Overlay of the policy's clip, if it observes clips."""
        return {"seen": Overlay("What the policy sees", "env")} if self.observe_as == "video" else {}

    def overlay(self, name: str, index: int, width: int, height: int, decision: Decision | None) -> Tensor:
        """Draw the frames of one shift's clip in rows, uint8 (H, W, 3), RGB."""
        return clips.sheet(self.entries["clip"][index], width, height)

    # Made at the first use, since the base class decides on the device.
    @cached_property
    def _camera(self) -> Camera:
        height, width = self.frame_size
        return Camera(height, width, self.economics.stack_limit, self.device)

    @property
    def _clock(self) -> Tensor:
        """Share of the shift that is over, (N,)."""
        return self._state["step_count"].float() / self.max_steps

    def _state_bounds(self) -> dict[str, Bounds]:
        most = 1e9
        memory = self.economics.demand_memory
        times = 1.0 if memory == 1 else math.sqrt((1 + memory) / (1 - memory))
        # `dynamics.normal` gives three deviations at most. The trend remembers a sum of them.
        reach = 1.001 * 3 * times * self.economics.demand_swing
        # Steps after the end of an episode are counted, too.
        bounds = {name: Bounds(0, 2**62) for name in ("step_count", "episode", "shown")}
        bounds["stack"] = Bounds(0.0, self.economics.stack_limit)
        bounds["trend"] = Bounds(-reach, reach)
        bounds["broken"] = Bounds(0.0, MOST_BROKEN)
        # A Poisson number of broken dishes may exceed those that are washed.
        bounds["clean"] = Bounds(-most, most)
        bounds["broken_so_far"] = Bounds(0.0, most)
        for name in ("fatigue", "wear", *_PHASES):
            bounds[name] = Bounds(0.0, 1.0)
        return bounds


def _turn(phase: Tensor, share: Tensor) -> Tensor:
    """Move a phase (N,), in turns, by a share of `_TURN`."""
    return (phase + _TURN * share.clamp(0.0, 1.0)).remainder(1.0)
