"""Steps of an environment and its policy, each one compiled function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast, final

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.envs.utils import exploration_type

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.generators import generators_kept
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system.sections import section
from torchrl_gpu.system.tracing import CompiledFunction
from torchrl_gpu.training.accelerated.machine import Accelerator, casts, rows_that_differ, uncached_casts
from torchrl_gpu.training.collect.graphed import copies
from torchrl_gpu.training.collect.steps import MOST_OTHER, play_steps, step_once

_TRIED = 3  # steps that are compared: what was not recorded as an input shows from the second on


class Before(NamedTuple):
    """State of an environment as it was, and copies of it and of the policy's weights."""

    state: dict[str, Tensor]
    state_copies: dict[str, Tensor]
    weights: list[Tensor]


@final
class CompiledSteps(Accelerator[CompiledFunction]):
    """`play_steps` with every step of policy and environment as one compiled function of tensors.

    Weights and buffers of the policy and the environment's state are inputs of the function, random numbers come from
    torch's generator. It is compiled at the first call, and again where the seed, the exploration type, the policy's
    mode or autocast has changed. The first three steps are played both ways: where more than a tenth of the rows differ
    by more than rounding, or nothing compiles, a warning says so and steps run operator by operator from then on.

    Args:
        env, policy: As for a CUDA graph: neither reads the device back, and what changes from step to step is in the
            environment's state and the policy's weights and buffers.
        keys, decisions, outcomes: As in `play_steps`.
    """

    def __init__(
        self,
        env: BatchedEnv,
        policy: Policy,
        keys: Sequence[NestedKey],
        decisions: Sequence[NestedKey] = ("action",),
        outcomes: Sequence[NestedKey] | None = None,
    ) -> None:
        super().__init__(env.device)
        self.env, self.policy = env, policy
        self._kept = list(keys), tuple(decisions), outcomes
        self._shown_keys = [*env.full_observation_spec.keys(True, True), *env.full_done_spec.keys(True, True)]
        self._weights = [*policy.parameters(), *policy.buffers()] if isinstance(policy, nn.Module) else []
        self._kept_keys: list[NestedKey] = []
        self._empty: TensorDictBase = TensorDict()  # that holds what is kept of a step, (N,)
        self._names: list[str] = []  # of the state
        self._groups: TensorDictBase = TensorDict()  # that hold what is shown, empty

    @torch.no_grad()
    def __call__(self, current: TensorDictBase, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """As `play_steps`."""
        function = self.form_for(
            (self.env.seed, exploration_type(), getattr(self.policy, "training", None), casts(self.device)), current
        )
        if function is not None:
            try:
                return self._play_compiled(function, current, steps)
            except Exception as error:  # of a compiler, as something else has changed; else operators raise it again
                self.give_up(error)
        return play_steps(self.env, self.policy, current, steps, *self._kept)

    def _play_compiled(
        self, function: CompiledFunction, current: TensorDictBase, steps: int
    ) -> tuple[TensorDictBase, TensorDictBase]:
        state = self.env._env_state()
        with section("compiled steps"):
            played, after = self._play(function, steps, [state[name] for name in self._names], current)
        self.env._set_env_state(dict(zip(self._names, after, strict=False)))
        return self._stacked(played), self._showing(after[len(self._names) :])

    def _play(
        self, function: CompiledFunction, steps: int, state: list[Tensor], current: TensorDictBase
    ) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Kept tensors of each step, and state and shown tensors behind the last."""
        values, size = [*state, *self._shown(current)], len(self._kept_keys)
        played = []
        for _ in range(steps):
            found = function([*self._weights, *values])
            played.append(found[:size])
            values = found[size:]
        return played, values

    def _shown(self, current: TensorDictBase) -> list[Tensor]:
        return [current.get(key) for key in self._shown_keys]

    def _showing(self, values: Sequence[Tensor]) -> TensorDictBase:
        out = self._groups.copy()
        for key, value in zip(self._shown_keys, values, strict=True):
            out.set(key, value)
        return out

    def _stacked(self, played: list[list[Tensor]]) -> TensorDictBase:
        steps: TensorDictBase = cast("Any", torch.stack)([self._empty] * len(played), 1)
        for key, values in zip(self._kept_keys, zip(*played, strict=True), strict=True):
            steps.set(key, torch.stack(values, 1))
        return steps

    # -- the machine's methods --

    def _saved(self) -> Before:
        state = self.env._env_state()
        return Before(state, copies(state), [value.clone() for value in self._weights])

    def _restore(self, saved: Before) -> None:
        for name, value in saved.state.items():
            value.copy_(saved.state_copies[name])
        self.env._set_env_state(saved.state)
        for value, before in zip(self._weights, saved.weights, strict=True):
            value.copy_(before)

    def _made(self, data: TensorDictBase) -> CompiledFunction:
        env = self.env
        state = env._env_state()
        self._names = list(state)
        self._groups = data.select(*self._shown_keys).empty(recurse=True)

        def step(inputs: list[Tensor]) -> list[Tensor]:
            values = inputs[len(self._weights) :]
            env._set_env_state(dict(zip(self._names, values, strict=False)))
            kept, after = step_once(env, self.policy, self._showing(values[len(self._names) :]), *self._kept)
            self._kept_keys, self._empty = list(kept.keys(True, True)), kept.empty(recurse=True)
            later = env._env_state()
            return [*map(kept.get, self._kept_keys), *map(later.get, self._names), *self._shown(after)]

        start = [*copies(state).values(), *(value.clone() for value in self._shown(data))]
        with generators_kept(env.device), uncached_casts(env.device):
            return CompiledFunction("steps", step, [*self._weights, *start])

    def _tried(self, form: CompiledFunction | None, data: TensorDictBase) -> list[Tensor]:
        """What is kept of some steps, and the state behind them."""
        state = copies(self.env._env_state())
        if form is not None:
            steps, after = self._play(form, _TRIED, list(state.values()), data)
            played = self._stacked(steps)
            return [*map(played.get, self._kept_keys), *after[: len(self._names)]]
        self.env._set_env_state(state)
        played, _ = play_steps(self.env, self.policy, data.copy(), _TRIED, *self._kept)
        return [*map(played.get, self._kept_keys), *self.env._env_state().values()]

    def _compare(self, plain: list[Tensor], found: list[Tensor]) -> None:
        number = self.env.num_envs
        pairs = [pair for pair in zip(plain, found, strict=True) if pair[0].ndim and len(pair[0]) == number]
        other = int(torch.stack([rows_that_differ(*pair) for pair in pairs]).any(0).sum())
        if other > MOST_OTHER * number:
            raise RuntimeError(
                "CompiledSteps: want steps that play what operators play one by one; got others in"
                f" {other} of {number} environments"
            )
