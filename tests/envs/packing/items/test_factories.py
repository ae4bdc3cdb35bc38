"""Boxes of the three factories.

They are those of the files, in the container, drawn as they came or were sold.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from torchrl_gpu.envs.packing.items import FactoryBoxes
from torchrl_gpu.envs.packing.protocols import BOARD, PALLETS, make_protocol, protocol_of
from torchrl_gpu.envs.packing.types import Bin
from torchrl_gpu.evaluation.packing.protocols import SUITE_HASHES, ProtocolSuite

BIN = Bin((1.2, 1.0, 1.7), (120, 100))
SALES = ["商品code", "尺寸（L）", "尺寸（W）", "尺寸（H）", "占比"]
# A good of no size, and 10 of falling share that are as wide as their number.
GOODS = [["none", 0, 3, 4, 0.5], *([f"{i}", 30.5, i, 20.04, 0.1 - i / 1000] for i in range(1, 11))]
PICKED = ["PO Number", "Pick_quantity_cs", "Length_cm", "Width_cm", "Height_cm"]
PICKS = [["a", "2", str(20 + i), "19.1", "17"] for i in range(12)]
BOARDS = "95 60 9\n277 40 8.5\n\n46 232 8.5\n"


def table(path: Path, rows: list[list[object]]) -> None:
    openpyxl = pytest.importorskip("openpyxl", reason="writes Excel files")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    book.save(path)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of a small package of the same name, which says so if it is imported."""
    (tmp_path / "packsim" / "data" / "flat_long").mkdir(parents=True)
    (tmp_path / "packsim" / "__init__.py").write_text("raise AssertionError('imported')")
    for split in ("train", "test"):
        (tmp_path / "packsim" / "data" / "flat_long" / f"opai_{split}.txt").write_text(BOARDS)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "packsim" / "data"


def drawn(source: FactoryBoxes, bin_: Bin, number: int, length: int = 8) -> np.ndarray:
    """True sides (number, length, 3) of the first boxes of episodes."""
    _, sequences = source.build(bin_, "yaw", length, 1)
    row = torch.arange(number)
    key = sequences.begin(7, row, torch.zeros_like(row))
    items = sequences.items(key, torch.arange(length).expand(number, -1))
    assert sequences.items(key, torch.full((number, 1), sequences.length)).eq(-1).all()
    return source.true_sides(bin_)[items.numpy()]


def test_boards_that_fit_are_drawn_alike(installed: Path) -> None:
    env = make_protocol("boards", 2, device="cpu", seed=1)
    assert env.catalogue.extent.tolist() == [[[46, 232], [232, 46]], [[95, 60], [60, 95]]]
    assert env.catalogue.height[:, 0].tolist() == pytest.approx([0.085, 0.09])
    assert env.catalogue.volume.tolist() == pytest.approx([0.46 * 2.32 * 0.085, 0.95 * 0.6 * 0.09])
    assert env.items.label(1, env.bin) == {"item": 1, "sides": [95.0, 60.0, 9.0]}
    assert protocol_of(env) == "boards"
    found = drawn(FactoryBoxes("boards", "test"), env.bin, 200)
    assert 0.45 < (found[..., 0] == 95).mean() < 0.55
    # They are of the same rows and seed.
    assert drawn(FactoryBoxes("boards"), env.bin, 200).tolist() == found.tolist()


def test_goods_are_drawn_by_their_share_and_every_fifth_is_for_tests(installed: Path) -> None:
    table(installed / "occupancy" / "deli.xlsx", [SALES, *GOODS])
    train, test = FactoryBoxes("diverse"), FactoryBoxes("diverse", "test")
    assert test.sides.tolist() == [[30.5, 1, 20.0], [30.5, 6, 20.0]]
    assert sorted([*train.sides[:, 1], *test.sides[:, 1]]) == list(range(1, 11))
    widths = drawn(test, BIN, 500)[..., 1]
    assert (widths == 1).mean() == pytest.approx(0.099 / (0.099 + 0.094), abs=0.03)
    catalogue, _ = test.build(BIN, "yaw", 8, 1)
    assert catalogue.extent[0].tolist() == [[31, 1], [1, 31]]
    assert catalogue.volume[0].item() == pytest.approx(0.305 * 0.01 * 0.2)


def test_picks_come_in_the_order_of_the_file(installed: Path) -> None:
    table(installed / "time_series" / "pg_train.xlsx", [PICKED, *PICKS])
    found = drawn(FactoryBoxes("repetitive"), BIN, 300, length=5)[..., 0]
    assert (np.diff(found, axis=1) == 1).all()
    # Of 12 rows runs of 5 begin at 8 places.
    assert set(found[:, 0]) == set(range(20, 28))


def test_clearance_stays_free_behind_boxes_that_have_room(installed: Path) -> None:
    container = Bin((2.5, 1.2, 1.0), (250, 120))
    source = FactoryBoxes("boards", "test", clearance=0.2)
    catalogue, _ = source.build(container, "yaw", 8, 1)
    # A board of 232 cm has no room for 20 more in 250.
    assert catalogue.extent.tolist() == [[[46, 232], [232, 46]], [[115, 80], [80, 115]]]
    assert catalogue.volume.tolist() == pytest.approx([0.46 * 2.32 * 0.085, 0.95 * 0.6 * 0.09])
    assert source.true_sides(container).tolist() == [[46, 232, 8.5], [95, 60, 9.0]]


def test_what_rounding_leaves_counts_towards_a_clearance(installed: Path) -> None:
    container = Bin((2.5, 1.2, 1.0), (125, 60))
    # In cells of 2 cm a board of 95 x 60 cm has 1 cm to spare along x, and none along y.
    for clearance, wanted in ((0.0, [48, 30]), (0.01, [48, 31]), (0.011, [49, 31])):
        catalogue, _ = FactoryBoxes("boards", "test", clearance).build(container, "yaw", 8, 1)
        assert catalogue.extent[1, 0].tolist() == wanted


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([SALES[:-1], *GOODS], "column 占比 .*占比"),
        ([SALES, GOODS[0]], "three positive sides"),
        (
            [SALES, ["a", "wide", 3, 4, 1.0], ["b", 2, 1e9, 4, 1.0]],
            "diverse .* 120 × ",
        ),
    ],
)
def test_files_of_another_kind_are_refused(installed: Path, rows: list[list[object]], wanted: str) -> None:
    table(installed / "occupancy" / "deli.xlsx", rows)
    with pytest.raises(ValueError, match=f"FactoryBoxes: .*{wanted}"):
        FactoryBoxes("diverse", "test").build(BIN, "yaw", 8, 1)


def test_what_is_missing_is_named(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"time_series/pg_test.xlsx.* packsim 0.0.4"):
        FactoryBoxes("repetitive", "test")
    with pytest.raises(ValueError, match=r"orientations .*yaw.*'cube'"):
        make_protocol("boards", 1, device="cpu", orientations="cube")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"packsim.*\[robobpp\]"):
        FactoryBoxes("boards")


@pytest.mark.skipif(importlib.util.find_spec("packsim") is None, reason="wants the extra robobpp")
@pytest.mark.parametrize("name", PALLETS)
def test_the_suites_of_the_installed_package_have_their_hashes(name: str) -> None:
    suite = ProtocolSuite(name, device="cpu")
    assert suite.num_episodes == (22 if name == BOARD else 30)
    assert suite.sequence_hash() == SUITE_HASHES[name]
