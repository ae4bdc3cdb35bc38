"""Transitions from an environment that never stops, and their n-step returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torch import Tensor

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.envs.state_validation import Bounds, Entry, check_entries, entries_of, flat_entries
from torchrl_gpu.envs.workers.pool import WorkerPool
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system.arguments import shown
from torchrl_gpu.system.sections import section
from torchrl_gpu.training.accelerated.functions import GraphedFunction
from torchrl_gpu.training.collect.compiled import CompiledSteps
from torchrl_gpu.training.collect.fused import FusedRollout, WholePlayer
from torchrl_gpu.training.collect.graphed import GraphedRollout
from torchrl_gpu.training.collect.steps import RESULTS, play_steps


class Codec(Protocol):
    """Protocol of codecs: they pack transitions as soon as they are played, before replay keeps them."""

    def packed(self, steps: TensorDictBase) -> TensorDictBase:
        """The same steps (N, S), in order, packed; in place. Those that are packed already stay so."""

    def entries(self, shown: dict[NestedKey, Entry]) -> dict[NestedKey, Entry]:
        """Specs of packed steps, given those of the observations."""


class Rollout:
    """Collector of experience: steps an environment with a policy and continues where it stopped.

    Args:
        env: The environment; restarts its own rows.
        keys: Observations to keep; what the environment can make again is left out.
        n_steps: Rewards of one transition.
        gamma: Discount of a step.
        cuda_graphs: Whether all steps of a call are one replay of a CUDA graph; on a CPU they run one by one.
        decisions: What else to keep of the state acted in, as in `play_steps`.
        store: Packs transitions as soon as they are played; None leaves them as they are.
        group: Where the environment keeps its robots: transitions are then those of one robot each, their entries at
            the root; `decisions` are the robots'.
        written: What those of `decisions` must be that are the policy's own, without batch axes; loading checks them.
        compiled: Whether steps on a CPU are compiled, see `CompiledSteps`; where they are C++ already they stay so.
        player: Native function that plays all steps of a call at once, where it plays this environment and the policy;
            it is asked before the other ways. See `FusedRollout`.
    """

    workers: WorkerPool | None = None
    """Worker processes that step the environment; None for this process."""

    def __init__(
        self,
        env: BatchedEnv,
        keys: Sequence[NestedKey],
        n_steps: int,
        gamma: float,
        cuda_graphs: bool = False,
        decisions: Sequence[str] = ("action",),
        store: Codec | None = None,
        group: tuple[str, ...] = (),
        written: Mapping[str, Entry] | None = None,
        compiled: bool = False,
        player: WholePlayer | None = None,
    ) -> None:
        self._written = dict(written or {})
        self.cuda_graphs, self.store, self.group = cuda_graphs, store, group
        self._graphed: GraphedRollout | None = None
        can_compile = env.device.type == "cpu" and not env.is_native and not env.reads_host
        self.compiled = compiled and can_compile
        self._compiled: CompiledSteps | None = None
        self._player = player
        self._fused: FusedRollout | None = None
        self.env, self.n_steps, self.gamma = env, n_steps, gamma
        own = [(*group, name) for name in RESULTS] if group else []
        results = dict.fromkeys([*RESULTS, *own, *env.outcomes])
        self._kept = list(keys), [unravel_key((*group, name)) for name in decisions], list(results)
        self._complete: Callable[[TensorDictBase], TensorDictBase] = self._completed
        if cuda_graphs:
            self._complete = GraphedFunction(
                "Rollout", self._completed, list, env.device, settings=lambda: self.n_steps
            )
        self.current: TensorDictBase = env.reset()
        self.pending: TensorDictBase | None = None  # (trajectories, n − 1 or fewer), steps whose return is not complete

    @torch.no_grad()
    def collect(self, policy: Policy, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """Plays `steps` steps.

        Returns:
            Transitions ready for replay, packed by `store`, (N·T,), or (N·R·T,) of R robots, once n − 1 steps are
            pending; and the raw steps (N, T) with `next` holding reward, ends, the environment's outcomes and the
            observations kept.
        """
        trajectories, fresh = self.play(policy, steps)
        with section("replay"):
            played = {"kept": self._packed(trajectories)}
            if self.pending is not None:
                played["pending"] = self.pending
            found = self._complete(TensorDict(played))
            self.pending = found["pending"]
            return found["transitions"], fresh

    def _completed(self, played: TensorDictBase) -> TensorDictBase:
        """Transitions whose return is complete, and the steps of those whose return is not."""
        kept, before = played["kept"], played.get("pending", None)
        joined = kept if before is None else torch.cat([before, kept], 1)
        pending = joined[:, max(0, joined.shape[1] - self.n_steps + 1) :]
        transitions = n_step(joined, self.n_steps, self.gamma).flatten()
        return TensorDict({"transitions": transitions, "pending": pending})

    @torch.no_grad()
    def play(self, policy: Policy, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """Plays `steps` steps.

        Returns:
            Steps in order, (N, T), or (N·R, T) of R robots, with `next` holding reward, ends and the observations kept;
            and the raw steps as in `collect`.
        """
        fresh, self.current = self._play(policy, steps)
        trajectories = per_robot(fresh, self.group) if self.group else fresh.copy()
        keys, _, _ = self._kept
        learned_from = trajectories["next"].select(*(_last(key) for key in keys), *RESULTS)
        return trajectories.set("next", learned_from), fresh

    def set_frames(self, frames: int) -> None:
        """Sets the environment's number of steps played, as `BatchedEnv.set_frames`."""
        self.env.set_frames(frames)
        if self.workers is not None:
            self.workers.set_frames(frames)

    def _play(self, policy: Policy, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        if self.workers is not None:
            with self.workers.rollout():
                return play_steps(self.workers, policy, self.current, steps, *self._kept)
        if self._player is not None:
            if self._fused is None or self._fused.policy is not policy:
                self._fused = FusedRollout(self.env, policy, self._player, *self._kept)
            if self._fused.is_open:
                return self._fused(self.current, steps)
        if self.compiled:
            if self._compiled is None or self._compiled.policy is not policy:
                self._compiled = CompiledSteps(self.env, policy, *self._kept)
            return self._compiled(self.current, steps)
        if not self.cuda_graphs:
            return play_steps(self.env, policy, self.current, steps, *self._kept)
        if self._graphed is None or (self._graphed.policy, self._graphed.steps) != (policy, steps):
            self._graphed = GraphedRollout(self.env, policy, steps, *self._kept)
        return self._graphed(self.current)

    def _packed(self, steps: TensorDictBase) -> TensorDictBase:
        return steps if self.store is None else self.store.packed(steps.copy())

    def state_dict(self) -> dict[str, object]:
        pending = None if self.pending is None else self.pending.to_dict()
        current = self.current.apply(Tensor.clone)  # TensorDict.clone adds 0, which turns -0 into 0
        return {"env": self.env.state_dict(), "current": current.to_dict(), "pending": pending}

    def load_state_dict(self, state: dict) -> None:
        where, wanted = "Rollout.load_state_dict", {"env", "current", "pending"}
        if not isinstance(state, Mapping) or not wanted <= set(state):
            raise ValueError(f"{where}: want the entries {sorted(wanted)}; got {shown(state)}")
        current = self._checked_current(f"{where}: current", state["current"])
        pending = self._checked_pending(f"{where}: pending", state["pending"])
        self.env.load_state_dict(state["env"])
        self.current, self.pending = current, pending

    def transition_entries(self, packed: bool = True) -> dict[NestedKey, Entry]:
        """Specs of a transition's keys, without batch axes; heightmaps as `store` packs them, or as they are shown."""
        specs = (self.env.full_observation_spec, self.env.full_reward_spec, self.env.full_done_spec)
        known = {key: entry for spec in specs for key, entry in self._own_entries(spec).items()}
        known |= {
            key: entry._replace(bounds=Bounds()) if entry.dtype.is_floating_point else entry
            for key, entry in self._own_entries(self.env.full_action_spec).items()
        }
        known |= self._written
        if packed and self.store is not None:
            known = self.store.entries(known)
        keys, decisions, _ = ({_last(key) for key in names} for names in self._kept)
        there = {key: known[key] for key in (*keys, *decisions) if key in known}
        later = {("next", key): known[key] for key in (*keys, *RESULTS) if key in known and key not in self._written}
        return there | later

    def _own_entries(self, spec: Any) -> dict[str, Entry]:
        """Specs of the environments, or of their robots where there is a group, by the last part of their keys."""
        depth = len(self.group)
        found = {key if isinstance(key, tuple) else (key,): e for key, e in entries_of(spec, 1 + bool(depth)).items()}
        return {key[-1]: entry for key, entry in found.items() if key[:-1] == self.group}

    def _checked_current(self, where: str, given: Any) -> TensorDictBase:
        wanted = entries_of(self.env.full_observation_spec) | entries_of(self.env.full_done_spec)
        found = check_entries(where, given, wanted, more=True)
        current = self.current.empty(recurse=True)  # a group keeps its batch size
        for key, value in found.items():
            current.set(key, value.to(self.env.device))
        for key, value in flat_entries(given).items():  # what a policy wrote, which it will write again
            leading = tuple(current.get(key[:-1]).shape) if isinstance(key, tuple) else tuple(current.shape)
            if key not in found and isinstance(value, Tensor) and tuple(value.shape[: len(leading)]) == leading:
                current.set(key, value.to(self.env.device))
        return current

    def _checked_pending(self, where: str, given: Any) -> TensorDictBase | None:
        if given is None:
            return None
        flat = flat_entries(given) if isinstance(given, Mapping) else {}
        action = flat.get("action")
        size = tuple(action.shape[:2]) if isinstance(action, Tensor) else ()
        if len(size) != 2 or size[0] != self._num_trajectories or size[1] >= max(2, self.n_steps):
            wanted = f"actions of ({self._num_trajectories}, fewer than {self.n_steps}) transitions"
            raise ValueError(f"{where}: want {wanted}; got {shown(action)}")
        heights = flat.get("box_heightmap", flat.get(("next", "box_heightmap")))
        packed = not (isinstance(heights, Tensor) and heights.is_floating_point())
        check_entries(where, given, {k: e.behind(*size) for k, e in self.transition_entries(packed).items()}, more=True)
        try:
            return self._packed(TensorDict(given, batch_size=size).to(self.env.device))
        except RuntimeError as error:
            raise ValueError(f"{where}: want entries of {size} transitions; got others too") from error

    @property
    def _num_trajectories(self) -> int:
        key = (*self.group, "action") if self.group else "action"
        return self.env.full_action_spec[key].shape[: 1 + bool(self.group)].numel()


def _last(key: NestedKey) -> str:
    return key if isinstance(key, str) else key[-1]


def per_robot(steps: TensorDictBase, group: tuple[str, ...]) -> TensorDictBase:
    """Steps of every robot by itself, their keys at the root: (N·R, T), of (N, T) with a `group` of R robots."""
    robots = steps[group].copy()
    robots["next"] = steps[("next", *group)]
    return robots.transpose(1, 2).flatten(0, 1)


def n_step(steps: TensorDictBase, n: int, gamma: float) -> TensorDictBase:
    """n-step transitions (N, T) of consecutive steps (N, T + n − 1); none crosses the end of an episode. Sutton 1988.

    The reward of the transition at t is the sum of gamma^k · r[t+k] over k < m, and its `next` that of step t + m − 1,
    with m = n or the step at which the episode ends, whichever is first; `steps_to_next_obs` (N, T, 1) int64 is m.
    """
    length = max(0, steps.shape[1] - n + 1)
    reward, done = steps["next", "reward"], steps["next", "done"]
    alive = torch.ones_like(done[:, :length])
    total = torch.zeros_like(reward[:, :length])
    count = torch.zeros_like(alive, dtype=torch.int64)
    for k in range(n):
        total = total + torch.where(alive, gamma**k * reward[:, k : k + length], 0.0)  # 0 times infinity is NaN
        count = count + alive
        alive = alive & ~done[:, k : k + length]
    last = torch.arange(length, device=reward.device, dtype=torch.int64) + count[..., 0] - 1  # (N, T)
    out = steps[:, :length].exclude("next")
    env = torch.arange(steps.shape[0], device=last.device, dtype=torch.int64)[:, None].expand_as(last)
    following = steps["next"].apply(lambda value: value[env, last], batch_size=last.shape)
    out["next"] = following.set("reward", total)
    return out.set("steps_to_next_obs", count)


class EpisodeMeter:
    """Number of finished episodes and mean outcomes of the recent ones; on the device, unread.

    `names` are outcomes given when an episode ends; `memory` is the share of the old mean that stays after a batch of
    steps in which episodes finished.
    """

    def __init__(self, device: torch.device, names: Sequence[str] = ("utilization",), memory: float = 0.9) -> None:
        self.memory = memory
        self.finished = torch.zeros((), dtype=torch.int64, device=device)
        self.recent = {name: torch.zeros((), device=device, dtype=torch.float32) for name in names}

    @property
    def outcomes(self) -> dict[str, Tensor]:
        """`recent`, with NaN in place of the zeros that it begins with."""
        return {name: torch.where(self.finished > 0, value, torch.nan) for name, value in self.recent.items()}

    def count(self, steps: Mapping[str, Tensor] | TensorDictBase) -> None:
        """Takes steps (…,) with `done` (…, 1) and each of the names (…, 1), which at the end of an episode is its."""
        done = steps["done"]
        number = done.sum()
        any_ended, at_least_one = number > 0, number.clamp_min(1)
        memory = torch.where(self.finished > 0, self.memory, 0.0)
        rest = 1 - memory
        for name, recent in self.recent.items():
            mean = torch.where(done, steps[name].float(), 0.0).sum() / at_least_one
            self.recent[name] = torch.where(any_ended, memory * recent + rest * mean, recent)
        self.finished = self.finished + number

    def state_dict(self) -> dict[str, Tensor]:
        return {"finished": self.finished, **{f"recent_{name}": value for name, value in self.recent.items()}}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        device = self.finished.device
        entries: dict[NestedKey, Entry] = {f"recent_{name}": Entry(torch.float32, ()) for name in self.recent}
        entries["finished"] = Entry(torch.int64, (), Bounds(0, 2**62))
        check_entries("EpisodeMeter.load_state_dict", state, entries, more=True)
        self.finished = state["finished"].to(device)
        self.recent = {name: state[f"recent_{name}"].to(device) for name in self.recent}
