"""Failures of what a GPU may lack: Triton, NVJPEG, graphs, torch.compile.

Every kind of run still trains.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.envs.packing.kernels.test_self_tests import BROKEN
from tests.envs.packing.settings import packing
from tests.pretend.small import command_line
from torchrl_gpu import cli
from torchrl_gpu.envs.packing import kernels
from torchrl_gpu.envs.packing.kernels import self_tests as tests_of_kernels
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.streaming import GpuFramePipeline
from torchrl_gpu.streaming.codecs import nvjpeg, pipeline
from torchrl_gpu.system import self_tests
from torchrl_gpu.system.self_tests import SelfTest

# The second step tries a graph of all learning, the fourth, where that fails, one of an update.
STEPS = 4
# Of four rollouts, a graph of all learning would be made at the second, then of an update at the third.
PPO_STEPS = 8
# What goes back to operators one by one, in the order in which it is tried.
GRAPHS = {
    "packing_dqn.yaml": ["GraphedRollout", "Rollout", "GraphedLearning", "GraphedUpdate"],
    "navigation_sac.yaml": ["GraphedRollout", "Rollout", "GraphedLearning", "GraphedUpdate"],
    "ppo_marine.yaml": ["GraphedRollout", "GraphedLearning", "GraphedUpdate"],
    "packing.yaml": ["GraphedRollout", "AfterstateLearning"],
}
PLAINLY = " are launched one by one instead"
BREAKS_OFF = "CUDA error: operation would make the legacy stream depend on a capturing blocking stream"
# Of each kind of run the one whose graphs are others.
KINDS = ("packing_dqn.yaml", "packing.yaml", "ppo_marine.yaml", "navigation_sac.yaml")
PACKING = [name for name in KINDS if "packing" in name]


def words(name: str) -> list[str]:
    """Command line of a shipped config in small, which goes by graphs."""
    return command_line(
        name,
        model__updates_per_step=1,
        data__steps_per_epoch=STEPS,
        trainer__limit_val_batches=0,
        trainer__max_steps=PPO_STEPS if name.startswith("ppo_") else STEPS,
    )


@pytest.fixture(autouse=True)
def first_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which nothing has been tried, in a folder of its own.

    Its "triton" can be broken.
    """
    (tmp_path / "results").mkdir(mode=0o700)
    monkeypatch.setattr(self_tests, "private_folder", lambda: tmp_path / "results")
    monkeypatch.setattr(self_tests, "KNOWN_FAILURES", {})
    monkeypatch.setattr(self_tests, "_run_in_subprocess", busy)
    monkeypatch.setattr(tests_of_kernels, "_LAUNCHED", {})
    # It saves time.
    monkeypatch.setattr(tests_of_kernels, "STABILITY_RULES", ("corners",))
    monkeypatch.setitem(kernels.BACKENDS, "triton", BROKEN)
    monkeypatch.setattr(pipeline, "WARNED", set())
    monkeypatch.chdir(tmp_path)
    kernels.forget_choices()
    yield
    kernels.forget_choices()


def busy(test: SelfTest) -> str:
    """The device that is pretended is there for this process alone."""
    raise self_tests.Unavailable("another process has it")


