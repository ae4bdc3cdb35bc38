"""The steps of the shipped configs, and what they launch."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from benchmarks.gpu import shipped
from benchmarks.gpu.launches import Launch, as_on, recorded
from torchrl_gpu import configs
from torchrl_gpu.envs import MarineNavEnv, PackingEnv
from torchrl_gpu.envs.packing.kernels.triton import kernels as triton_kernels
from torchrl_gpu.envs.packing.types import PackingState, Placement, StoredMaps

# Configs of the same environment launch the same.
CONFIGS = tuple(
    name.removesuffix(".yaml")
    for name in configs.names()
    if name.startswith("packing") and name not in ("packing_bc_to_rl.yaml", "packing_dqn.yaml", "packing_pallets.yaml")
)
# Each has a form of the kernels.
MARINE_CONFIGS = ("navigation_iqn", "navigation_ac_iqn")
# Of the environment itself: only its settings and its state are used.
BACKEND = "eager"


@cache
def environment(config: str) -> PackingEnv:
    """The environment of a shipped config, on a CPU, after its first reset."""
    env = PackingEnv(**shipped.environment_arguments(config) | {"device": "cpu", "backend": BACKEND, "seed": 0})
    env.reset()
    return env


def step(env: PackingEnv, state: PackingState, action: Tensor, following: Tensor, again: Tensor) -> PackingState:
    """Launch the kernels of `PackingEnv.step_and_maybe_reset`.

    They are those of an action, of its maps, and of a restart of some rows.
    """
    moved = triton_kernels.advance(state, action, following, env.catalogue, env.bin)
    after = moved.state
    stored = StoredMaps(state.z_map, state.legal, moved.slot, moved.changed) if env._keeps_maps else None
    triton_kernels.drop_map(after.heightmap, after.item_id, env.catalogue, env.bin, stored)
    return triton_kernels.restart(after, again, state.key, state.item_id, env.catalogue, env.bin)


@cache
def marine_environment(config: str) -> MarineNavEnv:
    """Build the marine environment of a shipped config on a CPU.

    It is after its first reset.
    """
    env = shipped.environment(config, device="cpu", seed=0)
    assert isinstance(env, MarineNavEnv)
    env.reset()
    return env


def marine_launches(config: str) -> list[Launch]:
    """Record launches of a step and of a restart in a marine config.

    They are the same on every chip.
    """
    env = marine_environment(config)
    with recorded() as made:
        env.launch_fused()
    return made


def launches(config: str, capability: int) -> list[Launch]:
    """Record launches of a step of a config on a chip.

    Configs of packing have more of them.

    That is the first maps of a state that has none, and those of heuristics and evaluations: growth and placements.
    """
    if config in MARINE_CONFIGS:
        return marine_launches(config)
    env = environment(config)
    s, zero = env.state, torch.zeros(env.num_envs, dtype=torch.int64)
    with as_on(capability), recorded() as made:
        step(env, s, zero, zero, s.stable)
        triton_kernels.drop_map(s.heightmap, s.item_id, env.catalogue, env.bin)
        triton_kernels.pile_growth(s.heightmap, s.item_id, s.z_map, env.catalogue, env.bin)
        triton_kernels.place(s.heightmap, Placement(zero, zero, zero, zero, s.volume), env.catalogue, env.bin)
    unique = {(each.name, tuple(each.options.items())): each for each in made}
    return list(unique.values())
