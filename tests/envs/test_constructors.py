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

NAN = float("nan")
INF = float("inf")
HUGE = 10**12
BIN = Bin((10.0, 10.0, 10.0), (10, 10))
WHOLE: list[object] = [2.5, NAN, INF, True, "3", None, 3j, [3], 1e300, 10**400, torch.ones(2)]
COUNT = [*WHOLE, 0, -1]
FLAG: list[object] = [1, 0, "yes", None, [True], NAN]
WORD: list[object] = ["glue", "", 3, None, ["none"], True]
SEED: list[object] = [2.5, "a", True, 2**63, NAN, [1]]
ROWS = (0, 1, 2), (0, 1.5, 0, 0, 10), (0, 1, 0, 0, NAN), (5, 1, 0, 0, 9)
REAL: list[object] = [NAN, INF, -1.0, 0, "1", True, 10**400, [1.0]]

Make = Callable[..., object]
Table = dict[str, list[object]]
BAD: dict[str, tuple[Make, Table]] = {}

PACKING_ENV: Table = {}
PACKING_ENV["num_envs"] = [*COUNT, HUGE]
PACKING_ENV["bin_size"] = [10.0, None, (10, 10), (10, 10, NAN), (1e30, 1e30, 1e30), (1e-9, 1, 1), "abc", (True, 10, 10)]
PACKING_ENV["resolution"] = [0, -1, 2.5, NAN, (10, 0), (10,), None, "10", 10**9, 10**400, True]
PACKING_ENV["grid_step"] = [*COUNT, 11]
PACKING_ENV["items"] = ["", "nowhere.npy", 3, None, ["random"]]
PACKING_ENV["num_items"] = [*COUNT, HUGE, 2**31 - 1]
PACKING_ENV["visible_items"] = [*COUNT, HUGE, 2**31 - 1]
PACKING_ENV["orientations"] = [1, 0, -90, 7, NAN, INF, True, None, "spin", 10**400, [90], 1e-300]
PACKING_ENV["stability"] = WORD
PACKING_ENV["margin"] = [-0.1, NAN, INF, None, "abc", True]
PACKING_ENV["max_tilt"] = [-0.1, 46, NAN, INF, None, "abc", True]
PACKING_ENV["bearing_tilt"] = PACKING_ENV["max_tilt"]
PACKING_ENV["fallback"] = [*(each for each in WORD if each is not None), "load_bearing"]
PACKING_ENV["reward"] = WORD
PACKING_ENV["stability_judge"] = WORD
PACKING_ENV["objective_weights"] = [1.0, (1, 1), (1, NAN, 1), (1, -1, 1), "abc", None, (True, 1, 1)]
PACKING_ENV["skip_unplaceable"] = FLAG
PACKING_ENV["order"] = WORD
PACKING_ENV["include"] = ["z_map", 3, None, ["action_mask"], [3]]
PACKING_ENV["backend"] = WORD
PACKING_ENV["incremental"] = FLAG
PACKING_ENV["device"] = ["tpu", 3, None]
PACKING_ENV["seed"] = SEED
PACKING_ENV["first_env"] = [*WHOLE, -1]
PACKING_ENV["copy_observations"] = FLAG
PACKING_ENV["walls"] = FLAG
PACKING_ENV["friction"] = [-0.1, NAN, INF, None, "abc", True]
BAD["PackingEnv"] = (lambda **changes: PackingEnv(**{"num_envs": 2, "device": "cpu", "seed": 0} | changes), PACKING_ENV)

