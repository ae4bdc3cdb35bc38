"""The benchmark of encoders at equal time in small: what is counted, measured, gone on from and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

from benchmarks import equal_time
from benchmarks.equal_time import ProcessorClock, measured, table_row, with_row
from torchrl_gpu import configs
from torchrl_gpu.cli.lightning_cli import build

SMALL = [
    f"--config={configs.find('dishwashing_video.yaml')}",
    "--model.env.num_envs=4",
    "--model.env.frame_size=[16,16]",
    "--model.env.max_steps=5",
    "--model.batch_size=8",
    "--model.warmup_frames=40",
    "--model.replay.capacity=400",
    "--data.steps_per_epoch=2",
    "--data.num_val_episodes=4",
]


class Clock:
    """A second more at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def process_time(self) -> float:
        self.now += 1.0
        return self.now


def run(folder: Path, clock: ProcessorClock, **options: Any) -> Any:
    model: Any = build("test", SMALL).model
    trainer = Trainer(default_root_dir=folder, logger=False, callbacks=[clock], max_epochs=3, accelerator="cpu")
    trainer.fit(model, build("test", SMALL).datamodule, **options)
    return model


def test_time_in_validation_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equal_time, "time", Clock())
    clock = ProcessorClock([1e9], 4, str(tmp_path / "rows.json"))
    run(tmp_path, clock)
    # Six steps: a look after each is a second; two validations start with one, and what lies within them is left out.
    assert clock.spent == 6 + 3


def test_a_policy_is_measured_when_it_is_time_and_the_run_ends_with_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equal_time, "time", Clock())
    clock = ProcessorClock([2 / 60, 4 / 60], 6, str(tmp_path / "rows.json"))
    model = run(tmp_path, clock)
    assert [each["minutes"] for each in clock.rows] == [2 / 60, 4 / 60]
    assert clock.rows[0]["updates"] < clock.rows[1]["updates"] == model.trainer.global_step
    again = measured(model, 6)
    assert again["what"] == "profit"
    assert again["error"] > 0
    assert {name: clock.rows[1][name] for name in again} == again
    other = ProcessorClock([1.0], 1, "")
    other.load_state_dict(clock.state_dict())
    assert other.state_dict() == clock.state_dict()


def test_a_row_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    after = [{"minutes": 10.0, "updates": 4000, "frames": 9, "what": "profit", "value": 31.25, "error": 0.31}]
    shares = [after[0] | {"what": "utilization", "value": 0.617, "error": 0.004}]
    for name in ("r3d18", "simple2dcnn", "r3d18"):
        equal_time.write_json(path, with_row(path, "encoders", table_row(name, ["--a=1"], 100, after)))
    equal_time.write_json(path, with_row(path, "packing", table_row("PPO", [], 100, shares)))
    encoders, packing = with_row(path, "packing", table_row("PPO", [], 100, shares))["sections"]
    assert [(each["name"], each["options"]) for each in encoders["rows"]] == [
        ("simple2dcnn", "--a=1"),
        ("r3d18", "--a=1"),
    ]
    assert encoders["columns"]["after_10"] == "after 10 min (updates)"
    assert encoders["rows"][0]["after_10"] == "31.2 ± 0.3 EUR (4,000)"
    assert [each["after_10"] for each in packing["rows"]] == ["61.7% ± 0.4% (4,000)"]


def test_rows_of_other_minutes_leave_a_dash(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    one = {"updates": 4000, "frames": 9, "what": "utilization", "value": 0.617, "error": 0.004}
    for name, minutes in (("long", [5.0, 60.0]), ("short", [10.0])):
        after = [one | {"minutes": each} for each in minutes]
        equal_time.write_json(path, with_row(path, "packing", table_row(name, [], 100, after)))
    (table,) = with_row(path, "packing", table_row("short", [], 100, after))["sections"]
    assert [key for key in table["columns"] if "after" in key] == ["after_5", "after_10", "after_60"]
    long, short = table["rows"]
    assert [short["after_5"], long["after_10"], short["after_60"]] == ["–"] * 3
    assert "61.7%" in long["after_60"]
    assert short["cpu"]


@pytest.mark.parametrize("name", ["packing_dqn.yaml", "ppo_packing.yaml", "navigation_iqn.yaml", "ppo_marine.yaml"])
def test_the_rate_of_every_config_can_be_kept(name: str) -> None:
    """An option that the config does not have would end the run before it begins."""
    build("test", [f"--config={configs.find(name)}", *equal_time.constant_rate(name)])
