"""Modules of Triton kernels are used after their self-test alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from torchrl_gpu.system import triton_kernels
from torchrl_gpu.system.self_tests import SelfTest
from torchrl_gpu.system.triton_kernels import load_kernels, problem_of, versions

# Any module that can be imported will do.
NAME = "torchrl_gpu.system.self_tests"
CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(triton_kernels.machine, "cuda_versions", lambda device: {"driver": "1"})
    for kept in (load_kernels, problem_of):
        kept.cache_clear()
    yield
    for kept in (load_kernels, problem_of):
        kept.cache_clear()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_kernels_that_pass_are_given(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(SelfTest, "failure", lambda test: "")
    kernels = load_kernels("sums", NAME, CUDA)
    assert kernels.__name__ == NAME
    assert warnings_of(caplog) == []


def test_kernels_that_fail_are_not_used_and_the_reason_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(SelfTest, "failure", lambda test: f"{test.name} are wrong")
    assert [load_kernels("sums", NAME, CUDA) for _ in range(2)] == [None, None]
    assert warnings_of(caplog) == ["sums: Triton cannot run on cuda:0, so torch will: sums on cuda:0 are wrong"]


def test_without_triton_the_missing_module_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert load_kernels("sums", "torchrl_gpu.no_such_kernels", CUDA) is None
    assert "no_such_kernels" in warnings_of(caplog)[0]


def test_a_cpu_has_none_and_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert load_kernels("sums", NAME, torch.device("cpu")) is None
    assert warnings_of(caplog) == []


def test_a_result_depends_on_every_part_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def failure(test: SelfTest) -> str:
        found.append(test.depends_on["sources"])
        return ""

    monkeypatch.setattr(SelfTest, "failure", failure)
    for parts in ((), ("torchrl_gpu.system.machine",), ("torchrl_gpu.system.machine", "torchrl_gpu.system.nvidia")):
        load_kernels("sums", NAME, CUDA, parts)
    assert len(set(found)) == 3


def test_versions_name_the_compiler_only_where_there_is_a_gpu() -> None:
    assert "compiler" in versions("kernels", b"", CUDA)
    assert "compiler" not in versions("kernels", b"", torch.device("cpu"))
