"""The submission to RoboBPP's board packs as `evaluate` does.

The board's own reading of its files is the reference.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import itertools
import json
import math
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch

from benchmarks.robobpp_physics import Box, boxes_of, pallets
from tests.examples.running import EXAMPLES, printed
from torchrl_gpu.envs.packing.items import FactoryBoxes
from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite
from torchrl_gpu.policies import PackingPolicy
from torchrl_gpu.policies.packing.planners.free_places import known_boxes, probe_boxes

needs_packsim = pytest.mark.skipif(not importlib.util.find_spec("packsim"), reason="wants the extra robobpp")
# Protocol, its name at the board, and a sequence in which no side is rounded up by a rounding error.
SEQUENCES = (("boards", "flat_long", 0), ("repetitive", "time_series", 2), ("diverse", "occupancy", 2))


class Packed(NamedTuple):
    """What the script made of a sequence."""

    protocol: str
    # Number of the sequence.
    first: int
    setting: int
    # Metres, (T, 3).
    sides: np.ndarray
    actions: list[list[int]]
    times: list[float]
    suite: ProtocolSuite


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("submission") / "new"
    printed("robobpp/make_submission.py", str(made))
    return made


def run(folder: Path, data: str, setting: int, sequence: Path) -> tuple[list[list[int]], list[float]]:
    """Run the script of a submission, and read what it wrote."""
    output = sequence.parent / "output"
    words = ["--data", data, "--setting", str(setting), "--sequences", str(sequence), "--output", str(output)]
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["main.py", *words])
        runpy.run_path(str(folder / "main.py"), run_name="__main__")
    torch.set_num_threads(threads)
    actions = json.loads((output / "action.json").read_text(encoding="utf-8"))
    return actions, json.loads((output / "planning_time.json").read_text(encoding="utf-8"))


def run_on(folder: Path, tmp_path: Path, sides: list[list[float]], data: str = "flat_long") -> list[list[int]]:
    """Actions for boxes of these sides, metres."""
    path = tmp_path / "sequence.json"
    path.write_text(json.dumps(sides), encoding="utf-8")
    return run(folder, data, 1, path)[0]


@pytest.fixture(scope="module", params=itertools.product(SEQUENCES, (1, 2)))
def packed(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    (protocol, data, first), setting = request.param
    suite = ProtocolSuite(protocol, 1, first=first, include=("z_map", "future_items"), device="cpu")
    shown = suite.env.reset()
    items = torch.cat([shown["item_id"], shown["future_items"]], 1)[0, : suite.env.num_items]
    sides = suite.env.items.true_sides(suite.env.bin)[items.numpy()] / 100
    path = tmp_path_factory.mktemp("sequence") / f"data_{data}_{first}.pt"
    # As an array, which a file of the board may hold.
    torch.save({"data": sides}, path)
    return Packed(protocol, first, setting, sides, *run(folder, data, setting, path), suite)


@needs_packsim
def test_script_packs_as_the_benchmark_does(packed: Packed, folder: Path) -> None:
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    of_data = next(each for each in settings.values() if each["protocol"] == packed.protocol)
    of_pack = of_data["math"] if packed.setting == 1 else of_data["physics"]
    rule = of_pack["rule"] | boxes_of(packed.protocol, "test", of_pack.get("clearance", 0.0))
    look = of_pack["free_places"]["weight"] if "free_places" in of_pack else 0.0
    exposure = of_pack.get("exposure", math.inf)
    # The plan of the last of these sequences.
    *_, plan = pallets(packed.protocol, packed.protocol, rule, packed.first + 1, look=look, exposure=exposure)
    corners = [cells_of(box) for box in plan.boxes]
    assert [action[1:] for action in packed.actions] == corners
    assert len(packed.times) == len(corners)
    assert min(packed.times) > 0


def cells_of(box: Box) -> list[int]:
    """First cell along x and y."""
    return [round(100 * side) for side in box.corner[:2]]


@needs_packsim
@pytest.mark.parametrize(("protocol", "data"), [("repetitive", "time_series"), ("diverse", "occupancy")])
def test_probes_are_the_boxes_of_the_training_rows(folder: Path, protocol: str, data: str) -> None:
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    items = FactoryBoxes(protocol, "train", settings[data]["physics"].get("clearance", 0.0))
    env = ProtocolSuite(protocol, 1, rule={"items": items}, device="cpu").env
    probes = probe_boxes(known_boxes(env))
    sides = torch.cat([probes.extent[:, 0].double(), 100 * probes.height[:, :1].double()], 1)
    found = settings[data]["physics"]["free_places"]["probes_cm"]
    assert torch.tensor(found).double().allclose(sides, atol=1e-4)
    assert "free_places" not in settings["flat_long"]["physics"]


@needs_packsim
def test_board_reads_and_places_every_box(packed: Packed) -> None:
    judge = Judge(packed)
    tops = [judge.place() for _ in packed.actions]
    assert None not in tops
    # In centimetres, where no height is further from its decimal than single precision lets it.
    env = packed.suite.env
    assert max(tops) <= 100 * env.bin.size[2] + 1e-4


@needs_packsim
def test_boxes_lie_in_the_container_and_apart(packed: Packed) -> None:
    length, width = packed.suite.env.bin.cells
    # Millimetres of height in whole numbers: no rounding errors here.
    heights = np.zeros((length, width), dtype=np.int64)
    whole = np.round(packed.sides * [100, 100, 1000], 6)
    boxes = []
    for (rotation, x, y), (first, second, height) in zip(packed.actions, np.ceil(whole).astype(int), strict=False):
        along, across = (second, first) if rotation else (first, second)
        assert 0 <= x <= length - along
        assert 0 <= y <= width - across
        base = heights[x : x + along, y : y + across].max()
        heights[x : x + along, y : y + across] = base + height
        boxes.append(((x, y, base), (x + along, y + across, base + height)))
    assert heights.max() <= round(1000 * packed.suite.env.bin.size[2])
    for i, (low, high) in enumerate(boxes):
        for other_low, other_high in boxes[:i]:
            assert (np.maximum(low, other_low) >= np.minimum(high, other_high)).any()


def test_boxes_of_a_cell_more_than_they_need_keep_their_clearance_in_the_container(
    folder: Path, tmp_path: Path
) -> None:
    # The board counts 15 cells for 14 cm, and nine such boxes would end a cell outside of 134.
    path = tmp_path / "sequence.json"
    path.write_text(json.dumps([[0.14, 0.14, 0.2]] * 80), encoding="utf-8")
    actions, _ = run(folder, "time_series", 2, path)
    corners = np.array(actions)[:, 1:]
    assert len(corners) > 60
    assert (corners.max(0) + 15 <= [134, 125]).all()
    beside = np.unique(corners[:, 0])
    assert np.diff(beside).min() >= 16


class Judge:
    """packsim's own reading of `action.json`, as far as it runs without OMPL.

    Its functions are taken from the sources of the installed package, whose import needs more than they do.
    """

    def __init__(self, packed: Packed) -> None:
        found = importlib.util.find_spec("packsim")
        assert found is not None
        assert found.submodule_search_locations is not None
        root = Path(found.submodule_search_locations[0])
        names: dict[str, object] = {"np": np, "copy": copy}
        # What drop_box calls for a box: its corner and sides, without the stacks that check_stability follows.
        names["Box"] = lambda x, y, z, lx, ly, lz, _: SimpleNamespace(x=x, y=y, z=z, lx=lx, ly=ly, lz=lz)
        load(root / "packer" / "app.py", ("pack_box",), names)
        space = root / "pct_envs" / "PctDiscrete0" / "space.py"
        load(space, ("update_height_graph", "drop_box", "check_box_true"), names)
        self._pack_box = names["pack_box"]
        self._drop_box = names["drop_box"]
        bin_ = packed.suite.env.bin
        plain = np.zeros(bin_.cells, dtype=np.float32)
        size = np.array([*bin_.cells, round(100 * bin_.size[2])])
        self.space = SimpleNamespace(plain=plain, plain_size=size, height=size[2], check_stability=False, boxes=[])
        self.space.box_vec = np.zeros((len(packed.sides), 9))
        self.space.box_idx = 0
        self.space.update_height_graph = names["update_height_graph"]
        self.space.check_box_true = lambda *given: names["check_box_true"](self.space, *given)
        # As `packsim.main` rounds them.
        self.boxes = np.ceil(packed.sides / 0.01)
        self.boxes[:, 2] = np.round(packed.sides[:, 2] / 0.01, 1)
        self.infos = {"actions": packed.actions, "planning_times": packed.times, "block_index": 0}

    @property
    def next_box(self) -> list[float]:
        length, width, height = self.boxes[self.infos["block_index"]]
        return [int(length), int(width), height]

    def step(self, action: list[int]) -> tuple[None, float, bool, dict[str, object]]:
        """As `PackingDiscrete.step` for an action of three numbers."""
        is_placed = self._drop_box(self.space, self.next_box, action[1:], action[0], 1, 1, [])
        return None, 0.0, not is_placed, {}

    def place(self) -> float | None:
        """Place the next box, and return the height of its top.

        Centimetres, or None where it is refused.
        """
        height = self.next_box[2]
        is_placed, position, _, _, _ = self._pack_box(None, self, self.infos, None, "PCT", None)
        self.infos["block_index"] += 1
        return float(position[2] + height) if is_placed else None


def load(path: Path, names: tuple[str, ...], space: dict[str, object]) -> None:
    """Define functions of a file in a namespace.

    They may be methods. Nothing else of the file runs.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names}
    for node in found.values():
        node.decorator_list = []
    module = ast.Module(body=[found[name] for name in names], type_ignores=[])
    exec(compile(module, str(path), "exec"), space)


