"""Every argument of environments and item sources.

What makes no sense is refused in one line of three parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from torchrl_gpu.envs import MarineNavEnv, PackingEnv
from torchrl_gpu.envs.packing.items import (
    BoxSequences,
    CutBoxes,
    ItemSequences,
    ItemSource,
    MeshItems,
    ProceduralSolids,
    RandomBoxes,
)
from torchrl_gpu.envs.packing.items.source import PooledSequences
from torchrl_gpu.envs.packing.types import Bin, Catalogue

NAN, INF, HUGE = float("nan"), float("inf"), 10**12
BIN = Bin((10.0, 10.0, 10.0), (10, 10))
WHOLE: list[Any] = [2.5, NAN, INF, True, "3", None, 3j, [3], 1e300, 10**400, torch.ones(2)]
COUNT = [*WHOLE, 0, -1]
FLAG: list[Any] = [1, 0, "yes", None, [True], NAN]
WORD: list[Any] = ["glue", "", 3, None, ["none"], True]
SEED: list[Any] = [2.5, "a", True, 2**63, NAN, [1]]
ROWS = (0, 1, 2), (0, 1.5, 0, 0, 10), (0, 1, 0, 0, NAN), (5, 1, 0, 0, 9)
REAL: list[Any] = [NAN, INF, -1.0, 0, "1", True, 10**400, [1.0]]

Make = Callable[..., object]
BAD: dict[str, tuple[Make, dict[str, list[Any]]]] = {
    "PackingEnv": (
        lambda **changes: PackingEnv(**{"num_envs": 2, "device": "cpu", "seed": 0} | changes),
        {
            "num_envs": [*COUNT, HUGE],
            "bin_size": [10.0, None, (10, 10), (10, 10, NAN), (1e30, 1e30, 1e30), (1e-9, 1, 1), "abc", (True, 10, 10)],
            "resolution": [0, -1, 2.5, NAN, (10, 0), (10,), None, "10", 10**9, 10**400, True],
            "grid_step": [*COUNT, 11],
            "items": ["", "nowhere.npy", 3, None, ["random"]],
            "num_items": [*COUNT, HUGE, 2**31 - 1],
            "visible_items": [*COUNT, HUGE, 2**31 - 1],
            "orientations": [1, 0, -90, 7, NAN, INF, True, None, "spin", 10**400, [90], 1e-300],
            "stability": WORD,
            "margin": [-0.1, NAN, INF, None, "abc", True],
            "max_tilt": [-0.1, 46, NAN, INF, None, "abc", True],
            "fallback": [*(each for each in WORD if each is not None), "load_bearing"],
            "reward": WORD,
            "stability_judge": WORD,
            "objective_weights": [1.0, (1, 1), (1, NAN, 1), (1, -1, 1), "abc", None, (True, 1, 1)],
            "skip_unplaceable": FLAG,
            "order": WORD,
            "include": ["z_map", 3, None, ["action_mask"], [3]],
            "backend": WORD,
            "incremental": FLAG,
            "device": ["tpu", 3, None],
            "seed": SEED,
            "first_env": [*WHOLE, -1],
            "copy_observations": FLAG,
            "walls": FLAG,
            "friction": [-0.1, NAN, INF, None, "abc", True],
        },
    ),
    "MarineNavEnv": (
        lambda **changes: MarineNavEnv(**{"num_envs": 2, "pool": 2, "device": "cpu", "seed": 0} | changes),
        {
            "num_envs": [*COUNT, HUGE],
            "version": WORD,
            "robots": [2.5, NAN, True, "3", 0, -1, HUGE],
            "cores": [2.5, NAN, True, "3", -1, HUGE],
            "obstacles": [2.5, NAN, True, "3", -1, HUGE],
            "min_distance": [NAN, INF, -1.0, 1e9, "40", True],
            "curriculum": ["papers", 3, [], [3], *([row] for row in ROWS)],
            "max_steps": COUNT,
            "actions": WORD,
            "upstream_compat": ["late_limit", 3, None, ["slow"], [3]],
            "end_on_collision": FLAG,
            "sensor_noise": FLAG,
            "pool": [*COUNT, HUGE],
            "in_order": FLAG,
            "flat": [*FLAG, True],
            "dtype": ["float16", torch.int64, 3, None],
            "device": ["tpu", 3, None],
            "seed": SEED,
            "first_env": [*WHOLE, -1],
            "copy_observations": FLAG,
        },
    ),
    "RandomBoxes": (
        lambda **changes: RandomBoxes(**changes).build(BIN, "yaw", 10, 1),
        {"min_side": [*COUNT, 6], "max_side": [*COUNT, 1, 11, 10**6, HUGE], "step": [*COUNT, HUGE]},
    ),
    "CutBoxes": (
        lambda **changes: CutBoxes(**{"pool": 2} | changes).build(BIN, "yaw", 10, 1),
        {
            "min_side": [*COUNT, 6, 4],
            "max_side": [*COUNT, 1, HUGE],
            "order": WORD,
            "pool": [*(each for each in COUNT if each is not None), HUGE, 5_000_000],
            "seed": [*SEED, -1],
        },
    ),
    "ProceduralSolids": (
        lambda **changes: ProceduralSolids(**{"num_objects": 2} | changes).build(
            Bin((0.4, 0.4, 0.3), (20, 20)), "fixed", 10, 1
        ),
        {
            "num_objects": [*COUNT, HUGE],
            "min_size": [*REAL, 1.0],
            "max_size": [*REAL, 0.01, 1e6],
            "scale": [1.0, (1,), (0, 1), (2, 1), (NAN, 1), "ab", None, (1, INF)],
            "seed": [*SEED, -1],
            "shapes": ["bowl", 3, [], ["cup"], [3]],
        },
    ),
    "MeshItems": (
        lambda **changes: MeshItems(**{"path": "nowhere.stl", "device": "cpu"} | changes),
        {
            "path": [3, None, [3], "nowhere.stl"],
            "unit": WORD,
            "scale": [1.0, (1,), (0, 1), (2, 1), (NAN, 1), "ab", None],
            "num_scales": [*COUNT, HUGE],
            "skip_invalid": FLAG,
            "cache": [3, True],
            "device": ["tpu", 3],
            "seed": [*SEED, -1],
        },
    ),
    "BoxSequences": (
        lambda **changes: BoxSequences(**{"path": "nowhere.npy"} | changes),
        {
            "path": [3, None, "nowhere.npy", "nowhere"],
            "unit": WORD,
            "in_order": FLAG,
            "misfits": WORD,
            "columns": [3, ["length"], {"length": "L"}],
        },
    ),
}


def test_no_argument_is_left_out() -> None:
    for name, (_, table) in BAD.items():
        assert set(table) == set(inspect.signature(globals()[name].__init__).parameters) - {"self"}, name


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is refused for want of memory must be so on any machine.
    monkeypatch.setattr("torchrl_gpu.envs.memory.free_bytes", lambda device: 2**34)
    make, table = BAD[name]
    for argument, value in ((argument, value) for argument, values in table.items() for value in values):
        try:
            made = make(**{argument: value})
        except (ValueError, FileNotFoundError) as error:
            line = str(error)
        else:
            pytest.fail(f"{argument} {value!r} makes {made}")
        where, _, rest = line.partition(": ")
        assert where, (argument, value)
        assert any(words in rest for words in ("; got ", ", not ", "there is no")), line
        assert "\n" not in line
        assert len(line) < 400


@pytest.mark.parametrize("kind", [np.int64, np.float32, float, torch.tensor, np.array])
def test_numbers_of_other_packages_and_whole_floats_are_numbers(kind: Callable[[int], Any]) -> None:
    env = PackingEnv(
        kind(2), bin_size=np.array([8, 8, 8]), resolution=kind(8), grid_step=kind(2), num_items=kind(6),
        visible_items=kind(2), seed=kind(3), first_env=kind(1), device="cpu", items=RandomBoxes(kind(2), kind(4)),
    )  # fmt: skip
    twin = PackingEnv(
        2, bin_size=(8.0, 8.0, 8.0), resolution=8, grid_step=2, num_items=6, visible_items=2, seed=3, first_env=1,
        device="cpu", items=RandomBoxes(2, 4),
    )  # fmt: skip
    assert (env.reset() == twin.reset()).all()
    for name in ("num_envs", "resolution", "grid_step", "num_items", "visible_items", "seed", "first_env"):
        assert type(getattr(env, name)) is int
        assert getattr(env, name) == getattr(twin, name)
    assert MarineNavEnv(kind(1), robots=kind(1), pool=kind(2), max_steps=kind(5), device="cpu").num_robots == 1


# -- what a source of somebody else's builds --------------------------------------------------------------------------


class Given(ItemSource):
    def __init__(self, catalogue: Any, stream: Any) -> None:
        self.built = catalogue, stream

    def build(
        self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int
    ) -> tuple[Catalogue, ItemSequences]:
        return self.built


def solids() -> Catalogue:
    top, bottom = torch.ones(2, 1, 3, 2), torch.zeros(2, 1, 3, 2)
    return Catalogue.of_maps(top, bottom, torch.tensor([[[2, 2]], [[3, 1]]]), torch.tensor([4.0, 3.0]))


SEQUENCES = torch.tensor([[0, 1, -1], [1, 1, 0]])
# types, shapes and extents are the catalogue's own: see packing/test_types.py
BUILT: list[tuple[Callable[[], Any], Any, str]] = [
    (lambda: None, SEQUENCES, "`build` must return a Catalogue and ItemSequences, not None and "),
    (lambda: replace(solids(), volume=torch.tensor([NAN, 3.0])), SEQUENCES, "volume must be from 0 to .*; got nan at"),
    (lambda: replace(solids(), height=torch.tensor([[-1.0], [1.0]])), SEQUENCES, "height must be from 0 to .*; got -1"),
    (
        lambda: replace(solids(), bottom=torch.full((2, 1, 3, 2), NAN)),
        SEQUENCES,
        "bottom must be from 0 to inf; got nan",
    ),
    (lambda: replace(solids(), centre=torch.full((2, 1, 2), NAN)), SEQUENCES, "centre must be finite; got nan at"),
    (solids, torch.tensor([[0, 2]]), r"sequences must be from -1 to 1; got 2 at \[0, 1\]"),
    (solids, torch.tensor([[0, -2]]), r"sequences must be from -1 to 1; got -2 at \[0, 1\]"),
    (solids, torch.tensor([0, 1]), r"sequences must have shape \(1, 1\); got \(2,\)"),
    (solids, SEQUENCES.int(), "sequences must be of dtype int64; got int32"),
]


@pytest.mark.parametrize(("catalogue", "sequences", "message"), BUILT, ids=[message for *_, message in BUILT])
def test_what_a_source_built_is_looked_at(catalogue: Callable[[], Any], sequences: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^Given\.build: {message}"):
        PackingEnv(2, items=Given(catalogue(), PooledSequences(sequences)), orientations="fixed", device="cpu")


def test_what_is_right_is_taken(tmp_path: Path) -> None:
    env = PackingEnv(2, items=Given(solids(), PooledSequences(SEQUENCES)), orientations="fixed", device="cpu", seed=0)
    assert env.rollout(3, break_when_any_done=False)["next", "num_packed"].max() <= 3
