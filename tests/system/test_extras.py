"""How a message says that an extra is to be installed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from torchrl_gpu.system import extras


def test_in_a_clone_the_command_installs_the_clone_by_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    (clone / "pyproject.toml").write_text('[project]\nname = "torchrl_gpu"\n', encoding="utf-8")
    monkeypatch.setattr(extras, "__file__", str(clone / "torchrl_gpu" / "system" / "extras.py"))
    words = shlex.split(extras.how_to_install("stream,webrtc"))
    assert words == [sys.executable, "-m", "pip", "install", "-e", f"{clone}[stream,webrtc]"]


@pytest.mark.parametrize("text", [None, '[project]\nname = "other"\n', "project = 3\n", "not TOML", "\udcff"])
def test_elsewhere_no_command_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8", errors="surrogateescape")
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "torchrl_gpu" / "system" / "extras.py"))
    said = extras.how_to_install("stream")
    assert "[stream]" in said
    assert "pip install" not in said
    assert "\n" not in said