@pytest.mark.parametrize("form", ["array", "tensor", "lists", "numbers of NumPy", "single precision"])
def test_sequences_are_read_in_every_form(form: str, folder: Path, tmp_path: Path) -> None:
    sides = np.array([[0.4, 2.0, 0.5], [0.0, 0.0, 0.0], [0.07, 0.2, 0.125]])
    forms: dict[str, object] = {"array": sides, "tensor": torch.from_numpy(sides), "lists": sides.tolist()}
    forms |= {"numbers of NumPy": [tuple(row) for row in sides], "single precision": sides.astype(np.float32)}
    torch.save({"data": forms[form]}, tmp_path / "data_flat_long_5.pt")
    main = runpy.run_path(str(folder / "main.py"), run_name="main")
    read = main["read_sequence"](tmp_path / "data_flat_long_5.pt")
    assert read == pytest.approx(sides[[0, 2]], abs=1e-7)
    # In single precision the quotient of 0.07 and 0.01 is 7.
    side = 7 if form == "single precision" else 8
    assert main["board_cells"](read) == pytest.approx(np.array([[40, 200, 50], [side, 20, 12.5]]))


def test_file_without_sizes_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sizes"):
        run_on(folder, tmp_path, [[1.0, 1.0]])


def test_box_that_the_board_rounds_up_takes_its_cells(folder: Path, tmp_path: Path) -> None:
    # 0.07 / 0.01 is above 7 by a rounding error: 15 of 16 boxes of eight cells lie along 120 cm.
    boxes = [[2.5, 0.07, 0.6]] * 16
    actions = run_on(folder, tmp_path, boxes)
    assert len(actions) == 15
    corners = sorted(y for _, _, y in actions)
    assert np.diff(corners).min() >= 8


