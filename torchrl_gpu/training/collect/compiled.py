"""Steps of an environment and its policy, each one compiled function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, final

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

# Steps that are compared: what was not recorded as an input shows from the second on.
_TRIED = 3


class Before(NamedTuple):
    """State of an environment, and copies of it and of the policy's weights."""

    state: dict[str, Tensor]
    state_copies: dict[str, Tensor]
    weights: list[Tensor]


@final
class CompiledSteps(Accelerator[CompiledFunction, TensorDictBase, Before, list[Tensor]]):
    """`play_steps` with every step as one compiled function of tensors.

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
        self.env = env
        self.policy = policy
        self._kept = list(keys), tuple(decisions), outcomes
        self._shown_keys = [*env.full_observation_spec.keys(True, True), *env.full_done_spec.keys(True, True)]
        self._weights = [*policy.parameters(), *policy.buffers()] if isinstance(policy, nn.Module) else []
        self._kept_keys: list[NestedKey] = []
        # Holds what is kept of a step, (N,), and is empty.
        self._empty: TensorDictBase = TensorDict()
        # Of the environment's state.
        self._names: list[str] = []
        # Holds what is shown, and is empty.
        self._groups: TensorDictBase = TensorDict()

    @torch.no_grad()
    def __call__(self, current: TensorDictBase, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
        """As `play_steps`."""
        mode = getattr(self.policy, "training", None)
        settings = self.env.seed, exploration_type(), mode, casts(self.device)
        function = self.form_for(settings, current)
        if function is not None:
            # A compiler may fail as something else has changed. What is wrong otherwise the operators raise again.
            try:
                return self._play_compiled(function, current, steps)
            except Exception as error:
                self.give_up(error)
        return play_steps(self.env, self.policy, current, steps, *self._kept)

    def _play_compiled(
        self, function: CompiledFunction, current: TensorDictBase, steps: int
    ) -> tuple[TensorDictBase, TensorDictBase]:
        state = self.env.env_state()
        values = [state[name] for name in self._names]
        with section("compiled steps"):
            played, after = self._play(function, steps, values, current)
        later = dict(zip(self._names, after, strict=False))
        self.env.set_env_state(later)
        shown = after[len(self._names) :]
        return self._stacked(played), self._showing(shown)

    def _play(
        self, function: CompiledFunction, steps: int, state: list[Tensor], current: TensorDictBase
    ) -> tuple[list[list[Tensor]], list[Tensor]]:
        """Kept tensors of each step, and state and shown tensors behind the last."""
        values = [*state, *self._shown(current)]
        size = len(self._kept_keys)
        played = []
        for _ in range(steps):
            # State and weights are arguments of the function: tensors that a compiler finds inside of an object it
            # takes for the same ones at every call.
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
        steps: TensorDictBase = torch.stack([self._empty] * len(played), 1)
        for number, key in enumerate(self._kept_keys):
            values = [step[number] for step in played]
            steps.set(key, torch.stack(values, 1))
        return steps

    # -- the machine's methods --

    def _saved(self) -> Before:
        state = self.env.env_state()
        weights = [value.clone() for value in self._weights]
        return Before(state, copies(state), weights)

    def _restore(self, saved: Before) -> None:
        for name, value in saved.state.items():
            value.copy_(saved.state_copies[name])
        self.env.set_env_state(saved.state)
        for value, before in zip(self._weights, saved.weights, strict=True):
            value.copy_(before)

    def _made(self, data: TensorDictBase) -> CompiledFunction:
        env = self.env
        state = env.env_state()
        self._names = list(state)
        self._groups = data.select(*self._shown_keys).empty(recurse=True)

        def step(inputs: list[Tensor]) -> list[Tensor]:
            values = inputs[len(self._weights) :]
            env.set_env_state(dict(zip(self._names, values, strict=False)))
            showing = self._showing(values[len(self._names) :])
            kept, after = step_once(env, self.policy, showing, *self._kept)
            self._kept_keys = list(kept.keys(True, True))
            self._empty = kept.empty(recurse=True)
            later = env.env_state()
            return [*map(kept.get, self._kept_keys), *map(later.get, self._names), *self._shown(after)]

        shown = [value.clone() for value in self._shown(data)]
        start = [*copies(state).values(), *shown]
        with generators_kept(env.device), uncached_casts(env.device):
            return CompiledFunction("steps", step, [*self._weights, *start])

    def _tried(self, form: CompiledFunction | None, data: TensorDictBase) -> list[Tensor]:
        """What is kept of some steps, and the state behind them."""
        state = copies(self.env.env_state())
        if form is not None:
            steps, after = self._play(form, _TRIED, list(state.values()), data)
            played = self._stacked(steps)
            return [*map(played.get, self._kept_keys), *after[: len(self._names)]]
        self.env.set_env_state(state)
        played, _ = play_steps(self.env, self.policy, data.copy(), _TRIED, *self._kept)
        later = self.env.env_state()
        return [*map(played.get, self._kept_keys), *later.values()]

    def _compare(self, plain: list[Tensor], found: list[Tensor]) -> None:
        number = self.env.num_envs
        rows = []
        for wanted, value in zip(plain, found, strict=True):
            if wanted.ndim and len(wanted) == number:
                rows.append(rows_that_differ(wanted, value))
        other = int(torch.stack(rows).any(0).sum())
        if other > MOST_OTHER * number:
            raise RuntimeError(
                f"CompiledSteps: compiled steps play otherwise than operators one by one in {other} of {number}"
                " environments"
            )
