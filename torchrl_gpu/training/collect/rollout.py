"""Transitions from an environment that never stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase, unravel_key
from torch import Tensor
from torchrl.data import Composite

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
from torchrl_gpu.training.collect.returns import n_step, per_robot
from torchrl_gpu.training.collect.steps import RESULTS, play_steps


class Codec(Protocol):
    """Packs transitions as soon as they are played, before replay keeps them."""

    def packed(self, steps: TensorDictBase) -> TensorDictBase:
        """Pack steps (N, S) in order, in place, but those that are packed."""

    def entries(self, shown: dict[NestedKey, Entry]) -> dict[NestedKey, Entry]:
        """Specs of packed steps, given those of the observations."""


class Rollout:
    """Collector of experience, which continues where it stopped.

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
    """Worker processes that step the environment, or None for this process."""

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
        self.cuda_graphs = cuda_graphs
        self.store = store
        self.group = group
        self._graphed: GraphedRollout | None = None
        can_compile = env.device.type == "cpu" and not env.is_native and not env.reads_host
        self.compiled = compiled and can_compile
        self._compiled: CompiledSteps | None = None
        self._player = player
        self._fused: FusedRollout | None = None
        self.env = env
        self.n_steps = n_steps
        self.gamma = gamma
        own = [(*group, name) for name in RESULTS] if group else []
        results = dict.fromkeys([*RESULTS, *own, *env.outcomes])
        decided = [unravel_key((*group, name)) for name in decisions]
        self._kept = list(keys), decided, list(results)
        self._complete: Callable[[TensorDictBase], TensorDictBase] = self._completed
        if cuda_graphs:
            self._complete = GraphedFunction(
                "Rollout", self._completed, list, env.device, settings=lambda: self.n_steps
            )
        self.current: TensorDictBase = env.reset()
        # Steps (trajectories, n − 1 or fewer) whose return is not complete.
        self.pending: TensorDictBase | None = None

    @torch.no_grad()
    def collect(self, policy: Policy, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """Play `steps` steps.

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

    # A return needs the n − 1 steps that follow. To cut returns at the end of a call would be simpler, and would make
    # transitions depend on how long a rollout is. So the last n − 1 steps of a call wait for the next one, also across
    # a checkpoint.
    def _completed(self, played: TensorDictBase) -> TensorDictBase:
        """Transitions whose return is complete, and steps whose return is not."""
        kept = played["kept"]
        before = played.get("pending", None)
        joined = kept if before is None else torch.cat([before, kept], 1)
        pending = joined[:, max(0, joined.shape[1] - self.n_steps + 1) :]
        transitions = n_step(joined, self.n_steps, self.gamma).flatten()
        return TensorDict({"transitions": transitions, "pending": pending})

    @torch.no_grad()
    def play(self, policy: Policy, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """Play `steps` steps.

        Returns:
            Steps in order, (N, T), or (N·R, T) of R robots, with `next` holding reward, ends and the observations kept;
            and the raw steps as in `collect`.
        """
        fresh, self.current = self._play(policy, steps)
        trajectories = per_robot(fresh, self.group) if self.group else fresh.copy()
        keys, _, _ = self._kept
        names = [_last(key) for key in keys]
        learned_from = trajectories["next"].select(*names, *RESULTS)
        return trajectories.set("next", learned_from), fresh

    def set_frames(self, frames: int) -> None:
        """Set the environment's number of steps played, as `BatchedEnv.set_frames`."""
        self.env.set_frames(frames)
        if self.workers is not None:
            self.workers.set_frames(frames)

    # From the fastest way to the plainest. Workers come first, since they step environments that no graph, compiler or
    # native function of this process could reach.
    def _play(self, policy: Policy, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """Play in the fastest way that there is for this environment and policy."""
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
        # TensorDict.clone adds 0, which turns -0 into 0.
        current = self.current.apply(Tensor.clone)
        return {"env": self.env.state_dict(), "current": current.to_dict(), "pending": pending}

    def load_state_dict(self, state: object) -> None:
        where = "Rollout.load_state_dict"
        wanted = {"env", "current", "pending"}
        if not isinstance(state, Mapping) or not wanted <= set(state):
            raise ValueError(f"{where}: the state must have the entries {sorted(wanted)}, and is {shown(state)}")
        current = self._checked_current(f"{where}: current", state["current"])
        pending = self._checked_pending(f"{where}: pending", state["pending"])
        self.env.load_state_dict(state["env"])
        self.current = current
        self.pending = pending

    def transition_entries(self, packed: bool = True) -> dict[NestedKey, Entry]:
        """Specs of a transition's keys, without batch axes.

        Heightmaps are as `store` packs them, or with `packed` False as they are shown.
        """
        known: dict[NestedKey, Entry] = {}
        for spec in (self.env.full_observation_spec, self.env.full_reward_spec, self.env.full_done_spec):
            known |= self._own_entries(spec)
        for key, entry in self._own_entries(self.env.full_action_spec).items():
            # A policy may write continuous actions beyond the bounds, which the environment clips.
            if entry.dtype.is_floating_point:
                entry = entry._replace(bounds=Bounds())
            known[key] = entry
        known |= self._written
        if packed and self.store is not None:
            known = self.store.entries(known)
        kept_keys, kept_decisions, _ = self._kept
        keys = {_last(key) for key in kept_keys}
        decisions = {_last(key) for key in kept_decisions}
        entries: dict[NestedKey, Entry] = {key: known[key] for key in (*keys, *decisions) if key in known}
        for key in (*keys, *RESULTS):
            if key in known and key not in self._written:
                entries["next", str(key)] = known[key]
        return entries

    def _own_entries(self, spec: Composite) -> dict[str, Entry]:
        """Specs by the last part of their keys.

        They are the environments', or their robots' where there is a group.
        """
        entries = {}
        for key, entry in entries_of(spec, 1 + bool(self.group)).items():
            path = key if isinstance(key, tuple) else (key,)
            if path[:-1] == self.group:
                entries[path[-1]] = entry
        return entries

    def _checked_current(self, where: str, given: object) -> TensorDictBase:
        wanted = entries_of(self.env.full_observation_spec) | entries_of(self.env.full_done_spec)
        found = check_entries(where, given, wanted, more=True)
        # A group keeps its batch size.
        current = self.current.empty(recurse=True)
        for key, value in found.items():
            current.set(key, value.to(self.env.device))
        # The others are what a policy wrote, which it will write again.
        for key, other in flat_entries(cast("Mapping[object, object]", given)).items():
            leading = tuple(current.get(key[:-1]).shape) if isinstance(key, tuple) else tuple(current.shape)
            if key not in found and isinstance(other, Tensor) and tuple(other.shape[: len(leading)]) == leading:
                current.set(key, other.to(self.env.device))
        return current

    def _checked_pending(self, where: str, given: object) -> TensorDictBase | None:
        if given is None:
            return None
        flat = flat_entries(given) if isinstance(given, Mapping) else {}
        action = flat.get("action")
        size = tuple(action.shape[:2]) if isinstance(action, Tensor) else ()
        if len(size) != 2 or size[0] != self._num_trajectories or size[1] >= max(2, self.n_steps):
            wanted = f"({self._num_trajectories}, fewer than {self.n_steps}) transitions"
            raise ValueError(f"{where}: action must be of {wanted}, and is {shown(action)}")
        heights = flat.get("box_heightmap", flat.get(("next", "box_heightmap")))
        packed = not (isinstance(heights, Tensor) and heights.is_floating_point())
        entries = {key: entry.behind(*size) for key, entry in self.transition_entries(packed).items()}
        check_entries(where, given, entries, more=True)
        try:
            return self._packed(TensorDict(given, batch_size=size).to(self.env.device))
        except RuntimeError as error:
            raise ValueError(f"{where}: some entries are not of {size} transitions") from error

    @property
    def _num_trajectories(self) -> int:
        key = (*self.group, "action") if self.group else "action"
        shape = self.env.full_action_spec[key].shape
        num_axes = 1 + bool(self.group)
        return shape[:num_axes].numel()


def _last(key: NestedKey) -> str:
    return key if isinstance(key, str) else key[-1]
