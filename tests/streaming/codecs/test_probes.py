"""Probes: a reason where nothing was encoded, none where something was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.streaming.codecs.test_nvjpeg import by_opencv, refuses
from torchrl_gpu.device import cuda_problem
from torchrl_gpu.streaming.codecs import libavcodec, nvjpeg, probes
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.system import machine, nvidia, self_tests
from torchrl_gpu.system.self_tests import SelfTest, Unavailable

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Asks anew, and leaves no answer behind that stands only here."""
    for probe in (probes.nvenc_problem, probes.x264_problem):
        probe.cache_clear()
    yield
    for probe in (probes.nvenc_problem, probes.x264_problem):
        probe.cache_clear()


def test_a_cpu_is_no_cuda_device() -> None:
    assert probes.cuda_problem(CPU) == (cuda_problem() or "the device is cpu")
    assert probes.nvjpeg_problem(CPU) == "NVJPEG needs a CUDA device, not cpu"


def test_a_broken_cuda_device_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(torch, "ones", broken)
    problem = "cuda cannot be used: RuntimeError: CUDA error: out of memory Compile with TORCH_USE_CUDA_DSA"
    assert probes.cuda_problem(torch.device("cuda")) == problem


@pytest.mark.parametrize(("backend", "problem"), [(by_opencv, ""), (refuses, "stand-in: no NVJPEG in this build")])
def test_nvjpeg_is_tried(backend: nvjpeg.Backend, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvjpeg, "installed_backends", lambda _: {"stand-in": backend})
    assert probes.nvjpeg_problem(CPU) == problem


def test_nvenc_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, real = [], libavcodec.open_codec

    def open_codec(word: str, *_: object, **__: object) -> None:
        tried.append(word)
        raise RuntimeError("no engine")

    monkeypatch.setattr(libavcodec, "open_codec", open_codec)
    assert (probes.nvenc_problem(), probes.nvenc_problem()) == ("no engine", "no engine")
    assert tried == ["nvenc"]
    probes.nvenc_problem.cache_clear()
    monkeypatch.setattr(libavcodec, "open_codec", lambda _, *args, **rest: real("x264", *args, **rest))
    assert probes.nvenc_problem() == "", "it encodes"


def test_nvenc_without_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert probes.nvenc_problem().startswith("streaming: PyAV")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[SelfTest]:
    """A machine with a CUDA device on which every self-test hangs.

    It lists which ran.
    """
    tried: list[SelfTest] = []

    def failure(test: SelfTest) -> str:
        tried.append(test)
        return "no answer within 300 seconds"

    monkeypatch.setattr(SelfTest, "failure", failure)
    monkeypatch.setattr(nvidia, "driver", lambda: "1.0")
    monkeypatch.setattr(machine, "cuda_versions", lambda device: {"device": "a chip", "driver": "1.0"})
    return tried


def test_nvenc_that_hangs_is_tried_in_a_process_of_its_own(
    pretended: list[SelfTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    # It cannot be tried in this process.
    monkeypatch.setattr(libavcodec, "open_codec", None)
    assert probes.nvenc_problem() == "no answer within 300 seconds"
    (test,) = pretended
    assert self_tests.function_of(test.function) is libavcodec.codec_problem
    assert test.arguments == ("nvenc",)


def test_nvjpeg_that_hangs_is_tried_in_a_process_of_its_own(
    pretended: list[SelfTest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    # It cannot be tried in this process.
    monkeypatch.setattr(nvjpeg.NvJpeg, "_probe", None)
    found = probes.nvjpeg_problem(torch.device("cuda", 0))
    assert found == "torchcodec: no answer within 300 seconds; torchvision: no answer within 300 seconds"
    assert [test.arguments for test in pretended] == [("torchcodec", "cuda:0"), ("torchvision", "cuda:0")]
    assert {self_tests.function_of(test.function) for test in pretended} == {nvjpeg.self_test}


def test_nvjpeg_self_test_encodes_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvjpeg, "installed_backends", lambda _: {"good": by_opencv, "bad": refuses})
    assert nvjpeg.self_test("good", "cpu") == ""
    assert nvjpeg.self_test("bad", "cpu") == "no NVJPEG in this build"
    with pytest.raises(Unavailable, match=r"cuda:99 cannot"):
        nvjpeg.self_test("good", "cuda:99")


@pytest.mark.gpu
def test_gpu_probes_agree_with_what_they_stand_for() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    assert probes.cuda_problem(device) == ""
    assert probes.nvjpeg_problem(device) == ""
    if any(chip in torch.cuda.get_device_name(device) for chip in ("A100", "H100", "H200")):
        assert probes.nvenc_problem() != ""


@pytest.mark.parametrize(("module", "package"), [("cv2", "OpenCV"), ("av", "PyAV"), ("aiohttp", "aiohttp")])
def test_a_missing_package_names_the_extra(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"^streaming: {package} .*\[stream\]") as got:
        load(module)
    assert got.value.name == module


def test_probe_names_the_extra_that_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"no_such_package .*\[webrtc\]"):
        load("no_such_package", "webrtc")


def test_driver_and_chips_are_what_the_driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "_DRIVER", tmp_path)
    monkeypatch.setattr(nvidia, "_newest_cuda", lambda: 0)
    assert (nvidia.driver(), nvidia.chips()) == ("", [])
    monkeypatch.setattr(nvidia, "_newest_cuda", lambda: 13010)
    assert nvidia.driver() == "for CUDA 13.1"
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun\nGCC\n")
    for number in range(2):
        folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H{number}00\nIRQ: 5\n")
    assert (nvidia.driver(), nvidia.chips()) == ("580.65.06", ["NVIDIA H000", "NVIDIA H100"])