@pytest.mark.parametrize(("first", "second", "boxes"), [(0.301, 0.699, 1), (0.591, 0.409, 2)])
def test_box_goes_to_the_top_where_the_board_lets_it(
    folder: Path, tmp_path: Path, first: float, second: float, boxes: int
) -> None:
    # Both sums are 100 cm. In single precision 30.1 is too much by 4e-7, and 59.1 too little.
    assert (float(np.float32(100 * first)) + 100 * second > 100) == (boxes == 1)
    assert len(run_on(folder, tmp_path, [[2.5, 1.2, first], [2.5, 1.2, second]])) == boxes


def test_boxes_behind_one_that_does_not_fit_are_not_packed(folder: Path, tmp_path: Path) -> None:
    assert len(run_on(folder, tmp_path, [[1.0, 1.0, 0.5], [2.6, 0.1, 0.1], [1.0, 1.0, 0.5]])) == 1
    assert run_on(folder, tmp_path, [[2.6, 0.1, 0.1], [1.0, 1.0, 0.5]]) == []
    # Turned it does.
    assert run_on(folder, tmp_path, [[1.0, 2.4, 0.5]])[0][0] == 1


def test_weights_of_ones_own_take_their_place(tmp_path: Path) -> None:
    mine = PackingPolicy.from_pretrained("orders", "cpu")
    mine.save(tmp_path / "mine.safetensors")
    made = tmp_path / "made"
    printed("robobpp/make_submission.py", str(made), "--model", f"diverse-math={tmp_path / 'mine.safetensors'}")
    weights = {}
    for name in ("diverse-math", "diverse-physics"):
        policy = PackingPolicy.from_pretrained(made / "models" / f"{name}.safetensors", "cpu")
        weights[name] = policy.tables.weight
    assert torch.equal(weights["diverse-math"], mine.tables.weight)
    assert torch.equal(weights["diverse-physics"], PackingPolicy.from_pretrained("diverse", "cpu").tables.weight)


def test_tables_where_free_places_are_looked_at_are_refused(tmp_path: Path) -> None:
    mine = tmp_path / "mine.safetensors"
    PackingPolicy.from_pretrained("rs", "cpu").save(mine)
    with pytest.raises(ValueError, match=r"diverse-physics looks at free places.*mine.safetensors holds PatchTables"):
        printed("robobpp/make_submission.py", str(tmp_path / "made"), "--model", f"diverse-physics={mine}")


def test_unknown_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        printed("robobpp/make_submission.py", str(tmp_path / "made"), "--model", "cubes-math=mine.safetensors")
    assert "cubes-math" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_readme_of_the_folder_says_versions(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith((EXAMPLES / "robobpp" / "README.md").read_text(encoding="utf-8"))
    assert f"- torch {torch.__version__.partition('+')[0]}" in text
