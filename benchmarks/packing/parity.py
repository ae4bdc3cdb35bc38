"""Parity of ours and the NumPy path: driven by the same actions, compared at every step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.packing.numpy_packing import Drop, NumpyPacking, drop_by_box_loop, drop_by_loop, drop_by_windows
from benchmarks.packing.settings import episodes_of, make
from torchrl_gpu.envs import PackingEnv

DROPS: dict[str, Drop] = {"loop": drop_by_loop, "windows": drop_by_windows}
BOX_DROPS: dict[str, Drop] = DROPS | {"box loop": drop_by_box_loop}


def difference(changes: dict[str, Any], *, num_envs: int, steps: int, device: str, drops: dict[str, Drop]) -> str:
    """The first difference between ours and the NumPy path, in one line; "" for none.

    Args:
        changes: Constructor arguments of `PackingEnv`.
        num_envs: Rows to compare.
        steps: Steps, resets in between.
        device: Where ours runs.
        drops: The NumPy variants to compare, by name.
    """
    env = make(changes, num_envs, device)
    for name, drop in drops.items():
        env.set_seed(0)
        found = _first_difference(env, drop, steps)
        if found:
            return f"NumPy {name}: {found}"
    return ""


def _first_difference(env: PackingEnv, drop: Drop, steps: int) -> str:
    rng = np.random.default_rng(0)
    twins = [
        NumpyPacking(env.catalogue, env.bin, episodes_of(env, row, steps + 1), env.visible_items, drop)
        for row in range(env.num_envs)
    ]
    current = env.reset()
    for step in range(steps):
        if found := _state_difference(current, env, twins):
            return f"step {step}: {found}"
        actions = [_some_legal(twin.legal, rng) for twin in twins]
        current["action"] = torch.tensor(actions, device=env.device)
        stepped, current = env.step_and_maybe_reset(current)
        came = [twin.step(action) for twin, action in zip(twins, actions, strict=True)]
        for key, column in (("reward", 0), ("done", 1)):
            ours = stepped["next", key].squeeze(-1).cpu().numpy()
            theirs = np.array([each[column] for each in came])
            if found := _unlike(f"next {key}", ours, theirs):
                return f"step {step}: {found}"
        if found := _state_difference(stepped["next"], None, twins):
            return f"step {step}, next: {found}"
        for twin, (_, done) in zip(twins, came, strict=True):
            if done:
                twin.reset()
    return ""


def _state_difference(shown: Any, env: PackingEnv | None, twins: list[NumpyPacking]) -> str:
    pairs = {
        "box_heightmap": (shown["box_heightmap"], np.stack([twin.heights for twin in twins])),
        "legal_mask": (shown["legal_mask"], np.stack([twin.legal for twin in twins])),
    }
    if env is not None:
        pairs["z_map"] = (env.state.z_map, np.stack([twin.z_map for twin in twins]))
    found = (_unlike(name, ours.cpu().numpy(), theirs) for name, (ours, theirs) in pairs.items())
    return next(filter(None, found), "")


def _unlike(name: str, ours: np.ndarray, theirs: np.ndarray) -> str:
    """Truth values must be equal, lengths and rewards to rounding."""
    if ours.dtype == bool:
        wrong = ours != theirs
    else:
        wrong = np.abs(ours.astype(np.float64) - theirs) > 1e-6 * max(1.0, float(np.abs(theirs).max()))
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    share = f"{int(wrong.sum())} of {wrong.size} entries"
    return f"{name} differs in {share}, first at {at}: ours {ours[at]}, NumPy {theirs[at]}"


def _some_legal(legal: np.ndarray, rng: np.random.Generator) -> int:
    """A legal action; now and then any action, so that ends by an illegal one are compared too."""
    choices = np.flatnonzero(legal)
    if not len(choices) or rng.random() < 0.05:
        return int(rng.integers(legal.size))
    return int(choices[rng.integers(len(choices))])
