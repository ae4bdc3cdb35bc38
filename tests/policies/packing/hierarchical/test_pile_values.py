"""Values of irregular piles, and the packer by them.

Against plain loops, and the laws of both.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

from tests.no_host_reads import NoHostReads
from tests.policies.packing import naive
from tests.policies.packing.packer_scenes import ENVS, random_states, solids_env, variants_of
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.policies.packing import HierarchicalPacker, PackerNetworks, PileValuePacker, PileValues
from torchrl_gpu.policies.packing.hierarchical.pile_values import NAMES, SHIPPED, WINDOWS

SIZES = [(7, 7), (5, 9), (12, 12), (20, 3), (50, 50)]


def some_weights(seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).normal(0, 1, len(NAMES)).tolist()


def numbers_of(pile: np.ndarray, growth: float, base: float) -> list[float]:
    """The numbers of one pile, by plain loops."""
    rest, pits = [], []
    for share in WINDOWS:
        side = 2 * round((share * max(pile.shape) - 1) / 2) + 1
        u = min(side, pile.shape[0])
        v = min(side, pile.shape[1])
        cubes = {}
        for x, y in np.ndindex(pile.shape[0] - u + 1, pile.shape[1] - v + 1):
            cubes[x, y] = pile[x : x + u, y : y + v].max()
        reached = np.full(pile.shape, np.inf)
        for (x, y), height in cubes.items():
            here = reached[x : x + u, y : y + v]
            here[...] = np.minimum(here, height)
        rest.append(np.mean(list(cubes.values())))
        pits.append((reached - pile).mean())
    edges = np.abs(np.diff(pile, axis=0)).mean() + np.abs(np.diff(pile, axis=1)).mean()
    return [*rest, *pits, edges, pile.std(ddof=1), (pile**3).mean(), growth, base]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_figures_of_piles_are_those_of_plain_loops(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(sum(size))
    piles = rng.integers(0, 6, (3, *size)) / 6
    given = rng.random((2, 3))
    wanted = [numbers_of(*each) for each in zip(piles, *given, strict=True)]
    values = PileValues(some_weights())
    tensors = [torch.from_numpy(each).float() for each in (piles, *given)]
    torch.testing.assert_close(values.numbers(*tensors), torch.tensor(wanted).float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(values(*tensors), torch.tensor(wanted).float() @ values.weight, rtol=1e-4, atol=1e-5)


def test_a_pit_is_one_for_the_cubes_that_are_wider() -> None:
    pile = torch.ones(1, 50, 50)
    # The gap is 7 of 50 places wide: cubes of 3 and 5 reach in, those of 9 to 19 do not.
    pile[0, 10:17, 20:27] = 0.0
    found = PileValues(some_weights()).numbers(pile, torch.zeros(1), torch.zeros(1))[0]
    assert found[5:10].tolist() == pytest.approx([0, 0, *[49 / 2500] * 3], abs=1e-6)


# -- the packer --


def naive_action(env: PackingEnv, packer: PileValuePacker, row: TensorDictBase) -> tuple[dict[int, float], int]:
    """Return values of the placements of one bin that are looked at.

    By action, with the value of the item's first placement.
    """
    per_item = row["legal_mask"][0].numel()
    growth = packer.planes.growth(
        row["box_heightmap"][None], variants_of(env, row["item_id"][None]), row["z_map"].flatten(0, 1)[None]
    ).flatten()
    made = {each.action: each for each in naive.candidates(env, row)}
    # By slot and orientation, the action that raises the pile least.
    best: dict[int, dict[int, int]] = {}
    for action in made:
        slot, turn = action // per_item, action % per_item // row["legal_mask"][0, 0].numel()
        turns = best.setdefault(slot, {})
        if turn not in turns or growth[action] < growth[turns[turn]]:
            turns[turn] = action
    box = packer.box[row["item_id"]]
    volume = packer.volume[row["item_id"]]
    shortlist = sorted(best, key=lambda slot: (-float(box[slot]), slot))[: packer.num_items]

    def score(slot: int) -> float:
        waste = min(float(growth[action]) for action in best[slot].values()) - float(volume[slot])
        return float(box[slot]) - (0.5 * waste if packer.num_items > 1 else 0.0)

    slot = max(shortlist, key=score)
    looked_at = sorted(best[slot].values(), key=lambda action: (float(growth[action]), action))
    step = env.grid_step
    found = {}
    for action in looked_at[: packer.num_placements]:
        after = made[action].after.astype(np.float64) / env.bin.size[2]
        gx, gy = env.grid
        pooled = np.zeros((gx, gy), after.dtype)
        for x, y in np.ndindex(gx, gy):
            pooled[x, y] = after[x * step : (x + 1) * step, y * step : (y + 1) * step].max()
        base = float(row["z_map"].flatten()[action]) / env.bin.size[2]
        found[action] = float(np.dot(numbers_of(pooled, float(growth[action]), base), packer.values.weight.numpy()))
    return found, looked_at[0]


@pytest.mark.parametrize("kind", ENVS)
@pytest.mark.parametrize(("items", "placements"), [(1, 1), (3, 12)])
def test_packer_by_pile_values_takes_the_largest_value(kind: str, items: int, placements: int) -> None:
    env, others = ENVS[kind](), 0
    packer = PileValuePacker(env, PileValues(some_weights()), items, placements)
    for steps in (2, 6):
        states = random_states(env, steps)
        action = packer(states)["action"].tolist()
        for row, taken in zip(states, action, strict=True):
            values, first = naive_action(env, packer, row)
            # They are the same but for rounding.
            assert values[taken] > max(values.values()) - 1e-4
            others += taken != first
    assert (others > 0) == (placements > 1)


def test_by_growth_alone_it_is_heightmap_minimisation() -> None:
    env = solids_env(16)
    weights = [0.0] * len(NAMES)
    weights[NAMES.index("growth")] = -1.0
    rule = HierarchicalPacker(env, PackerNetworks(channels=(8, 4)), "box", "growth", view_cells=8)
    least = HierarchicalPacker(env, rule.networks, "waste", "growth", view_cells=8, item_shortlist=3)
    for steps in (0, 3, 6):
        states = random_states(env, steps)
        for items, wanted in ((1, rule), (3, least)):
            found = PileValuePacker(env, PileValues(weights), items)(states.clone())["action"]
            assert found.equal(wanted(states.clone())["action"])


def test_where_nothing_is_legal_the_action_is_0() -> None:
    env = solids_env()
    states = random_states(env, 2)
    states["legal_mask"][1] = False
    alone = states[1]["item_id"]
    alone[:] = -1
    action = PileValuePacker(env)(states)["action"]
    assert action[1] == 0
    assert states["legal_mask"].flatten(1).gather(1, action[:, None])[[0, 2, 3]].all()


def test_batches_of_any_shape_and_no_host_reads() -> None:
    env = solids_env()
    packer, states = PileValuePacker(env), random_states(env, 3)
    wanted = packer(states.clone())["action"]
    with NoHostReads():
        found = packer(states.clone().view(2, 2))["action"]
    assert found.equal(wanted.view(2, 2))
    assert packer(states[2].clone())["action"].equal(wanted[2])


def test_shipped_pile_values_weigh_these_figures() -> None:
    held = json.loads(SHIPPED.read_text(encoding="utf-8"))
    assert tuple(held["names"]) == NAMES
    torch.testing.assert_close(PileValues().weight, torch.tensor(held["weights"]))
    assert set(held) == {"weights", "names", "commit"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": 0}, "PileValuePacker: items must be at least 1; got 0"),
        ({"placements": 0}, "PileValuePacker: placements must be at least 1; got 0"),
        ({"include": ()}, "PileValuePacker: .*include z_map"),
        ({"weights": [1.0] * 4}, "PileValues: weights .*15.*4"),
        ({"weights": [float("nan")] * 15}, "PileValues: rest_6% must"),
    ],
)
def test_pile_values_refuse_wrong_arguments(changes: dict[str, Any], message: str) -> None:
    env = solids_env(include=changes.pop("include", ("z_map",)))
    with pytest.raises(ValueError, match=message):
        PileValuePacker(env, PileValues(changes.pop("weights", None)), **changes)


@pytest.mark.parametrize("size", [(1, 6), (6, 1), (1, 1)])
def test_a_grid_of_one_row_or_column_has_no_steps_across_it(size: tuple[int, int]) -> None:
    heights = torch.rand(3, *size, dtype=torch.float32, device="cpu")
    flat = torch.full((3, *size), 0.5)
    zeros = torch.zeros(3)
    values = PileValues()
    assert values(heights, zeros, zeros).isfinite().all()
    numbers = values.numbers(flat, zeros, zeros)
    steps_and_deviation = numbers[:, len(WINDOWS) * 2 :][:, :2]
    assert torch.equal(steps_and_deviation, torch.zeros(3, 2))
