"""Training on the pretended device.

The tests are about what waits in a step, both graphs, precisions, and resuming on another device.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from tests.pretend_cuda import waits
from tests.training import tiny, tiny_navigation
from tests.training.resuming import last, part_of
from tests.training.test_on_policy import module as on_policy
from tests.training.tiny import Run
from tests.training.tiny_navigation import AGENTS, DISCRETE, navigation, worlds
from torchrl_gpu.callbacks import EpisodeCheckpoint, FrameStream, GpuStats, Throughput
from torchrl_gpu.callbacks.progress import NetworkSummary, RunProgress
from torchrl_gpu.policies import PlacementScores
from torchrl_gpu.training.run import ReplayRun

GPU: dict[str, Any] = {"accelerator": "gpu", "devices": 1}
# A log costs one copy of all figures.
LOG = "step_log.py"
# A graph is made once, and its first replay is compared with the plain way.
CAPTURE = "capture_cuda"
GRAPHS = CAPTURE, " _compare ", " are_close ", " _distance "
CONVOLUTIONS = {"network": partial(PlacementScores, channels=4, blocks=1)}
BOOTSTRAPPED = partial(tiny_navigation.hierarchical, n_steps=2, worker_updates=2)
MODULES: dict[str, Callable[[], ReplayRun]] = {}
MODULES["packing"] = partial(tiny.module, agent=CONVOLUTIONS)
MODULES["packing, prioritized"] = partial(tiny.module, prioritized=True)
MODULES["packing, staged"] = partial(tiny.module, storage="host")
MODULES["irregular"] = tiny_navigation.hierarchical
MODULES["irregular, bootstrapped"] = BOOTSTRAPPED
MODULES["ACIQN"] = partial(navigation, "ACIQN")


def _without(step: dict[str, int], words: tuple[str, ...]) -> dict[str, int]:
    """Return the waits of a step at places with none of these words."""
    left = {}
    for place, number in step.items():
        is_named = any(word in place for word in words)
        if not is_named:
            left[place] = number
    return left


def _waits_at(step: dict[str, int], word: str) -> int:
    """Return the number of waits of a step at places with this word."""
    return sum(number for place, number in step.items() if word in place)


class WaitsOfSteps(Callback):
    """Waits of each training step, without those of validation.

    It is the first of the callbacks, so that all others run between its hooks.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []
        self._open: Any = None

    def on_train_batch_start(self, *args: object) -> None:
        self._stop()
        self._open = waits()
        self._counted = self._open.__enter__()

    def on_validation_start(self, *args: object) -> None:
        self._stop()

    def on_train_end(self, *args: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self.steps.append(self._counted.by_place())
            self._open = None

    def elsewhere(self, *places: str) -> list[dict[str, int]]:
        """Return waits of the steps, except at places with these words in them.

        Places where a graph is made and tried are left out, too.
        """
        left = [_without(step, (*places, *GRAPHS)) for step in self.steps]
        return [step for step in left if step]

    def at(self, place: str) -> list[int]:
        """Number of waits of each step at places with this word in them."""
        return [_waits_at(step, place) for step in self.steps]


def fit(made: Run, folder: Path, max_steps: int, *callbacks: Callback, **changes: object) -> Run:
    """A run on the device, unless it is told otherwise."""
    data = tiny.data if hasattr(made.env, "bin") else worlds
    arguments = GPU | {"log_every_n_steps": 100, "data_module": data(steps_per_epoch=50)} | changes
    return tiny.fit(made, folder, max_steps, *callbacks, **arguments)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "ACIQN"])
def test_a_step_waits_for_nothing(name: str, tmp_path: Path) -> None:
    seen = WaitsOfSteps()
    made = fit(MODULES[name](), tmp_path, 6, seen, enable_checkpointing=False)
    assert made.env.device.type == "cuda"
    staged = ["replay/buffer.py", "replay.sample()", "replay.extend("] if "staged" in name else []
    assert seen.elsewhere(LOG, *staged) == []
    # The first and the last.
    assert seen.at(LOG) == [1, 0, 1]


