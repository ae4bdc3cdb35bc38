"""Self-test of both kernels.

It compares steps and restarts of small environments with those of torch's operators.
"""

from __future__ import annotations

from typing import TypedDict

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrl_gpu.envs.marine import fused
from torchrl_gpu.envs.marine.env import MarineNavEnv
from torchrl_gpu.envs.marine.specs import GROUP
from torchrl_gpu.system import self_tests


class Setting(TypedDict, total=False):
    """Arguments of `MarineNavEnv`."""

    version: str
    actions: str
    robots: int
    cores: int
    obstacles: int
    min_distance: float


SETTINGS: dict[str, Setting] = {
    "v2": {"robots": 3, "cores": 4, "obstacles": 6, "min_distance": 20.0},
    "v3": {"version": "v3", "robots": 3, "cores": 2, "obstacles": 4, "min_distance": 20.0},
    "v3 with discrete actions": {"version": "v3", "actions": "discrete", "obstacles": 1, "min_distance": 20.0},
}

# More steps than an episode may have, so that some end by the limit.
_STEPS = 6
_MAX_STEPS = 4

# Relative and absolute tolerance of float32, in metres, metres a second or newtons.
_WITHIN = 2e-3


def run(device: str) -> str:
    """Return the first setting in which a kernel differs from torch, in one line.

    It is "" if none does.
    """
    there = self_tests.usable(device)
    try:
        for name, setting in SETTINGS.items():
            with fused.left_out():
                env = MarineNavEnv(7, device=there, seed=3, pool=8, max_steps=_MAX_STEPS, **setting)
            if found := difference(env, _STEPS, _WITHIN):
                return f"{name}: {found}"
    except torch.OutOfMemoryError as error:
        raise self_tests.Unavailable(f"the device's memory is full: {self_tests.reason(error)}") from error
    return ""


def difference(env: MarineNavEnv, steps: int, within: float) -> str:
    """Return how the kernels differ from torch in an environment played at random.

    It is "" if they do not. The environment follows torch, so that one error does not hide later ones.
    """
    generator = torch.Generator().manual_seed(1)
    current, state = env.reset(), env._state
    for number in range(steps):
        action = _random_action(env, generator)
        env._state = state
        current["action" if env.flat else (GROUP, "action")] = action
        made = _flattened(env.step_fused(current)), env.env_state()
        env._state = state
        plain = _flattened(env._step(current)), env.env_state()
        if found := _first_difference(made, plain, within):
            return f"step {number}: {found}"
        state, over = env._state, plain[0]["done"].squeeze(-1)
        env._state, derived = env._restart_fused(over)
        made = _flattened(env._nested(*env._observed(derived))), env.env_state()
        env._state = state
        plain = _flattened(env._observe_reset_plain(over)), env.env_state()
        if found := _first_difference(made, plain, within):
            return f"restart {number}: {found}"
        state = env._state
    return ""


def _random_action(env: MarineNavEnv, generator: torch.Generator) -> Tensor:
    shape = (env.num_envs,) if env.flat else (env.num_envs, env.num_robots)
    if env.num_actions:
        drawn = torch.randint(env.num_actions, shape, generator=generator, device="cpu", dtype=torch.int64)
    else:
        drawn = torch.rand(*shape, 2, generator=generator, device="cpu", dtype=torch.float64) * 2 - 1
    return drawn.to(env.device)


def _first_difference(
    made: tuple[dict[str, Tensor], dict[str, Tensor]], plain: tuple[dict[str, Tensor], dict[str, Tensor]], within: float
) -> str:
    """Name of the first tensor that differs, and by how much."""
    for ours, theirs in zip(made, plain, strict=True):
        for name, wanted in theirs.items():
            got = ours[name]
            if got.shape != wanted.shape or got.dtype != wanted.dtype:
                return f"{name} is {got.dtype} {tuple(got.shape)}; torch gives {wanted.dtype} {tuple(wanted.shape)}"
            if not wanted.is_floating_point():
                if not torch.equal(got, wanted):
                    return f"{name} differs from torch's in {int((got != wanted).sum())} places"
            elif not torch.allclose(got, wanted, rtol=within, atol=within):
                return f"{name} differs from torch's by {float((got - wanted).abs().max()):.3g}"
    return ""


def _flattened(tensors: TensorDictBase | dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name, those of the robots' group among them."""
    found: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if isinstance(value, TensorDictBase):
            found |= {f"{name}/{key}": each for key, each in value.items()}
        else:
            found[name] = value
    return found
