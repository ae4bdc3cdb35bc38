"""Parity of ours and the NumPy path.

Both are driven by the same actions, and compared at every step.
"""

from __future__ import annotations

import numpy as np
import torch
from tensordict import TensorDictBase

from benchmarks.packing.numpy_packing import Drop, NumpyPacking, drop_by_box_loop, drop_by_loop, drop_by_windows
from benchmarks.packing.settings import Changes, episodes_of, make
from torchrl_gpu.envs import PackingEnv

DROPS: dict[str, Drop] = {"loop": drop_by_loop, "windows": drop_by_windows}
BOX_DROPS: dict[str, Drop] = DROPS | {"box loop": drop_by_box_loop}


def difference(changes: Changes, *, num_envs: int, steps: int, device: str, drops: dict[str, Drop]) -> str:
    """Describe the first difference between ours and the NumPy path in one line.

    The line is "" where there is none.

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
    twins = []
    for row in range(env.num_envs):
        # No episode is shorter than a step, so that there are enough of them.
        episodes = episodes_of(env, row, steps + 1)
        twins.append(NumpyPacking(env.catalogue, env.bin, episodes, env.visible_items, drop))
    current = env.reset()
    for step in range(steps):
        found = _state_difference(current, env, twins)
        if found:
            return f"step {step}: {found}"
        actions = [_some_legal(twin.legal, rng) for twin in twins]
        current["action"] = torch.tensor(actions, device=env.device)
        stepped, current = env.step_and_maybe_reset(current)
        rewards = []
        ends = []
        for twin, action in zip(twins, actions, strict=True):
            reward, done = twin.step(action)
            rewards.append(reward)
            ends.append(done)
        for key, theirs in (("reward", rewards), ("done", ends)):
            ours = stepped["next", key].squeeze(-1).cpu().numpy()
            found = _unlike(f"next {key}", ours, np.array(theirs))
            if found:
                return f"step {step}: {found}"
        found = _state_difference(stepped["next"], None, twins)
        if found:
            return f"step {step}, next: {found}"
        for twin, done in zip(twins, ends, strict=True):
            if done:
                twin.reset()
    return ""


def _state_difference(shown: TensorDictBase, env: PackingEnv | None, twins: list[NumpyPacking]) -> str:
    """Describe the first difference of what both show.

    Rest heights are compared where the environment is given.
    """
    heights = np.stack([twin.heights for twin in twins])
    legal = np.stack([twin.legal for twin in twins])
    pairs = {"box_heightmap": (shown["box_heightmap"], heights), "legal_mask": (shown["legal_mask"], legal)}
    if env is not None:
        z_map = np.stack([twin.z_map for twin in twins])
        pairs["z_map"] = (env.state.z_map, z_map)
    for name, (ours, theirs) in pairs.items():
        found = _unlike(name, ours.cpu().numpy(), theirs)
        if found:
            return found
    return ""


def _unlike(name: str, ours: np.ndarray, theirs: np.ndarray) -> str:
    """Describe where two arrays differ, "" where they do not.

    Truth values must be equal, lengths and rewards to rounding.
    """
    if ours.dtype == bool:
        wrong = ours != theirs
    else:
        largest = max(1.0, float(np.abs(theirs).max()))
        wrong = np.abs(ours.astype(np.float64) - theirs) > 1e-6 * largest
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    share = f"{int(wrong.sum())} of {wrong.size} entries"
    return f"{name} differs in {share}, first at {at}: ours {ours[at]}, NumPy {theirs[at]}"


def _some_legal(legal: np.ndarray, rng: np.random.Generator) -> int:
    """Draw a legal action, and now and then any action.

    So ends by an illegal one are compared too.
    """
    choices = np.flatnonzero(legal)
    if not len(choices) or rng.random() < 0.05:
        return int(rng.integers(legal.size))
    return int(choices[rng.integers(len(choices))])