@pytest.mark.parametrize("name", ["packing", "ACIQN"])
def test_what_callbacks_wait_for_is_what_they_say(name: str, tmp_path: Path) -> None:
    seen, logger = WaitsOfSteps(), [CSVLogger(tmp_path), TensorBoardLogger(tmp_path)]
    callbacks = [EpisodeCheckpoint(every_n_episodes=1000, every_n_updates=14), Throughput(4)]
    callbacks += [RunProgress(), NetworkSummary()]
    fit(
        MODULES[name](),
        tmp_path,
        20,
        seen,
        *callbacks,
        logger=logger,
        log_every_n_steps=5,
        enable_progress_bar=True,
        enable_model_summary=True,
    )
    assert (
        seen.elsewhere(
            LOG, "throughput.py", "checkpoint.py", "run_folder.py", "device_count.py", "training/divergence.py"
        )
        == []
    )
    assert seen.at(LOG) == [1, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    # its clock starts in the first step and after that it reads the count of episodes at every fourth
    assert seen.at("throughput.py") == [1, 0, 0, 1, 0, 0, 0, 1, 0, 0]
    assert seen.at("device_count.py") == [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert [number > 0 for number in seen.at("callbacks/checkpoint.py")] == [False] * 6 + [True] + [False] * 3
    # Weights that are no numbers are not saved.
    assert seen.at("training/divergence.py") == [0] * 6 + [1] + [0] * 3


def test_pictures_that_nobody_watches_cost_no_step_its_speed(tmp_path: Path) -> None:
    seen = WaitsOfSteps()
    record = {"record": str(tmp_path / "films"), "record_every_n_episodes": 100_000}
    fit(tiny.module(), tmp_path, 12, seen, FrameStream(port=0, **record), enable_checkpointing=False)
    # A film's painter reads the placements of its bin at every step of its episode.
    drawing = "env_streams.py", "envs/packing/viewer.py"
    # The encoder has a thread of its own.
    assert seen.elsewhere(LOG, *drawing, "device_count.py", "encoder_thread.py") == []
    # The first look.
    assert sum(seen.at("device_count.py")) == 1
    # A picture a second at most, for whoever comes.
    assert sum(number > 0 for number in seen.at("env_streams.py")) <= 2


def test_figures_of_the_machine_are_waited_for_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrl_gpu.callbacks.gpu_stats.read_gpu", lambda device: {"gpu_power_w": 250.0})
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: name == "pynvml" or found(name, *args))
    seen = WaitsOfSteps()
    monkeypatch.setattr("torchrl_gpu.callbacks.gpu_stats._EVERY_S", 1e-6)
    stats = GpuStats()
    made = fit(tiny.module(), tmp_path, 6, seen, stats, enable_checkpointing=False, log_every_n_steps=1)
    assert float(made.trainer.callback_metrics["machine/gpu_power_w"]) == 250.0
    assert seen.elsewhere(LOG) == []


def test_an_average_waits_for_its_count_alone(tmp_path: Path) -> None:
    seen = WaitsOfSteps()
    fit(tiny.module(), tmp_path, 6, seen, EMAWeightAveraging(), enable_checkpointing=False)
    assert seen.elsewhere(LOG, "lightning_callbacks.py") == []
    # torch's `AveragedModel` asks whether it is its first time.
    assert max(seen.at("lightning_callbacks.py")) <= 2


@pytest.mark.parametrize("name", AGENTS)
def test_with_graphs_and_without_steps_wait_for_nothing_and_learn_the_same(name: str, tmp_path: Path) -> None:
    waited, seen = WaitsOfSteps(), WaitsOfSteps()
    make = partial(navigation, name, prioritized=name in DISCRETE)
    plain = fit(make(cuda_graphs=False, graph_updates=False), tmp_path / "plain", 6, waited, enable_checkpointing=False)
    graphed = fit(make(), tmp_path / "graphed", 6, seen, enable_checkpointing=False)
    assert waited.elsewhere(LOG) == []
    assert seen.elsewhere(LOG) == []
    # Of updates; that of rollouts is made in the warm-up.
    assert sum(seen.at(CAPTURE)) == 1
    assert sum(number > 0 for number in seen.at("accelerated/")) == 1
    for (key, ours), theirs in zip(graphed.state_dict().items(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=key)


def test_both_graphs_of_packing(tmp_path: Path) -> None:
    seen = WaitsOfSteps()
    made = tiny.module(agent=CONVOLUTIONS, prioritized=True)
    fit(made, tmp_path, 6, seen, precision="bf16-mixed", enable_checkpointing=False)
    assert seen.elsewhere(LOG) == []
    # Steps come first, then updates.
    assert [number > 0 for number in seen.at("accelerated/")] == [True, True, False]
    assert made.graphed_learning is not None
    assert made.graphed_learning.proven


@pytest.mark.parametrize(("kind", "precision"), [("v3", "32-true"), ("packing", "bf16-mixed")])
def test_both_graphs_of_rollouts_learn_the_same(kind: str, precision: str, tmp_path: Path) -> None:
    seen = WaitsOfSteps()
    ends = []
    for on in (False, True) if precision == "32-true" else (True,):
        settings = {"cuda_graphs": on, "graph_updates": on, "optimizer": partial(torch.optim.Adam, lr=2**-9, eps=1e-3)}
        made = on_policy(kind, env={"backend": "eager"} if kind == "packing" else {}, **settings)
        fit(made, tmp_path / str(on), 18, *[seen] * on, precision=precision, enable_checkpointing=False)
        ends.append(made)
    assert seen.elsewhere(LOG) == []
    # The last are updates.
    assert [number > 0 for number in seen.at("accelerated/")] == [True, True, False, False, True]
    assert made.graphed_learning is not None
    assert made.graphed_learning.proven
    if precision == "32-true":
        for (key, ours), theirs in zip(made.state_dict().items(), ends[0].state_dict().values(), strict=True):
            torch.testing.assert_close(ours, theirs, msg=key)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("packing", "16-mixed"), *((name, "bf16-mixed") for name in ("packing", "irregular, bootstrapped", "ACIQN"))],
)
def test_mixed_precisions(name: str, precision: str, tmp_path: Path) -> None:
    seen = WaitsOfSteps()
    made = fit(MODULES[name](), tmp_path, 4, seen, precision=precision, enable_checkpointing=False)
    assert all(weight.dtype == torch.float32 and weight.isfinite().all() for weight in made.parameters())
    # It asks whether gradients overflowed, at each update.
    scaler = ["precision/amp.py"] if precision == "16-mixed" else []
    assert seen.elsewhere(LOG, *scaler) == []


