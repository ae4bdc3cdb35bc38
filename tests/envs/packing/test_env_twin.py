"""Parity of the whole environment with its twin over full episodes.

It is also compared with itself under other backends.

The twin has the torch kernels against it, which take the reference's sums as they come; the compiled kernels count
heights, so that a pile rounds once rather than with every item. The two agree to the bit where a cell is a power of two
of a metre, and elsewhere to a hundredth of the length that tells heights apart.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDictBase
from torch import Tensor

from tests.envs.packing.settings import SETTINGS, assert_same, legal_action, packing, small_solids
from tests.envs.packing.twin import Twin
from tests.native.compilers import need_compiler
from tests.tolerances import assert_near
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes

# The twin takes a second for a large bin under the rule of what bears, and for fine maps.
SMALL: dict[str, Any] = {"bin_size": (6.0, 6.0, 6.0), "resolution": 6, "items": RandomBoxes(1, 3)}
SMALLER = {"on what bears": SMALL, "on corners at last": SMALL, "irregular": {"resolution": 10, "grid_step": 3}}


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_twin_goes_the_same_way(setting: str) -> None:
    env = packing(setting, 2, backend="eager", **SMALLER.get(setting, {}))
    twins = [Twin(env, n) for n in range(2)]
    generator = torch.Generator().manual_seed(1)
    current, restarts = env.reset(), 0
    for turn in range(15):
        action = some_action(env, current, turn, generator)
        step, current = env.step_and_maybe_reset(current.set("action", action))
        outcome = [twin.step(int(a)) for twin, a in zip(twins, action, strict=True)]
        assert_near(step["next", "reward"], torch.tensor(outcome, dtype=torch.float32)[:, :1])
        assert step["next", "done"].flatten().tolist() == [done for _, done in outcome]
        assert_agree(step["next"], twins)
        for twin, (_, done) in zip(twins, outcome, strict=True):
            if done:
                twin.restart()
                restarts += 1
        assert_agree(current, twins)
    assert restarts


def some_action(env: PackingEnv, current: TensorDictBase, turn: int, generator: torch.Generator) -> Tensor:
    """Draw a legal action of each environment.

    Now and then it is any action, most often an illegal one.
    """
    if turn % 13 == 12:
        return torch.randint(-1, env.num_actions + 1, (env.num_envs,), generator=generator)
    return legal_action(current["action_mask"], generator)


def assert_agree(seen: TensorDictBase, twins: list[Twin]) -> None:
    for n, twin in enumerate(twins):
        assert torch.equal(seen["box_heightmap"][n], torch.from_numpy(twin.heights))
        assert torch.equal(seen["legal_mask"][n], torch.from_numpy(twin.legal))
        assert torch.equal(seen["action_mask"][n], torch.from_numpy(twin.legal).flatten())
        assert seen["item_mask"][n].tolist() == twin.legal.any((1, 2, 3)).tolist()
        padding = [-1] * (seen["item_id"].shape[1] - len(twin.visible))
        assert seen["item_id"][n].tolist() == twin.visible + padding
        assert seen["num_packed"][n].item() == twin.num_packed
        assert seen["utilization"][n].item() == pytest.approx(twin.volume / twin.bin_.volume, abs=1e-5)
        z_map = seen.get("z_map", None)
        assert z_map is None or torch.equal(z_map[n], torch.from_numpy(twin.z_map))


# -- other backends ----------------------------------------------------------------------------------------------------

FINE = {"bin_size": (0.125, 0.125, 0.125), "resolution": 32, "items": small_solids()}
COARSE = {**FINE, "resolution": 16}
# The irregular settings with cells of 1/256 and 1/128 m.
EXACT: dict[str, dict[str, object]] = {
    "irregular": FINE,
    "irregular, on its support": COARSE,
    "irregular, on its corners": COARSE,
    "irregular, on its balance": COARSE,
    "irregular, judged": COARSE,
    "irregular, passing over": COARSE,
}


def assert_one_way(envs: list[PackingEnv], steps: int, *, exact: bool) -> int:
    """Check that all environments see and give the same under the same actions.

    Returns the number of episodes that ended.
    """
    generator = torch.Generator().manual_seed(2)
    current, ended = [env.reset() for env in envs], 0
    for turn in range(steps):
        for other in current[1:]:
            assert_alike(current[0], other, envs[0], exact=exact)
        action = some_action(envs[0], current[0], turn, generator)
        pairs = [env.step_and_maybe_reset(c.set("action", action)) for env, c in zip(envs, current, strict=True)]
        stepped = [pair[0] for pair in pairs]
        current = [pair[1] for pair in pairs]
        for other in stepped[1:]:
            assert_alike(stepped[0], other, envs[0], exact=exact)
        ended += int(stepped[0]["next", "done"].sum())
    return ended


def assert_alike(first: TensorDictBase, second: TensorDictBase, env: PackingEnv, *, exact: bool) -> None:
    """Check that two observations are the same to the bit.

    Where that cannot be, heights may differ by a hundredth of the tolerance, and rewards by rounding.
    """
    if exact:
        return assert_same(first, second)
    height = env.bin.tolerance / 100
    allowed = {"box_heightmap": height, "z_map": height, "reward": 1e-6}
    for name in first.keys(True, True):
        most = allowed.get(name if isinstance(name, str) else name[-1])
        same = torch.equal(first[name], second[name])
        assert same or (most is not None and (first[name] - second[name]).abs().max() <= most), name
    return None


def as_compiled(setting: str, **changes: object) -> list[PackingEnv]:
    """The compiled environment that keeps maps, and the one that makes them anew."""
    need_compiler()
    return [packing(setting, backend="compiled", incremental=keeps, **changes) for keeps in (True, False)]


@pytest.mark.parametrize("setting", SETTINGS)
def test_backends_go_the_same_way(setting: str) -> None:
    envs = [packing(setting, backend="eager"), *as_compiled(setting)]
    # The first goes through all sixteen items.
    steps = 20 if setting == "passing over" else 14
    assert assert_one_way(envs, steps, exact="irregular" not in setting) >= 3


@pytest.mark.parametrize("setting", EXACT)
def test_backends_agree_to_the_bit_where_sums_are_exact(setting: str) -> None:
    changes = EXACT[setting]
    envs = [packing(setting, backend="eager", **changes), *as_compiled(setting, **changes)]
    assert assert_one_way(envs, 14, exact=True) >= 3


def test_a_tall_bin_is_counted_in_words() -> None:
    changes = {"bin_size": (0.125, 0.125, 1.0), "resolution": 32, "grid_step": 8, "items": small_solids()}
    envs = [packing("irregular", backend="eager", **changes), *as_compiled("irregular", **changes)]
    assert envs[0].bin.size[2] / envs[0].catalogue.unit == 256
    assert assert_one_way(envs, 20, exact=True) > 0


@pytest.mark.parametrize("setting", ["three visible", "irregular, on its support"])
def test_the_reference_goes_the_same_way(setting: str) -> None:
    changes = EXACT.get(setting, {})
    envs = [packing(setting, 2, backend=backend, **changes) for backend in ("reference", "eager")]
    envs += as_compiled(setting, num_envs=2, **changes)[:1]
    assert_one_way(envs, 4 if "irregular" in setting else 8, exact=True)