def trained(name: str, folder: Path) -> None:
    """Fit a config in small.

    Weights are on the device, and numbers at the end.
    """
    assert cli.main(["fit", *words(name)]) is None
    (checkpoint,) = folder.rglob("last.ckpt")
    content = torch.load(checkpoint, weights_only=True)
    assert content["global_step"] >= STEPS
    weights = [value for value in content["state_dict"].values() if isinstance(value, Tensor)]
    assert {value.device.type for value in weights} == {"cuda"}
    assert all(bool(value.isfinite().all()) for value in weights)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return warnings of this package, each once, but for self-tests that take long."""
    lines = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.levelno >= logging.WARNING and record.name.startswith("torchrl_gpu")
    ]
    lines = [line for line in lines if not line.startswith("self-test of ")]
    assert len(lines) == len(set(lines))
    assert not any("\n" in line for line in lines)
    return lines


def no_graph(*_: object, **__: object) -> None:
    raise RuntimeError(BREAKS_OFF)


@pytest.mark.parametrize("name", KINDS)
def test_without_any_of_them_runs_train(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BROKEN", "compilation fails")
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", no_graph)
    monkeypatch.setattr(torch, "compile", no_graph)
    monkeypatch.setattr(nvjpeg, "installed_backends", lambda device: {"broken": no_graph})
    trained(name, tmp_path)
    lines = warned(caplog)
    assert (name in PACKING) is any("triton cannot run on cuda:0" in line for line in lines)
    graphs = [line for line in lines if line.endswith(PLAINLY)]
    assert [line.partition(":")[0] for line in graphs] == GRAPHS[name]
    assert all(f": {BREAKS_OFF}; " in line for line in graphs)


def played() -> None:
    """Some steps of packing, which begin with self-tests."""
    env = packing("corners", device="cuda", orientations="yaw")
    env.rollout(3, RandomActions(env))


@pytest.mark.parametrize("way", ["miscounts", "fails in the process of the run"])
def test_however_triton_fails_packing_goes_on(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BROKEN", way)
    monkeypatch.setenv("RUN", str(os.getpid()))
    if way != "miscounts":
        monkeypatch.setattr(self_tests, "_run_in_subprocess", lambda test: "")
    played()
    (line,) = warned(caplog)
    assert line.startswith("packing kernels: triton cannot run on cuda:0, so a slower one will: ")
    assert ("num_packed" if way == "miscounts" else "no space left on device") in line


def test_a_triton_that_works_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    played()
    assert warned(caplog) == []
    assert kernels.get_kernels("auto", torch.device("cuda", 0)).backend == "triton"


@pytest.mark.parametrize(("replay", "name"), [("raises", "navigation_sac.yaml"), ("stands still", "ppo_marine.yaml")])
def test_however_graphs_fail_runs_train(
    name: str, replay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", no_graph if replay == "raises" else lambda graph: None)
    trained(name, tmp_path)
    lines = warned(caplog)
    graphs = [line for line in lines if line.endswith(PLAINLY)]
    assert [line.partition(":")[0] for line in graphs] == GRAPHS[name]


@pytest.mark.parametrize("when", ["at once", "amid a run", "hangs"])
def test_without_nvjpeg_frames_of_the_device_are_encoded(
    when: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def encode(planes: list[Tensor], quality: int) -> list[Tensor]:
        calls.append(len(planes))
        if when == "at once" or len(calls) > 1:
            raise RuntimeError("nvjpegEncodeImage: NVJPEG_STATUS_EXECUTION_FAILED")
        return [torch.tensor([0xFF, 0xD8, 0xFF, 0xD9], dtype=torch.uint8)]

    monkeypatch.setattr(nvjpeg, "installed_backends", lambda device: {"torchvision": encode})
    # What is tried here alone would leave no second call to fail.
    monkeypatch.setattr(
        self_tests, "_run_in_subprocess", lambda test: "no answer within 300 seconds" if when == "hangs" else ""
    )
    frame = torch.arange(64 * 48 * 3, device="cuda").remainder(251).to(torch.uint8).view(48, 64, 3)
    with GpuFramePipeline("cuda", h264="x264") as frames:
        assert frames.has_nvjpeg is (when == "amid a run")
        files = [frames.encode_jpeg(frame) for _ in range(3)]
    assert len({bytes(file) for file in files}) == 1
    assert files[0].startswith(b"\xff\xd8")
    assert len(files[0]) > 100
    lines = [line for line in warned(caplog) if "NVJPEG" in line]
    assert len(lines) == (1 if when == "amid a run" else 0)
    assert calls == ([] if when == "hangs" else calls)
