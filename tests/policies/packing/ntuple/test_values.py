"""Values of bins after placements.

Each backend against a naive definition, laws, and what is refused.
"""

from __future__ import annotations

import itertools
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from torchrl_gpu import native
from torchrl_gpu.policies.packing.ntuple.sweep import sweep_bins
from torchrl_gpu.policies.packing.ntuple.values import (
    PatchPlan,
    Tables,
    learn_bins,
    level_heights,
    value_bins,
    value_placements,
)

PLANS = [
    PatchPlan(("2x2",), 3),
    PatchPlan(("1x3", "2x3"), 3),
    PatchPlan(("3x3:1", "1x1"), 4),
    PatchPlan(("2x4:2", "1x4", "2x2:1"), 3),
]


@pytest.fixture(params=["C++", "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    return str(request.param)


def weights(plan: PatchPlan, seed: int = 0) -> Tensor:
    drawn = torch.randn(plan.entries, generator=torch.Generator().manual_seed(seed))
    return drawn[plan.first_images]


def scene(plan: PatchPlan, seed: int, rows: int = 3, cells: tuple[int, int] = (5, 4)) -> dict[str, Tensor]:
    """Bins and boxes, some of which do not fit, higher ones than the bin among them."""
    g = torch.Generator().manual_seed(seed)
    grid = (rows, 2, *cells)
    heights = torch.randint(0, plan.levels + 2, (rows, *cells), generator=g).to(torch.uint8)
    extent = torch.randint(0, 6, (rows, 2, 2), generator=g)
    top = torch.randint(0, plan.levels + 3, grid, generator=g).to(torch.uint8)
    legal = torch.rand(grid, generator=g) < 0.7
    return {"heights": heights, "extent": extent, "top": top, "legal": legal}


def naive_value(heights: np.ndarray, weight: np.ndarray, plan: PatchPlan) -> float:
    """Return the value by one patch after the other.

    The index is written out as a number in a mixed base.
    """
    x_cells, y_cells = heights.shape
    framed = np.full((x_cells + 2, y_cells + 2), plan.levels, dtype=int)
    framed[1:-1, 1:-1] = np.minimum(heights, plan.levels)
    total, begin = 0.0, 0
    for shape in plan.shapes:
        sides, _, clip_text = shape.partition(":")
        rows, columns = sorted(map(int, sides.split("x")))
        clip = min(int(clip_text), plan.levels) if clip_text else None
        base = plan.levels + 1 if clip is None else 2 * clip + 1
        for turned in {False, rows != columns}:
            view = framed.T if turned else framed
            for x, y in itertools.product(range(view.shape[0] + 1 - rows), range(view.shape[1] + 1 - columns)):
                patch = view[x : x + rows, y : y + columns]
                cells = list(patch.flatten())
                if clip is not None:
                    middle = patch[rows // 2, columns // 2]
                    del cells[rows // 2 * columns + columns // 2]
                    cells = [middle, *(int(np.clip(cell - middle, -clip, clip)) + clip for cell in cells)]
                index = 0
                for digit in cells:
                    index = index * base + int(digit)
                total += float(weight[begin + index])
        begin += (plan.levels + 1) * base ** (rows * columns - 1)
    return total


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "+".join(plan.shapes))
def test_a_bin_is_worth_the_sum_of_its_patches(plan: PatchPlan, backend: str) -> None:
    weight, heights = weights(plan), scene(plan, 1)["heights"]
    wanted = [naive_value(each.numpy(), weight.numpy(), plan) for each in heights]
    torch.testing.assert_close(value_bins(heights, weight, plan), torch.tensor(wanted), rtol=1e-5, atol=1e-4)


POOLED = PatchPlan(("2x2", "1x3:2"), 4)
SETTINGS = list(product(PLANS, (1, 2), (1,)))
SETTINGS += product((POOLED,), (1, 3), (2, 3))


@pytest.mark.parametrize(
    ("plan", "step", "pool"), SETTINGS, ids=lambda each: "+".join(getattr(each, "shapes", [str(each)]))
)
def test_a_placement_is_worth_the_bin_after_it(plan: PatchPlan, step: int, pool: int, backend: str) -> None:
    """A placement is made in fine cells and seen in coarse ones.

    A coarse cell is as high as its highest fine one.
    """
    weight = weights(plan)
    coarse = (4, 3)
    rows = 8
    fine = tuple(cells * pool for cells in coarse)
    g = torch.Generator().manual_seed(pool)
    heights = torch.randint(0, plan.levels + 2, (rows, *fine), generator=g).to(torch.uint8)
    extent = torch.randint(0, 2 * pool + 3, (rows, 2, 2), generator=g)
    grid = (rows, 2, *(-(-cells // step) for cells in fine))
    top = torch.randint(0, plan.levels + 3, grid, generator=g).to(torch.uint8)
    legal = torch.rand(grid, generator=g) < 0.5
    seen = torch.from_numpy(pooled(heights.numpy(), pool))
    values = value_placements(seen, extent, top, legal, weight, plan, step, pool)
    checked = 0
    for n, v, gx, gy in np.ndindex(values.shape):
        (a, b), after = extent[n, v].tolist(), heights[n].numpy().copy()
        x, y = min(gx * step, fine[0] - a), min(gy * step, fine[1] - b)
        if not legal[n, v, gx, gy] or min(a, b) < 1 or min(x, y) < 0:
            assert values[n, v, gx, gy] == -torch.inf
            continue
        under = after[x : x + a, y : y + b]
        under[:] = np.maximum(under, top[n, v, gx, gy].item())
        wanted = naive_value(pooled(after[None], pool)[0], weight.numpy(), plan)
        assert values[n, v, gx, gy].item() == pytest.approx(wanted, abs=1e-3)
        checked += 1
    assert checked > 10


def pooled(heights: np.ndarray, pool: int) -> np.ndarray:
    rows, x_cells, y_cells = heights.shape
    return heights.reshape(rows, x_cells // pool, pool, y_cells // pool, pool).max((2, 4))


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "+".join(plan.shapes))
def test_both_backends_learn_alike_to_the_last_bit(plan: PatchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for torch_only in (False, True):
        if torch_only:
            monkeypatch.setattr(native, "runs_on", lambda tensor: False)
        made = tables(plan)
        for seed in range(4):
            g = torch.Generator().manual_seed(seed)
            heights = scene(plan, seed, rows=6)["heights"]
            learn(made, plan, heights, torch.randn(6, generator=g), torch.rand(6, generator=g) < 0.8, 0.5)
        results.append(made)
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def tables(plan: PatchPlan) -> Tables:
    return Tables(weights(plan), torch.zeros(plan.entries), torch.zeros(plan.entries))


def learn(made: Tables, plan: PatchPlan, heights: Tensor, error: Tensor, counts: Tensor, rate: float) -> None:
    scratch = torch.zeros(plan.entries, 2, dtype=torch.int64)
    learn_bins(heights, error, counts, made, plan, rate, scratch)
    assert not scratch.any()


@pytest.mark.parametrize("flat", [True, False], ids=["one entry in many places", "many entries"])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: "+".join(plan.shapes))
def test_one_bin_alone_moves_by_its_share_of_the_error(plan: PatchPlan, flat: bool, backend: str) -> None:
    """However often an entry occurs: steps do not add up."""
    heights = scene(plan, 3, rows=1)["heights"]
    heights = torch.zeros_like(heights) if flat else heights
    made = tables(plan)
    before = value_bins(heights, made.weight, plan)
    learn(made, plan, heights, torch.tensor([0.5]), torch.tensor([True]), 0.25)
    moved = value_bins(heights, made.weight, plan) - before
    torch.testing.assert_close(moved, torch.tensor([0.125]), rtol=1e-3, atol=1e-4)


def test_an_entry_takes_the_mean_of_its_errors(backend: str) -> None:
    plan, made = PatchPlan(("1x1",), 2), None
    made = Tables(*(torch.zeros(plan.entries) for _ in range(3)))
    heights = torch.zeros(3, 1, 1, dtype=torch.uint8)
    learn(made, plan, heights, torch.tensor([0.3, 0.9, 5.0]), torch.tensor([True, True, False]), 1.0)
    # The cell, and the frame around it.
    assert plan.patches((1, 1)) == 9
    # the entry of height 0 occurs once in each of two bins, that of the frame's height 8 times in each
    assert made.weight.tolist() == pytest.approx([0.6 / 9, 0.0, 0.6 / 9])
    # Learning back leaves no drift and no step.
    learn(made, plan, heights[:1], torch.tensor([-0.6]), torch.tensor([True]), 1.0)
    assert made.weight.tolist() == pytest.approx([0.6 / 9, 0.0, 0.6 / 9])
    assert made.path[0].item() == pytest.approx(1.2)
    assert made.drift[0].item() == pytest.approx(0.0, abs=1e-6)


def test_errors_that_are_no_numbers_are_left_out(backend: str) -> None:
    plan = PLANS[0]
    made, heights = tables(plan), scene(plan, 4)["heights"]
    before = made.weight.clone()
    learn(made, plan, heights, torch.full((3,), torch.nan), torch.ones(3, dtype=torch.bool), 1.0)
    assert torch.equal(made.weight, before)


@pytest.mark.parametrize("plan", PLANS[:3], ids=lambda plan: "+".join(plan.shapes))
def test_turned_and_mirrored_bins_are_worth_the_same(plan: PatchPlan, backend: str) -> None:
    made, heights = tables(plan), scene(plan, 5, rows=4, cells=(5, 5))["heights"]
    learn(made, plan, heights, torch.randn(4), torch.ones(4, dtype=torch.bool), 0.5)
    value = value_bins(heights, made.weight, plan)
    for turned in (heights.flip(1), heights.transpose(1, 2).contiguous(), heights.rot90(1, (1, 2)).contiguous()):
        torch.testing.assert_close(value_bins(turned, made.weight, plan), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "levels", "message"),
    [
        ("2x2", 10, "shapes .*'2x2'"),
        ((), 10, "shapes .*1 to 32 different"),
        (("2x2", "2x2"), 10, "shapes .*1 to 32 different"),
        (("1x4", "4x1"), 10, "shapes .*1 to 32 different"),
        (("3x4",), 10, "at most 9 cells"),
        (("0x2",), 10, "at most 9 cells"),
        (("2x2:0",), 10, "at most 9 cells"),
        (("__import__",), 10, "at most 9 cells"),
        ((2,), 10, r"shapes .*\(2,\)"),
        (("3x3",), 10, "'3x3'.*268,435,456"),
        (("2x2",), 251, "levels"),
        (("2x2",), 0, "levels"),
    ],
)
def test_plans_that_cannot_be(shapes: Any, levels: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PatchPlan(shapes, levels)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("heights", torch.zeros(3, 5, 4)),
        ("heights", torch.zeros(5, 4, dtype=torch.uint8)),
        ("extent", torch.zeros(3, 2, 3, dtype=torch.int64)),
        ("extent", torch.zeros(3, 2, 2)),
        ("top", torch.zeros(3, 2, 5, 4)),
        ("legal", torch.zeros(3, 2, 5, 5, dtype=torch.bool)),
        ("weight", torch.zeros(3)),
        ("weight", None),
    ],
)
def test_tensors_that_are_not_as_wanted(name: str, wrong: Any) -> None:
    given: dict[str, Any] = {**scene(PLANS[0], 0), "weight": weights(PLANS[0])}
    with pytest.raises(ValueError, match=name):
        value_placements(**given | {name: wrong}, plan=PLANS[0])


def test_a_patch_must_fit_the_bin() -> None:
    with pytest.raises(ValueError, match="2x6"):
        value_bins(torch.zeros(1, 3, 3, dtype=torch.uint8), torch.zeros(0), PatchPlan(("2x6:1",), 2))


def test_heights_in_levels() -> None:
    metres = torch.tensor([-1.0, 0.0, 0.14, 0.16, 2.9, 3.0, 9.0, torch.nan])
    assert level_heights(metres[:-1], 3.0, 10).tolist() == [0, 0, 0, 1, 10, 10, 10]


@pytest.mark.parametrize("name", ["levels", "reward", "done", "weight", "scratch"])
def test_a_sweep_names_what_it_refuses(name: str) -> None:
    plan = PLANS[0]
    given: dict[str, Any] = {"levels": torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "reward": torch.zeros(2, 3)}
    given |= {"done": torch.zeros(2, 3, dtype=torch.bool), "weight": weights(plan)}
    given |= {"scratch": torch.zeros(plan.entries, 2, dtype=torch.int64)}
    given[name] = given[name].float() if name == "levels" else given[name][:1]
    tables = Tables(given.pop("weight"), torch.zeros(plan.entries), torch.zeros(plan.entries))
    with pytest.raises(ValueError, match="heights" if name == "levels" else name):
        sweep_bins(**given, tables=tables, plan=plan, rate=0.5, lam=0.8)


@pytest.mark.gpu
@pytest.mark.parametrize("shapes", [["2x2", "1x4"], ["3x3:2", "2x4:2", "1x1"]])
def test_a_gpu_learns_the_tables_of_a_cpu_to_the_bit(shapes: list[str]) -> None:
    from torchrl_gpu.policies.packing.ntuple.triton_tables import some_sweep

    plan = PatchPlan(shapes, 6)
    given = some_sweep(plan, (9, 10), rows=300, steps=12)
    made = Tables(*(each.cuda() for each in given.tables))
    scratch = torch.zeros(plan.entries, 2, dtype=torch.int64)
    sweep_bins(*given, plan, rate=0.5, lam=0.8, scratch=scratch)
    on_gpu = (each.cuda() for each in given[:3])
    sweep_bins(*on_gpu, made, plan, rate=0.5, lam=0.8, scratch=scratch.cuda())
    for ours, theirs in zip(made, given.tables, strict=True):
        assert torch.equal(ours.cpu(), theirs)
