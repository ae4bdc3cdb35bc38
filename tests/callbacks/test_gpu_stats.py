"""Figures of the machine: means by hand, and what a run logs.

A GPU that idles gives a warning with its cause.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import GpuStats, Throughput
from torchrl_gpu.callbacks import gpu_stats as gpu_stats_module
from torchrl_gpu.callbacks.device_count import DeviceCount
from torchrl_gpu.callbacks.gpu_stats import UTILIZATION, ProcessReader, idle_message, read_gpu
from torchrl_gpu.system.sections import OUTSIDE

CPU = torch.device("cpu")


def test_a_run_logs_means_of_its_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter((10.0, 30.0, 80.0))
    monkeypatch.setattr(ProcessReader, "__call__", lambda self, device: {"x": next(given)})
    monkeypatch.setattr(gpu_stats_module, "_EVERY_S", 1e-6)
    run = fit(module(), tmp_path, 6, GpuStats(), enable_checkpointing=False, log_every_n_steps=100)
    # The mean is that of all three steps.
    assert float(run.trainer.callback_metrics["machine/x"]) == 40.0


def test_an_error_of_the_driver_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ProcessReader, device: torch.device) -> dict[str, float]:
        raise RuntimeError("no driver")

    monkeypatch.setattr(ProcessReader, "__call__", broken)
    monkeypatch.setattr(gpu_stats_module, "_EVERY_S", 1e-6)
    with pytest.warns(UserWarning, match="the device cannot be asked any more: RuntimeError: no driver") as caught:
        fit(module(), tmp_path, 6, GpuStats(), enable_checkpointing=False)
    assert sum("no driver" in str(each.message) for each in caught) == 1


def test_figures_of_a_gpu_are_in_the_units_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"utilization": 37, "device_memory_used": 3 * 2**29, "power_draw": 250_500, "temperature": 61}
    for name, value in given.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert read_gpu(torch.device("cuda:0")) == {
        UTILIZATION: 37.0,
        "gpu_memory_gib": 1.5,
        "gpu_power_w": 250.5,
        "gpu_temperature_c": 61.0,
    }


def test_figures_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {"monotonic": 10.0, "process_time": 3.0}
    for name in clocks:
        monkeypatch.setattr(f"time.{name}", lambda name=name: clocks[name])
    reader = ProcessReader()
    clocks.update(monotonic=14.0, process_time=5.0)
    found = reader(CPU)
    assert found["cpu_percent"] == 50.0
    assert 0.01 < found["memory_gib"] < 1000


def watching(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> GpuStats:
    """Of three seconds, in which the host's went as `seconds` says."""
    monkeypatch.setattr(gpu_stats_module, "_IDLE_AFTER_S", 3.0)
    monkeypatch.setattr(gpu_stats_module, "running_clock", lambda: SimpleNamespace(read=lambda: dict(seconds)))
    return GpuStats()


def test_an_idle_gpu_is_told_of_once_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"environment": 5.0, "update": 1.0}
    stats = watching(monkeypatch, seconds)
    # This is too little to tell.
    stats.look_for_idling([15.0, 10.0])
    with pytest.warns(UserWarning, match="GpuStats") as caught:
        stats.look_for_idling([14.0])
    matching = [str(each.message) for each in caught]
    (said,) = matching
    assert said.startswith("GpuStats: the GPU was busy for 13% of the time; the host's went to environment 83%, update")
    assert said.endswith("try more environments, --model.env.num_envs, and --model.cuda_graphs auto")
    # A second warning would be an error here.
    stats.look_for_idling([0.0] * 3)


def test_the_cause_is_that_of_the_last_while(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"environment": 50.0, "saving": 0.0}
    stats = watching(monkeypatch, seconds)
    # The GPU is busy.
    stats.look_for_idling([90.0] * 3)
    seconds.update(environment=51.0, saving=9.0)
    with pytest.warns(UserWarning, match=r"the host's went to saving 90%, environment 10%: try EpisodeCheckpoint"):
        stats.look_for_idling([1.0] * 3)


def test_causes_have_their_advice() -> None:
    assert "replay 75%" in idle_message(0.1, {"replay": 3.0, "saving": 1.0})
    assert idle_message(0.1, {OUTSIDE: 1.0}).endswith("try more updates_per_step or rollout_steps in a training step")
    assert idle_message(0.1, {"viewers": 1.0}).endswith("try FrameStream with a smaller most_share")
    assert idle_message(0.1, {"rollout graph": 1.0}).endswith("--model.graph_updates auto")


def test_without_nvml_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    strategy = SimpleNamespace(root_device=torch.device("cuda:0"))
    trainer: Any = SimpleNamespace(fast_dev_run=False, strategy=strategy)
    with pytest.raises(ModuleNotFoundError, match=r"pynvml.*\[monitor\]"):
        GpuStats().on_fit_start(trainer, None)  # type: ignore[arg-type]