MARINE_NAV_ENV: Table = {}
MARINE_NAV_ENV["num_envs"] = [*COUNT, HUGE]
MARINE_NAV_ENV["version"] = WORD
MARINE_NAV_ENV["robots"] = [2.5, NAN, True, "3", 0, -1, HUGE]
MARINE_NAV_ENV["cores"] = [2.5, NAN, True, "3", -1, HUGE]
MARINE_NAV_ENV["obstacles"] = [2.5, NAN, True, "3", -1, HUGE]
MARINE_NAV_ENV["min_distance"] = [NAN, INF, -1.0, 1e9, "40", True]
MARINE_NAV_ENV["curriculum"] = ["papers", 3, [], [3], *([row] for row in ROWS)]
MARINE_NAV_ENV["max_steps"] = COUNT
MARINE_NAV_ENV["actions"] = WORD
MARINE_NAV_ENV["upstream_compat"] = ["late_limit", 3, None, ["slow"], [3]]
MARINE_NAV_ENV["end_on_collision"] = FLAG
MARINE_NAV_ENV["sensor_noise"] = FLAG
MARINE_NAV_ENV["pool"] = [*COUNT, HUGE]
MARINE_NAV_ENV["in_order"] = FLAG
MARINE_NAV_ENV["flat"] = [*FLAG, True]
MARINE_NAV_ENV["dtype"] = ["float16", torch.int64, 3, None]
MARINE_NAV_ENV["device"] = ["tpu", 3, None]
MARINE_NAV_ENV["seed"] = SEED
MARINE_NAV_ENV["first_env"] = [*WHOLE, -1]
MARINE_NAV_ENV["copy_observations"] = FLAG
BAD["MarineNavEnv"] = (
    lambda **changes: MarineNavEnv(**{"num_envs": 2, "pool": 2, "device": "cpu", "seed": 0} | changes),
    MARINE_NAV_ENV,
)

RANDOM_BOXES: Table = {}
RANDOM_BOXES["min_side"] = [*COUNT, 6]
RANDOM_BOXES["max_side"] = [*COUNT, 1, 11, 10**6, HUGE]
RANDOM_BOXES["step"] = [*COUNT, HUGE]
BAD["RandomBoxes"] = (lambda **changes: RandomBoxes(**changes).build(BIN, "yaw", 10, 1), RANDOM_BOXES)

CUT_BOXES: Table = {}
CUT_BOXES["min_side"] = [*COUNT, 6, 4]
CUT_BOXES["max_side"] = [*COUNT, 1, HUGE]
CUT_BOXES["order"] = WORD
CUT_BOXES["pool"] = [*(each for each in COUNT if each is not None), HUGE, 5_000_000]
CUT_BOXES["seed"] = [*SEED, -1]
BAD["CutBoxes"] = (lambda **changes: CutBoxes(**{"pool": 2} | changes).build(BIN, "yaw", 10, 1), CUT_BOXES)

PROCEDURAL_SOLIDS: Table = {}
PROCEDURAL_SOLIDS["num_objects"] = [*COUNT, HUGE]
PROCEDURAL_SOLIDS["min_size"] = [*REAL, 1.0]
PROCEDURAL_SOLIDS["max_size"] = [*REAL, 0.01, 1e6]
PROCEDURAL_SOLIDS["scale"] = [1.0, (1,), (0, 1), (2, 1), (NAN, 1), "ab", None, (1, INF)]
PROCEDURAL_SOLIDS["seed"] = [*SEED, -1]
PROCEDURAL_SOLIDS["shapes"] = ["bowl", 3, [], ["cup"], [3]]
BAD["ProceduralSolids"] = (
    lambda **changes: ProceduralSolids(**{"num_objects": 2} | changes).build(
        Bin((0.4, 0.4, 0.3), (20, 20)), "fixed", 10, 1
    ),
    PROCEDURAL_SOLIDS,
)

MESH_ITEMS: Table = {}
MESH_ITEMS["path"] = [3, None, [3], "nowhere.stl"]
MESH_ITEMS["unit"] = WORD
MESH_ITEMS["scale"] = [1.0, (1,), (0, 1), (2, 1), (NAN, 1), "ab", None]
MESH_ITEMS["num_scales"] = [*COUNT, HUGE]
MESH_ITEMS["skip_invalid"] = FLAG
MESH_ITEMS["cache"] = [3, True]
MESH_ITEMS["device"] = ["tpu", 3]
MESH_ITEMS["seed"] = [*SEED, -1]
BAD["MeshItems"] = (lambda **changes: MeshItems(**{"path": "nowhere.stl", "device": "cpu"} | changes), MESH_ITEMS)

