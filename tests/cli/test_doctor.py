"""What the doctor says of streaming: what was tried, and why it does not work."""

from __future__ import annotations

import importlib
import sys

import pytest
import yaml

from torchrl_gpu import cli
from torchrl_gpu.cli import doctor
from torchrl_gpu.streaming.codecs import probes


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """The rows of streaming by name, on a machine whose probes say what they are told to."""

    def find(**problems: str) -> dict[str, doctor.Finding]:
        monkeypatch.setattr(probes, "nvjpeg_problem", lambda _: problems.get("nvjpeg", ""))
        monkeypatch.setattr(probes, "nvenc_problem", lambda: problems.get("nvenc", ""))
        monkeypatch.setattr(probes, "x264_problem", lambda: problems.get("x264", ""))
        return {finding.name: finding for finding in doctor._codecs()}

    return find


def test_each_probe_speaks_for_itself(findings) -> None:  # type: ignore[no-untyped-def]
    found = findings(nvenc="no engine")
    assert [found[name].usable for name in ("JPEG on GPU", "H.264 by NVENC", "H.264 by x264")] == [True, False, True]
    assert found["H.264 by NVENC"].detail == "no engine"
    assert {"av", "cv2", "aiohttp", "aiortc"} <= set(found)
    assert all(finding.detail for finding in found.values())


def test_a_missing_package_names_its_extra(findings, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(sys.modules, "aiortc", None)
    assert findings()["aiortc"][2:] == (False, "not installed; pip install 'torchrl_gpu[webrtc]' brings it")


def test_a_package_that_does_not_load_says_why(findings, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    real = importlib.import_module

    def load(name: str) -> object:
        if name == "cv2":
            raise ImportError("libGL.so.1: cannot open\nshared object file")
        return real(name)

    monkeypatch.setattr(importlib, "import_module", load)
    assert findings()["cv2"][2:] == (False, "libGL.so.1: cannot open shared object file")


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"], "torchrl-gpu") == 0
    assert "cuda" in capsys.readouterr().out


def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"], "torchrl-gpu") == 0
    findings = yaml.safe_load(capsys.readouterr().out)
    assert {"packing", "device", "software"} <= {finding["group"] for finding in findings}
    assert all(finding["usable"] or finding["detail"] for finding in findings)


def test_doctor_with_a_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--jsn"], "torchrl-gpu") == 2
    assert capsys.readouterr().err.count("\n") == 1