RATES = ("throughput/env_steps_per_s", "throughput/updates_per_s", "throughput/episodes_per_h")


class Run:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, every_n_steps: int) -> None:
        self.clock, self.logged = 0.0, {}
        monkeypatch.setattr("time.perf_counter", lambda: self.clock)
        self.callback = Throughput(every_n_steps)
        self.trainer: Any = SimpleNamespace(global_step=0, barebones=False)
        self.module: Any = SimpleNamespace(
            frames=0, episodes=torch.tensor(0), log=lambda name, value, **_: self._log(name, value)
        )

    def _log(self, name: str, value: float) -> None:
        self.logged[name] = value

    def pass_by(self, seconds: float, frames: int = 0, updates: int = 0, episodes: int = 0) -> None:
        self.clock += seconds
        self.module.frames += frames
        self.trainer.global_step += updates
        self.module.episodes += episodes

    def step(self, *args: float) -> dict[str, float]:
        """Return what a training step logs.

        It takes the given seconds, frames, updates and episodes.
        """
        self.logged = {}
        self.callback.on_train_batch_start(self.trainer, self.module, None, 0)
        self.pass_by(*args)  # type: ignore[arg-type]
        self.callback.on_train_batch_end(self.trainer, self.module, None, None, 0)
        return self.logged


def test_episodes_are_those_of_all_processes_as_frames_are(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, every_n_steps=1)
    run.trainer.world_size = 3
    run.trainer.strategy = SimpleNamespace(reduce=lambda value, reduce_op: {"sum": 3 * value}[reduce_op])
    run.callback.on_train_start(run.trainer, run.module)
    assert run.step(6, 96, 12, 2) == dict(zip(RATES, (16, 2, 3600), strict=True))
    # Nobody has written into it.
    assert run.module.episodes == 2


def test_rates_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, every_n_steps=2)
    run.callback.on_train_start(run.trainer, run.module)
    # Warm-up, or a checkpoint that is loaded, is not training.
    run.pass_by(100, frames=5000, episodes=70)
    assert run.step(1, 32, 4, 1) == {}
    # 2 s and 4 s: (32 + 64) / 6 frames, (4 + 8) / 6 updates, 3600 · (1 + 2) / 6 episodes
    assert run.step(5, 64, 8, 2) == dict(zip(RATES, (16, 2, 1800), strict=True))
    assert run.step(1, 10, 1, 0) == {}
    assert run.step(1, 10, 1, 1) == dict(zip(RATES, (10, 1, 1800), strict=True))


def test_validation_is_not_training(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, every_n_steps=2)
    run.callback.on_train_start(run.trainer, run.module)
    run.step(1, 32, 4, 1)
    run.pass_by(1000)
    run.callback.on_validation_end(run.trainer, run.module)
    # more often than every second step, and still there is a reading: of what came since, 20 frames in 2 s
    assert run.step(2, 20, 4, 1) == dict(zip(RATES, (10, 2, 1800), strict=True))


def test_a_run_logs_its_rates(tmp_path: Path) -> None:
    metrics = fit(
        module(), tmp_path, 8, Throughput(every_n_steps=2), enable_checkpointing=False
    ).trainer.callback_metrics
    assert all(metrics[name] > 0 for name in RATES[:2])
    assert RATES[2] in metrics


class OnCuda(Tensor):
    """A tensor of the host that claims to be on CUDA.

    It knows how often it was waited for.
    """

    waits: ClassVar[int] = 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")

    def __int__(self) -> int:
        OnCuda.waits += 1
        return int(self.as_subclass(Tensor))


class Event:
    """One that has passed as soon as `arrived` says so."""

    arrived: ClassVar[bool] = True

    def record(self, stream: object) -> None: ...

    def query(self) -> bool:
        return Event.arrived


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(OnCuda, "waits", 0)
    monkeypatch.setattr(Event, "arrived", True)


def on_cuda(count: int) -> Tensor:
    return torch.tensor(count).as_subclass(OnCuda)


def test_values_on_the_host_are_read_at_once() -> None:
    seen = DeviceCount()
    assert [seen(3), seen(torch.tensor(4)), seen(5)] == [3, 4, 5]


@pytest.mark.usefixtures("no_driver")
def test_only_the_first_call_waits_and_later_ones_lag_by_one() -> None:
    seen = DeviceCount()
    assert [seen(on_cuda(count)) for count in (5, 7, 8, 11)] == [5, 5, 7, 8]
    assert OnCuda.waits == 1


@pytest.mark.usefixtures("no_driver")
def test_a_copy_on_its_way_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = DeviceCount()
    seen(on_cuda(5))
    monkeypatch.setattr(Event, "arrived", False)
    assert [seen(on_cuda(count)) for count in (7, 8)] == [5, 5]
    monkeypatch.setattr(Event, "arrived", True)
    # The copy was that of the first call.
    assert [seen(on_cuda(count)) for count in (9, 10)] == [5, 9]
    assert OnCuda.waits == 1
