"""A missing package names the extra that brings it."""

from __future__ import annotations

import sys

import pytest

from torchrl_gpu.streaming.codecs.extras import load


@pytest.mark.parametrize(("module", "package"), [("cv2", "OpenCV"), ("av", "PyAV"), ("aiohttp", "aiohttp")])
def test_a_missing_package_names_the_extra(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"^streaming: want {package}, .*'torchrl_gpu\[stream\]'; got "
    ) as got:
        load(module)
    assert got.value.name == module


def test_another_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"want no_such_package, .*'torchrl_gpu\[webrtc\]'"):
        load("no_such_package", "webrtc")