BOX_SEQUENCES: Table = {}
BOX_SEQUENCES["path"] = [3, None, "nowhere.npy", "nowhere"]
BOX_SEQUENCES["unit"] = WORD
BOX_SEQUENCES["in_order"] = FLAG
BOX_SEQUENCES["misfits"] = WORD
BOX_SEQUENCES["columns"] = [3, ["length"], {"length": "L"}]
BOX_SEQUENCES["options"] = [3, "comma", {"decimal": ","}]
BAD["BoxSequences"] = (lambda **changes: BoxSequences(**{"path": "nowhere.npy"} | changes), BOX_SEQUENCES)


def test_no_argument_is_left_out() -> None:
    for name, (_, table) in BAD.items():
        assert set(table) == set(inspect.signature(globals()[name].__init__).parameters) - {"self"}, name


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What is refused for want of memory must be so on any machine.
    monkeypatch.setattr("torchrl_gpu.envs.memory.free_bytes", lambda device: 2**34)
    make, table = BAD[name]
    cases = []
    for argument, values in table.items():
        cases += [(argument, value) for value in values]
    for argument, value in cases:
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
def test_numbers_of_other_packages_and_whole_floats_are_numbers(kind: Callable[[int], object]) -> None:
    numbers = {"resolution": 8, "grid_step": 2, "num_items": 6, "visible_items": 2, "seed": 3, "first_env": 1}
    others: dict[str, object] = {name: kind(value) for name, value in numbers.items()}
    items = RandomBoxes(kind(2), kind(4))
    env = PackingEnv(kind(2), bin_size=np.array([8, 8, 8]), items=items, device="cpu", **others)
    twin = PackingEnv(2, bin_size=(8.0, 8.0, 8.0), items=RandomBoxes(2, 4), device="cpu", **numbers)
    assert (env.reset() == twin.reset()).all()
    for name in ("num_envs", *numbers):
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
# Types, shapes and extents are the catalogue's own, see packing/test_types.py.
BUILT: dict[str, tuple[Callable[[], Any], Any, str]] = {}
BUILT["nothing"] = (lambda: None, SEQUENCES, "`build` .*Catalogue.* None and ")
BUILT["a volume"] = (lambda: replace(solids(), volume=torch.tensor([NAN, 3.0])), SEQUENCES, "volume .* nan at")
BUILT["a height"] = (lambda: replace(solids(), height=torch.tensor([[-1.0], [1.0]])), SEQUENCES, "height .* -1")
BUILT["a bottom"] = (lambda: replace(solids(), bottom=torch.full((2, 1, 3, 2), NAN)), SEQUENCES, "bottom .* nan")
BUILT["a centre"] = (lambda: replace(solids(), centre=torch.full((2, 1, 2), NAN)), SEQUENCES, "centre .* nan at")
BUILT["an item beyond"] = (solids, torch.tensor([[0, 2]]), r"sequences .*-1 to 1.* 2 at \[0, 1\]")
BUILT["an item before"] = (solids, torch.tensor([[0, -2]]), r"sequences .*-1 to 1.* -2 at \[0, 1\]")
BUILT["one axis"] = (solids, torch.tensor([0, 1]), r"sequences .*\(1, 1\).* \(2,\)")
BUILT["short numbers"] = (solids, SEQUENCES.int(), "sequences .* int64.* int32")


@pytest.mark.parametrize("name", BUILT)
def test_what_a_source_built_is_looked_at(name: str) -> None:
    catalogue, sequences, message = BUILT[name]
    with pytest.raises(ValueError, match=rf"^Given\.build: {message}"):
        PackingEnv(2, items=Given(catalogue(), PooledSequences(sequences)), orientations="fixed", device="cpu")


def test_what_is_right_is_taken(tmp_path: Path) -> None:
    env = PackingEnv(2, items=Given(solids(), PooledSequences(SEQUENCES)), orientations="fixed", device="cpu", seed=0)
    assert env.rollout(3, break_when_any_done=False)["next", "num_packed"].max() <= 3
