"""The progress bar of a run, by hand with a clock of our own, and of small runs."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from tests.standins import Rows, TinyData, TinyEnv, TinyModule
from tests.training import tiny_navigation
from tests.training.tiny import data, fit, module, packing_env, trainer
from tests.training.tiny_navigation import navigation, worlds
from torchrl_gpu.callbacks import EpisodeCheckpoint, FinalTable, NetworkSummary, RunProgress, progress
from torchrl_gpu.callbacks.progress import network_table
from torchrl_gpu.policies import IQN, AgentSpace, PlacementQuantiles, PlacementScores
from torchrl_gpu.policies.packing import baselines
from torchrl_gpu.policies.packing.heuristics import BOTH, DEEPEST, LESS_WASTE, MANAGER, RANDOM, RULE, VALUES, WORKER

SHOWN: dict[str, Any] = {"enable_progress_bar": True, "enable_checkpointing": False}


class Clock:
    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr("tqdm.std.time", clock)
    return clock


class Run:
    def __init__(self, clock: Clock, max_steps: int = 4000) -> None:
        self.clock = clock
        self.bar = RunProgress()
        self.trainer: Any = SimpleNamespace(max_steps=max_steps, global_step=0, is_global_zero=True, loggers=[])
        self.trainer.state, self.trainer.sanity_checking = SimpleNamespace(fn="fit"), False
        self.trainer.progress_bar_metrics = {}
        self.module: Any = SimpleNamespace()
        self.bar._trainer = self.trainer
        self.bar.on_train_start(self.trainer, self.module)

    def step(self, seconds: float, updates: int, **logged: float) -> str:
        self.bar.on_train_batch_start(self.trainer, self.module)
        self.clock.now += seconds
        self.trainer.global_step += updates
        self.trainer.progress_bar_metrics |= {name.replace("_", "/", 1): value for name, value in logged.items()}
        self.bar.on_train_batch_end(self.trainer, self.module)
        return str(self.bar.train_progress_bar)


def test_progress_and_speed_by_hand(clock: Clock) -> None:
    run = Run(clock)
    # The warm-up.
    clock.now += 1000
    # 3992 updates at 4 a second
    assert run.step(2, 8) == "8 of 4,000 updates (0%) 00:02, 16:38 left"
    # 3976 at (0.3 · 16 + 0.7 · 0.3 · 8) / (0.51 · 2), tqdm's average
    assert run.step(2, 16, throughput_env_steps_per_s=800) == (
        "24 of 4,000 updates (1%) 00:04, 10:25 left, env-steps/s=800"
    )
    run.bar.on_train_end(run.trainer, run.module)
    assert run.bar.train_progress_bar.postfix == "env-steps/s=800"


def test_the_bar_moves_at_most_twice_a_second(clock: Clock) -> None:
    run = Run(clock)
    first = run.step(1, 10, train_loss=0.5)
    assert run.step(0.2, 1, train_loss=0.4).partition(", loss")[2] == first.partition(", loss")[2] == "=0.500"
    assert run.step(0.4, 1).endswith("loss=0.400")


def test_validation_is_not_training(clock: Clock) -> None:
    run = Run(clock)
    run.step(1, 10)
    run.bar.on_validation_start(run.trainer, run.module)
    assert str(run.bar.val_progress_bar) == "validating"
    clock.now += 1000
    run.bar.on_validation_end(run.trainer, run.module)
    assert run.step(1, 10) == "20 of 4,000 updates (0%) 00:02, 06:38 left"


def test_figures_in_their_order(clock: Clock) -> None:
    logged = {"train_loss": 0.0042, "train_utilization": 0.7123, "val_utilization": 0.69}
    wanted = "env-steps/s=1,234, utilization=0.712, val/utilization=0.690, loss=4.2e-03"
    assert Run(clock).step(1, 10, **logged, throughput_env_steps_per_s=1234.0).endswith(f"left, {wanted}")


def test_a_run_without_an_end(clock: Clock) -> None:
    assert Run(clock, max_steps=-1).step(2, 42) == "42 updates, 00:02"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_a_run_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    clock.tick = 1.0
    fit(module(), tmp_path, 6, RunProgress(), **SHOWN)
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"0 of 6 updates \(0%\) \d\d:\d\d, \? left, filling the replay", said[0])
    wanted = r"6 of 6 updates \(100%\) \d\d:\d\d, 00:00 left, utilization=0\.\d+.*, loss=.*"
    assert re.fullmatch(wanted, said[-1])
    assert len(said) < 8
    assert not {"\x1b", "\r"} & set("".join(said))


def test_a_run_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    fit(module(), tmp_path, 6, RunProgress(), logger=CSVLogger(str(tmp_path)), **SHOWN)
    shown = terminal.getvalue()
    assert "6 of 6 updates (100%)" in shown
    assert "validating: episodes 1 to 4 of 4" in shown
    assert "loss=" in shown
    assert "val/utilization=" in shown
    assert shown.endswith("\n")


class Breaks(Callback):
    def on_train_batch_end(self, *args: Any) -> None:
        raise RuntimeError("broken")


def test_the_terminal_is_given_back_when_a_run_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    bar, handlers = RunProgress(), logging.getLogger("lightning.pytorch").handlers
    with pytest.raises(RuntimeError, match="broken"):
        fit(module(), tmp_path, 6, bar, Breaks(), **SHOWN)
    assert bar.train_progress_bar.disable
    assert terminal.getvalue().endswith("\n")
    assert logging.getLogger("lightning.pytorch").handlers == handlers


def test_log_lines_stand_above_the_bar(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    terminal = on_terminal(monkeypatch)
    handler = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    try:
        run = Run(clock)
        run.step(1, 1)
        logger.warning("between")
        assert "\rbetween\n" in terminal.getvalue()
        run.bar.teardown(run.trainer, run.module, "fit")
        assert handler in logger.handlers
    finally:
        logger.removeHandler(handler)


class Other(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.layer(batch).square().mean()
        self.log("speed", 0.25, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_module_of_another_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runner = trainer(tmp_path, 8, RunProgress(), **SHOWN)
    runner.fit(Other(), Rows())
    assert capsys.readouterr().out.splitlines()[-1].endswith("speed=0.250")


def test_progress_can_be_switched_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bar = RunProgress()
    bar.disable()
    fit(module(), tmp_path, 4, bar, **SHOWN)
    assert capsys.readouterr().out == ""


def said_by(run: Callable[[Trainer, LightningModule], Any], tmp_path: Path) -> list[str]:
    bar, words = RunProgress(), []
    say = bar.say
    bar.say = lambda text: (words.append(text), say(text))[0]  # type: ignore[method-assign]
    run(trainer(tmp_path, 2, bar, **SHOWN), module())
    return words


def test_evaluations_say_how_far_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = data(batch_size=2)
    tested = said_by(lambda runner, made: runner.test(made, datamodule=few, verbose=False), tmp_path)
    parts = [f"random legal, episodes {first}" for first in ("1 to 2 of 5", "3 to 4 of 5", "5 to 5 of 5")]
    assert tested[:3] == parts
    # The terminal is left to the table.
    assert tested[-1] == ""
    validated = said_by(lambda runner, made: runner.validate(made, datamodule=few, verbose=False), tmp_path)
    assert validated == ["episodes 1 to 2 of 4", "episodes 3 to 4 of 4", ""]


def test_the_final_table_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    fit(module(), tmp_path, 2, RunProgress(), FinalTable(), **SHOWN)
    assert "evaluating: random legal, episodes 1 to 5 of 5" in terminal.getvalue()


def rows(made: nn.Module) -> dict[str, tuple[str, int, str]]:
    columns = [list(column.cells) for column in network_table(made).columns]
    name, kind, size, remark = columns
    sizes = (int(str(each).replace(",", "")) for each in size)
    return dict(zip(map(str, name), zip(map(str, kind), sizes, map(str, remark), strict=True), strict=True))


def num_parameters(made: nn.Module) -> int:
    return sum(p.numel() for p in made.parameters())


def test_an_agent_by_its_network() -> None:
    made = module(agent={"network": partial(PlacementScores, channels=4, blocks=1)})
    (name, network), *parts = rows(made).items()
    assert (name, *network) == ("policy", "PlacementScores", num_parameters(made), "")
    assert [part for part, _ in parts] == ["  stem", "  blocks", "  advantage", "  value"]
    assert sum(size for _, (_, size, _) in parts) == num_parameters(made)


def test_targets_are_told_from_what_is_trained() -> None:
    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.agent = IQN(AgentSpace.of(module().env), network=partial(PlacementQuantiles, channels=4, blocks=1))

    found = rows(Module())
    assert (found["policy"][2], found["target"][2]) == ("", "follows, is not trained")
    assert found["policy"][1] == found["target"][1]


def test_a_packer_by_its_networks() -> None:
    made = tiny_navigation.hierarchical()
    found = rows(made)
    assert {"worker", "manager", "value", "other weights"} <= found.keys()
    assert found["total"][1] == num_parameters(made)
    assert sum(size for name, (_, size, _) in found.items() if name[0] != " ") == 2 * num_parameters(made)
    # The three slopes.
    assert found["other weights"][1] == 3


def test_one_network_by_two_names_counts_once() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 3)
            self.b = nn.Sequential(self.a, nn.Linear(3, 1))

    assert {name: size for name, (_, size, _) in rows(Module()).items()} == {"a": 9, "b": 4, "total": 13}


def test_table_of_the_network_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet: dict[str, Any] = {"enable_model_summary": True, "enable_checkpointing": False}
    made = fit(module(), tmp_path, 2, NetworkSummary(), **quiet)
    shown = capsys.readouterr().out
    assert f"{num_parameters(made):,}" in shown
    assert "Linear" in shown
    assert "FLOPs" not in shown


def test_module_without_weights_has_no_rows() -> None:
    assert network_table(nn.Sequential(nn.ReLU())).rows == []


QUIET: dict[str, Any] = {"enable_checkpointing": False}


def report_in(folder: Path) -> dict[str, Any]:
    report = json.loads((folder / "evaluation.json").read_text())
    for row in report["policies"]:
        del row["decision_ms"]
    return report


def test_final_table_is_that_of_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = fit(module(), tmp_path / "fit", 4, FinalTable(), **QUIET)
    assert "5 episodes" in capsys.readouterr().out
    report = report_in(tmp_path / "fit")
    assert {row["policy"] for row in report["policies"]} == {"DQN", *baselines(packing_env(1))}
    assert {row["num_episodes"] for row in report["policies"]} == {5}
    trainer(tmp_path / "test", **QUIET).test(trained, datamodule=data(), verbose=False)
    assert report_in(tmp_path / "test") == report


def test_a_packer_stands_beside_its_own_contestants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tiny_navigation.hierarchical(), tmp_path, 6, FinalTable(num_episodes=2), **QUIET)  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert "* beyond two standard errors" in shown
    report = report_in(tmp_path)
    names = [row["policy"] for row in report["policies"]]
    assert names == [RANDOM, DEEPEST, RULE, LESS_WASTE, VALUES, WORKER, MANAGER, BOTH]
    assert [row["method"] for row in report["comparison"]] == names
    assert all(name in shown for name in names)
    assert all(0 <= row["stability"] <= 1 for row in report["policies"])


def test_an_untrained_packer_stands_beside_rules_alone(tmp_path: Path) -> None:
    trainer(tmp_path).test(tiny_navigation.hierarchical(), datamodule=data(num_episodes=2), verbose=False)
    rows = {row["method"]: row for row in json.loads((tmp_path / "evaluation.json").read_text())["comparison"]}
    assert list(rows) == [RANDOM, DEEPEST, RULE, LESS_WASTE, VALUES, f"{BOTH} (untrained)"]


def test_the_checkpoint_is_saved_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LightningModule, suite: Any) -> None:
        raise RuntimeError("no table")

    made = module()
    monkeypatch.setattr(type(made), "compare", fail)
    with pytest.raises(RuntimeError, match="no table"):
        fit(made, tmp_path, 2, FinalTable(), EpisodeCheckpoint(str(tmp_path)))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 2


def test_no_table_of_a_trial_run_and_of_one_that_broke_off(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        fit(module(), tmp_path, 4, FinalTable(), Breaks(), **QUIET)
    fit(module(), tmp_path, 4, FinalTable(), fast_dev_run=1, **QUIET)
    assert not (tmp_path / "evaluation.json").exists()


def test_navigators_have_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(navigation("IQN"), tmp_path, 4, FinalTable(num_episodes=2), data_module=worlds(), **QUIET)  # type: ignore[arg-type]
    report = json.loads((tmp_path / "evaluation.json").read_text())
    # One of each row.
    assert report["worlds"]["num_worlds"] == 2
    assert [row["policy"] for row in report["policies"]] == ["IQN", "adaptive IQN"]
    assert "2 worlds" in capsys.readouterr().out


def test_a_module_that_cannot_be_compared(tmp_path: Path) -> None:
    runner = trainer(tmp_path, 2, FinalTable(), **QUIET)
    with pytest.raises(ValueError, match=r"FinalTable: TinyModule .*`compare`"):
        runner.fit(TinyModule(TinyEnv()), datamodule=TinyData())
