"""Random lists that are packed and judged by two engines."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks import random_lists
from torchrl_gpu.palletizing.packing import pack, read_orders

pytest.importorskip("mujoco")
HAS_BULLET = importlib.util.find_spec("pybullet") is not None
ENGINES = ["mujoco", pytest.param("bullet", marks=pytest.mark.skipif(not HAS_BULLET, reason="wants PyBullet"))]


def test_list_of_a_number_is_always_the_same(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        random_lists.write_list(tmp_path / name, 3)
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    random_lists.write_list(tmp_path / "c.csv", 4)
    assert (tmp_path / "a.csv").read_text() != (tmp_path / "c.csv").read_text()


@pytest.mark.parametrize("engine", ENGINES)
def test_engine_sees_what_stands_and_what_falls(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("length mm,width mm,height mm,weight kg,qty\n400,300,200,5,16\n", encoding="utf-8")
    plans = pack(read_orders(path), "eur", device="cpu")
    judge = random_lists.ENGINES[engine]
    assert judge(plans) == [0]
    corner = plans.placed.corner.copy()
    # The last box of the upper layer stands beside the load, in the air.
    corner[-1, 0] += 0.5
    assert judge(plans._replace(placed=plans.placed._replace(corner=corner))) == [1]


def test_rows_are_measured_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(random_lists, "_LISTS_A_ROW", 1)
    output = tmp_path / "lists.json"
    run = ["--engines", "mujoco", "--output", str(output)]
    random_lists.main(["--lists", "1", *run])
    first = json.loads(output.read_text())["rows"]
    random_lists.main(["--lists", "2", *run])
    rows = json.loads(output.read_text())["rows"]
    assert rows[:1] == first
    assert [row["first"] for row in rows] == [0, 1]
    assert f"lists: {2}" in capsys.readouterr().out
    assert all(row["pallets that lose boxes in mujoco"] == 0 for row in rows)
