"""Places for the boxes of one sequence, as RoboBPP's board wants them.

It writes `action.json`, a list of [rotation, x, y], and `planning_time.json`, seconds for each of them:

python main.py --data occupancy --setting 2 --sequences data_occupancy_0.pt --output result

The names of the options and of the data are those of the board's sample script `code/PCT-port`. Models and rules are
those of `settings.json` in the folder of this script.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

import numpy as np
import torch
from numpy._core import multiarray
from tensordict import TensorDictBase
from torchrl.envs.utils import step_mdp

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items.source import ItemSource, PooledSequences
from torchrl_gpu.envs.packing.physics.creep import Exposure, Footprint
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.envs.packing.types import Bin, Catalogue
from torchrl_gpu.policies import AgentSpace, PackingPolicy
from torchrl_gpu.policies.packing.placement_values import LinearPlacementValues
from torchrl_gpu.policies.packing.planners.free_places import FreePlaces

HERE = Path(__file__).parent
Policy = PackingPolicy | FreePlaces
# Settings of the board: 1 is Math Pack, 2 is Physics Pack, 3 is Execution Pack.
MATH = 1
SETTINGS = (1, 2, 3)
CELL_M = 0.01
_ROUNDING = 1e-6
# What a file may name that holds arrays or numbers of NumPy, by the names of NumPy 1 and 2.
NUMPY_TYPES: list[object] = [np.ndarray, np.dtype]
NUMPY_TYPES += [type(np.dtype(name)) for name in ("float32", "float64", "int64")]
for _core in ("core", "_core"):
    for _name in ("_reconstruct", "scalar"):
        NUMPY_TYPES.append((getattr(multiarray, _name), f"numpy.{_core}.multiarray.{_name}"))


class Looking(TypedDict):
    """How free places count, in `settings.json`."""

    weight: float
    # Sides of the boxes that look for a place.
    probes_cm: list[list[float]]


class PackSettings(TypedDict):
    """Model and rule of a pack, in `settings.json`."""

    model: str
    rule: dict[str, float | str]
    # Metres.
    clearance: NotRequired[float]
    # Levels times boxes at which a plan ends.
    exposure: NotRequired[float]
    free_places: NotRequired[Looking]


class DataSettings(TypedDict):
    """What `settings.json` says of one of the data."""

    protocol: str
    container_cm: list[int]
    math: PackSettings
    physics: PackSettings


class Action(NamedTuple):
    """Where a box goes, in cells of one centimetre.

    Attributes:
        rotation: 1 if it is turned about the vertical, so that its width lies along x; else 0.
        x, y: Its lowest corner.
    """

    rotation: int
    x: int
    y: int


class GivenBoxes(ItemSource):
    """The boxes of one sequence.

    Args:
        sides: True length, width and height, metres, (T, 3).
        cells: The same as the board rounds them, centimetres, see `board_cells`.
        clearance: Metres that stay free at least behind each box along x and y, where the container has room for them.
    """

    unit = "cm"

    def __init__(self, sides: np.ndarray, cells: np.ndarray, clearance: float = 0.0) -> None:
        self.sides = sides.astype(np.float64)
        self.cells = cells.astype(np.float64)
        self.clearance = clearance

    def build(
        self, bin_: Bin, orientations: str | float, num_items: int, num_envs: int
    ) -> tuple[Catalogue, PooledSequences]:
        cells = self._with_clearance(bin_)
        turned = np.stack([cells, cells[:, [1, 0, 2]]], 1)
        turned[..., 2] *= CELL_M
        volume = torch.from_numpy(self.sides.prod(1))
        catalogue = Catalogue.of_boxes(torch.from_numpy(turned), volume)
        rows = torch.arange(len(self.sides), device="cpu")[None, :num_items]
        return catalogue, PooledSequences(rows, in_order=True)

    def _with_clearance(self, bin_: Bin) -> np.ndarray:
        """Return sides in cells, with the clearance where the bin has room for it."""
        roomy = self.cells.copy()
        along = np.ceil((self.sides[:, :2] + self.clearance) / CELL_M - _ROUNDING)
        # The board may count a cell more than a side needs, and the bin is longer by the cells that are kept.
        roomy[:, :2] = np.maximum(along, self.cells[:, :2] + whole_cells(self.clearance))
        straight = (roomy[:, :2] <= bin_.cells).all(1)
        across = (roomy[:, 1::-1] <= bin_.cells).all(1)
        return np.where((straight | across)[:, None], roomy, self.cells)


class BoardHeights:
    """Heightmap as the board keeps it: centimetres in single precision.

    The board refuses a box whose top is above the container by a rounding error, and then ends the run. Our own map
    forgives rounding errors, so that a box which ends exactly at the top has to be checked by the board's arithmetic.
    """

    def __init__(self, env: PackingEnv) -> None:
        self.most = round(100 * env.bin.size[2])
        self.heights = np.zeros(env.bin.cells, dtype=np.float32)

    def base(self, action: Action, cells: np.ndarray) -> float:
        """Height of the base of a box that is put somewhere, centimetres."""
        return float(self.heights[self._window(action, cells)].max())

    def top(self, action: Action, cells: np.ndarray) -> np.floating:
        """Height of the top of a box that is put somewhere, centimetres."""
        # The sum of two numbers of NumPy, in the precision that the board adds them in.
        top: np.floating = self.heights[self._window(action, cells)].max() + cells[2]
        return top

    def allows(self, action: Action, cells: np.ndarray) -> bool:
        return bool(self.top(action, cells) <= self.most)

    def add(self, action: Action, cells: np.ndarray) -> None:
        self.heights[self._window(action, cells)] = self.top(action, cells)

    @staticmethod
    def _window(action: Action, cells: np.ndarray) -> tuple[slice, slice]:
        length, width = cells[:2].astype(int).tolist()
        if action.rotation:
            length, width = width, length
        return slice(action.x, action.x + length), slice(action.y, action.y + width)


def read_sequence(path: Path) -> np.ndarray:
    """Read the sides of boxes, metres, (T, 3), in the precision of the file.

    The file is a `.pt` of {"data": sizes}, as the board has them, or a `.json` of the same or of the sizes alone. Rows
    of zeros are left out.

    Raises:
        ValueError: The file holds no sizes.
    """
    if path.suffix == ".json":
        read = json.loads(path.read_text(encoding="utf-8"))
    else:
        with torch.serialization.safe_globals(NUMPY_TYPES):
            read = torch.load(path, weights_only=True)
    sizes = read["data"] if isinstance(read, dict) else read
    sides = sizes.numpy() if isinstance(sizes, torch.Tensor) else np.array(sizes)
    if not np.issubdtype(sides.dtype, np.floating):
        sides = sides.astype(np.float64)
    if sides.ndim != 2 or sides.shape[1] != 3 or not np.isfinite(sides).all():
        raise ValueError(f"{path}: sizes must be rows of length, width and height in metres, not {sides.shape}")
    return sides[sides.sum(1) != 0]


def whole_cells(clearance: float) -> int:
    """Return a clearance in cells, or 0 if they are not whole."""
    cells = round(clearance / CELL_M)
    return cells if abs(clearance - cells * CELL_M) < _ROUNDING else 0


def board_cells(sides: np.ndarray) -> np.ndarray:
    """Sides in centimetres as the board rounds them, (T, 3).

    Length and width are rounded up, and the height to one digit. The quotient is rounded up with its rounding error:
    0.07 m becomes eight cells in double precision. The judge lays boxes out by these numbers, so that it must be the
    same ones here.
    """
    cells = np.ceil(sides / CELL_M)
    cells[:, 2] = np.round(sides[:, 2] / CELL_M, 1)
    return cells


def pack(sides: np.ndarray, data: str, setting: int) -> tuple[list[Action], list[float]]:
    """Pack boxes (T, 3), metres, one at a time, until one has no place.

    Args:
        sides: Of the boxes in their order.
        data: "time_series", "occupancy" or "flat_long".
        setting: 1, 2 or 3.

    Returns:
        Actions, and the seconds from the moment that a box is seen until its place is known.
    """
    settings: dict[str, DataSettings] = json.loads((HERE / "settings.json").read_text(encoding="utf-8"))
    chosen = settings[data]
    cells = board_cells(sides)
    number = _num_fitting(cells, chosen["container_cm"])
    if number == 0:
        return [], []
    begin = time.perf_counter()
    pack_settings = chosen["math"] if setting == MATH else chosen["physics"]
    env = _make_env(sides[:number], cells[:number], chosen, pack_settings)
    policy = _make_policy(env, pack_settings)
    # The first call takes longer: memory is found, and kernels are chosen.
    policy(env.reset())
    print(f"model and environment: {time.perf_counter() - begin:.2f} s")
    exposed_up_to = pack_settings.get("exposure", math.inf)
    actions = []
    times = []
    with torch.no_grad():
        for action, seconds in _decisions(env, policy, cells, exposed_up_to):
            actions.append(action)
            times.append(seconds)
    return actions, times


def _num_fitting(cells: np.ndarray, container: list[int]) -> int:
    """Number of boxes before the first that fits the empty container in no turn."""
    straight = (cells <= container).all(1)
    turned = (cells[:, [1, 0, 2]] <= container).all(1)
    return int(np.cumprod(straight | turned).sum())


def _make_env(sides: np.ndarray, cells: np.ndarray, of_data: DataSettings, of_pack: PackSettings) -> PackingEnv:
    """Make the environment of a sequence.

    At the far sides of the container no neighbour can come, so that its bin is longer by a clearance of whole cells.
    """
    clearance = of_pack.get("clearance", 0.0)
    kept = whole_cells(clearance)
    length, width, height = of_data["container_cm"]
    along_x = length + kept
    along_y = width + kept
    size = (along_x * CELL_M, along_y * CELL_M, height * CELL_M)
    items = GivenBoxes(sides, cells, clearance)
    return make_protocol(
        of_data["protocol"],
        1,
        bin_size=size,
        resolution=(along_x, along_y),
        items=items,
        num_items=len(sides),
        include=("z_map",),
        device="cpu",
        **of_pack["rule"],
    )


def _make_policy(env: PackingEnv, of_pack: PackSettings) -> Policy:
    """Load the policy of a pack, which may look at the places that probe boxes find."""
    policy = PackingPolicy.from_pretrained(HERE / of_pack["model"], "cpu", space=AgentSpace.of(env))
    look = of_pack.get("free_places")
    if look is None:
        return policy
    sides = np.array(look["probes_cm"], dtype=np.float64)
    probes, _ = GivenBoxes(CELL_M * sides, sides).build(env.bin, "yaw", len(sides), 1)
    assert isinstance(policy.tables, LinearPlacementValues)
    return FreePlaces(env, policy.tables, probes, weight=look["weight"])


def _decisions(
    env: PackingEnv, policy: Policy, cells: np.ndarray, exposed_up_to: float
) -> Iterator[tuple[Action, float]]:
    """Yield the action for each box, and the seconds that it took.

    The plan ends before the pile would be exposed to creep more than so much.
    """
    heights = BoardHeights(env)
    exposure = Exposure(env.bin.cells)
    begin = time.perf_counter()
    shown = env.reset()
    for box in cells:
        if exposure.after() > exposed_up_to:
            return
        action = _choose(env, policy, shown, heights, box)
        if action is None:
            return
        length, width = box[:2].astype(int).tolist()
        if action.rotation:
            length, width = width, length
        base = CELL_M * heights.base(action, box)
        exposure.add(Footprint(action.x, action.y, length, width, base, CELL_M * float(box[2])))
        heights.add(action, box)
        yield action, time.perf_counter() - begin
        # What the policy sees of the next box is a part of its decision.
        begin = time.perf_counter()
        stepped = env.step(shown)
        if stepped["next", "done"].item():
            return
        shown = step_mdp(stepped)


def _choose(
    env: PackingEnv, policy: Policy, shown: TensorDictBase, heights: BoardHeights, box: np.ndarray
) -> Action | None:
    """The policy's best action of those that the board allows.

    It is left in `shown`, too. None if there is none.
    """
    while shown["action_mask"].any():
        index = int(policy(shown)["action"])
        _, rotation, x, y = np.unravel_index(index, env.action_shape)
        action = Action(int(rotation), int(x), int(y))
        if heights.allows(action, box):
            return action
        shown["action_mask"][0, index] = False
    return None


def main() -> None:
    """Read a sequence, pack it, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", required=True, choices=("time_series", "occupancy", "flat_long"))
    add("--setting", type=int, default=1, choices=SETTINGS, help="1: Math Pack; 2, 3: under gravity")
    add("--sequences", type=Path, required=True, help="a file, or the folder of data_NAME_NUMBER.pt")
    add("--test_data_config", type=int, default=0, help="number of the file in that folder")
    add("--output", type=Path, default=Path(), help="folder of action.json and planning_time.json")
    args = parser.parse_args()
    path = args.sequences
    if path.is_dir():
        path = path / f"data_{args.data}_{args.test_data_config}.pt"
    torch.set_num_threads(1)
    actions, times = pack(read_sequence(path), args.data, args.setting)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "action.json").write_text(json.dumps(actions), encoding="utf-8")
    (args.output / "planning_time.json").write_text(json.dumps(times), encoding="utf-8")
    print(f"{len(actions)} boxes packed, {1000 * np.mean(times or 0):.1f} ms a box")


if __name__ == "__main__":
    main()