@pytest.mark.filterwarnings("ignore:GPU available but not used")
@pytest.mark.parametrize("name", ["packing, prioritized", "irregular, bootstrapped"])
def test_from_cuda_to_a_cpu_and_back(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path: Path | None = None
    for number, (accelerator, told) in enumerate(
        [("gpu", ""), ("cpu", "saved on cuda and goes on on cpu"), ("gpu", "saved on cpu and goes on on cuda")], 1
    ):
        caplog.clear()
        folder = tmp_path / str(number)
        with caplog.at_level("INFO", "lightning.pytorch"):
            made = fit(
                MODULES[name](), folder, 2 * number, EpisodeCheckpoint(), accelerator=accelerator, ckpt_path=path
            )
        assert made.trainer.global_step == 2 * number
        said = [record.message for record in caplog.records if "saved on" in record.message]
        assert len(said) == bool(told)
        assert all(told in line for line in said)
        optimizer: Any = made.optimizers()
        assert all(group["capturable"] is (accelerator == "gpu") for group in optimizer.param_groups)
        path = last(folder)
        assert part_of(path).is_file()


def test_on_cuda_a_stopped_run_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    make = MODULES["packing, prioritized"]
    whole = fit(make(), tmp_path / "whole", 4, EpisodeCheckpoint())
    fit(make(), tmp_path / "half", 2, EpisodeCheckpoint())
    rest = fit(make(), tmp_path / "rest", 4, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "half"), seed=5)
    for (key, ours), theirs in zip(rest.state_dict().items(), whole.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), key
    assert torch.equal(rest.meter.finished, whole.meter.finished)
