"""Report of the doctor: what works, what does not, and how to try the rest."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
import torch

from tests.native.compilers import need_compiler, need_torch_compile
from torchrl_gpu import cli, native
from torchrl_gpu.cli import doctor
from torchrl_gpu.envs.marine import fused
from torchrl_gpu.envs.packing import kernels
from torchrl_gpu.policies.packing.ntuple import values
from torchrl_gpu.streaming.codecs import probes
from torchrl_gpu.system import self_tests
from torchrl_gpu.system.self_tests import SelfTest
from torchrl_gpu.training.accelerated.graphs import Body, Graph


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """The rows of streaming by name, on a machine with pretended probes."""

    def find(**problems: str) -> dict[str, doctor.Finding]:
        monkeypatch.setattr(probes, "nvjpeg_problem", lambda _: problems.get("nvjpeg", ""))
        monkeypatch.setattr(probes, "nvenc_problem", lambda: problems.get("nvenc", ""))
        monkeypatch.setattr(probes, "x264_problem", lambda: problems.get("x264", ""))
        return {finding.name: finding for finding in doctor.codecs()}

    return find


def test_doctor_reports_each_probe_by_itself(findings) -> None:  # type: ignore[no-untyped-def]
    found = findings(nvenc="no engine")
    states = [found[name].state for name in ("JPEG on GPU", "H.264 by NVENC", "H.264 by x264")]
    assert states == ["works", "cannot", "works"]
    assert found["H.264 by NVENC"].detail == "no engine"
    assert {"av", "cv2", "aiohttp", "aiortc"} <= set(found)
    assert all(finding.detail for finding in found.values())


def test_a_missing_package_names_its_extra(findings, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(sys.modules, "aiortc", None)
    state, detail = findings()["aiortc"][2:]
    assert state == "cannot"
    assert "[webrtc]" in detail


def test_a_package_that_does_not_load_says_why(findings, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    real = importlib.import_module

    def load(name: str) -> object:
        if name == "cv2":
            raise ImportError("libGL.so.1: cannot open\nshared object file")
        return real(name)

    monkeypatch.setattr(importlib, "import_module", load)
    assert findings()["cv2"][2:] == ("cannot", "libGL.so.1: cannot open shared object file")


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> list[SelfTest]:
    """Self-tests that run in this process alone.

    They run as in the doctor, and the fixture lists which ran.
    """
    tried: list[SelfTest] = []

    def apart(test: SelfTest) -> str:
        tried.append(test)
        return "no answer within 300 seconds" if "torch_compile" in test.function else ""

    monkeypatch.setattr(self_tests, "_run_in_subprocess", apart)
    monkeypatch.setattr(self_tests, "_passes_in_fork", lambda test: False)
    monkeypatch.setattr(SelfTest, "keep", lambda test, failure: None)
    # monkeypatch restores it when this test is over.
    monkeypatch.setattr(self_tests, "reads_disk", True)
    monkeypatch.setattr(self_tests, "KNOWN_FAILURES", {})
    kernels.forget_choices()
    for chosen in (native.problem, probes.nvenc_problem):
        chosen.cache_clear()
    return tried


def test_doctor_prints_a_table_where_self_tests_hang(capsys: pytest.CaptureFixture[str], anew: list[SelfTest]) -> None:
    need_torch_compile()
    assert cli.main(["doctor", "--full"], "torchrl-gpu") == 0
    said = capsys.readouterr()
    assert "cuda" in said.out
    assert "no answer within 300 seconds" in said.out
    assert said.err.count("\n") == 1
    assert not self_tests.reads_disk


def test_doctor_as_json(capsys: pytest.CaptureFixture[str], anew: list[SelfTest]) -> None:
    need_torch_compile()
    assert cli.main(["doctor", "--json"], "torchrl-gpu") == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"packing", "device", "software", "compile", "streaming"} == {finding["group"] for finding in findings}
    assert {"works", "cannot", "not tried", "installed"} >= {finding["state"] for finding in findings}
    assert all(finding["detail"] for finding in findings)
    matching = [finding for finding in findings if finding["name"] == "torch.compile"]
    (compiled,) = matching
    assert compiled["state"] == "not tried"
    assert "torchrl-gpu doctor --full" in compiled["detail"]
    assert not any("torch_compile" in test.function for test in anew)
    assert any("run_every_kind" in test.function for test in anew) is (native.problem() == "")


def test_a_backend_that_fails_says_why(anew: list[SelfTest], monkeypatch: pytest.MonkeyPatch) -> None:
    need_compiler()
    monkeypatch.setattr(self_tests, "_run_in_subprocess", lambda test: "drop_map of boxes: illegal instruction")
    monkeypatch.setattr(self_tests, "_passes_in_fork", lambda test: False)
    self_tests.forget_results()
    found = {finding.name: finding for finding in doctor.backends_on(torch.device("cpu"))}
    kernels.forget_choices()
    assert found["compiled"][2:] == ("cannot", "drop_map of boxes: illegal instruction")
    assert found["eager"][2:] == ("works", "on cpu, the default: what the others are compared with")
    assert found["reference"].state == "not tried"


def test_by_the_interpreter_no_self_test_runs(anew: list[SelfTest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = doctor.backends_on(torch.device("cpu"))
    assert {finding.state for finding in found} <= {"not tried", "cannot"}
    assert anew == []


def test_doctor_finds_wrong_numbers_of_torch_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    assert doctor.torch_compile("cpu") == ""
    monkeypatch.setattr(torch, "compile", lambda function, **how: lambda x: function(x) * 1.01)
    assert doctor.torch_compile("cpu") == "it gives wrong numbers"


def test_a_graph_that_stands_still_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def still(body: Body, device: torch.device) -> Graph:
        return Graph(lambda: None, body())

    def frozen(body: Body, device: torch.device) -> Graph:
        result = body()
        result["sum"].sub_(1)
        return Graph(lambda: result["sum"].add_(1), result)

    for how, found in ((still, "a replay gives wrong numbers"), (frozen, "replays draw the same random numbers")):
        monkeypatch.setattr("torchrl_gpu.training.accelerated.graphs.capture_cuda", how)
        assert doctor.cuda_graph("cpu") == found


def test_kernels_besides_those_of_packing_steps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "problem", lambda device: "no registers left")
    monkeypatch.setattr(
        values, "problem_of", lambda what, *given: "" if what == "tables of afterstates" else "wrong sums"
    )
    found = {finding.name: finding for finding in doctor.kernels_on(torch.device("cuda", 0))}
    assert found["steps of marine navigation"][2:] == ("cannot", "no registers left")
    assert found["rollouts of tables"][2:] == ("cannot", "wrong sums")
    assert found["tables of afterstates"].state == "works"
