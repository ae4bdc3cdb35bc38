"""Steps of an environment and its policy, each one compiled function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, final

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from torch import Tensor, nn
from torchrl.envs.utils import exploration_type

from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.generators import generators_kept
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system.sections import section
from torchrl_gpu.system.tracing import CompiledFunction
from torchrl_gpu.training.collect.graphed import (
    MOST_OTHER,
    casts,
    copies,
    play_steps,
    rows_that_differ,
    say_plain,
    step_once,
    uncached_casts,
)

_TRIED = 3  # steps that are compared: what was not recorded as an input shows from the second on


@final
class CompiledSteps:
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
        self.env, self.policy = env, policy
        self._kept = list(keys), tuple(decisions), outcomes
        self._shown_keys = [*env.full_observation_spec.keys(True, True), *env.full_done_spec.keys(True, True)]
        self._weights = [*policy.parameters(), *policy.buffers()] if isinstance(policy, nn.Module) else []
        self._function: CompiledFunction | None = None
        self._fixed: tuple[Any, ...] = ()
        self._gives_up = False
        self._kept_keys: list[NestedKey] = []
        self._empty: TensorDictBase = TensorDict()  # that holds what is kept of a step, (N,)
        self._names: list[str] = []  # of the state
        self._groups: TensorDictBase = TensorDict()  # that hold what is shown, empty

    @property
    def compiled(self) -> bool:
        """True once the self-test has found that compiled steps give the same."""
        return self._function is not None

    @torch.no_grad()
    def __call__(self, current: TensorDictBase, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """As `play_steps`."""
        fixed = self.env.seed, exploration_type(), getattr(self.policy, "training", None), casts(self.env.device)
        if self._fixed != fixed and not self._gives_up:
            self._function, self._fixed = self._compiled(current), fixed
        if self._function is not None:
            state = self.env._env_state()
            try:
                with section("compiled steps"):
                    played, after = self._play(self._function, steps, [state[name] for name in self._names], current)
                self.env._set_env_state(dict(zip(self._names, after, strict=False)))
                return self._stacked(played), self._showing(after[len(self._names) :])
            except Exception as error:  # of a compiler, as something else has changed; else operators raise it again
                self._give_up(error)
        return play_steps(self.env, self.policy, current, steps, *self._kept)

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

    def _compiled(self, current: TensorDictBase) -> CompiledFunction | None:
        """The compiled step; environment, policy and generator are as if nothing had been played."""
        env, state = self.env, self.env._env_state()
        self._names = list(state)
        self._groups = current.select(*self._shown_keys).empty(recurse=True)
        written = [(value, value.clone()) for value in self._weights]

        def restore() -> None:
            env._set_env_state(copies(state))
            for value, before in written:
                value.copy_(before)

        def step(inputs: list[Tensor]) -> list[Tensor]:
            values = inputs[len(self._weights) :]
            env._set_env_state(dict(zip(self._names, values, strict=False)))
            kept, after = step_once(env, self.policy, self._showing(values[len(self._names) :]), *self._kept)
            self._kept_keys, self._empty = list(kept.keys(True, True)), kept.empty(recurse=True)
            later = env._env_state()
            return [*map(kept.get, self._kept_keys), *map(later.get, self._names), *self._shown(after)]

        try:
            restore()
            start = [*env._env_state().values(), *(value.clone() for value in self._shown(current))]
            with generators_kept(env.device), uncached_casts(env.device):
                function = CompiledFunction("steps", step, [*self._weights, *start])
            restore()
            with generators_kept(env.device):
                plain, _ = play_steps(env, self.policy, current.copy(), _TRIED, *self._kept)
            wanted = [plain[key] for key in self._kept_keys] + list(env._env_state().values())
            restore()
            with generators_kept(env.device):
                played, after = self._play(function, _TRIED, list(env._env_state().values()), current)
            found = [self._stacked(played)[key] for key in self._kept_keys] + after[: len(self._names)]
            self._check(wanted, found)
            return function
        except Exception as error:  # whatever a compiler raises
            self._give_up(error)
            return None
        finally:
            restore()
            env._set_env_state(state)

    def _give_up(self, error: Exception) -> None:
        self._function, self._gives_up = None, True
        say_plain(type(self).__name__, error)

    def _check(self, wanted: list[Tensor], found: list[Tensor]) -> None:
        number = self.env.num_envs
        pairs = [pair for pair in zip(wanted, found, strict=True) if pair[0].ndim and len(pair[0]) == number]
        other = int(torch.stack([rows_that_differ(*pair) for pair in pairs]).any(0).sum())
        if other > MOST_OTHER * number:
            raise RuntimeError(
                "CompiledSteps: want steps that play what operators play one by one; got others in"
                f" {other} of {number} environments"
            )
