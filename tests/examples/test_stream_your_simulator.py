"""The example shows its streams to every visitor.

It ends by itself when it was given a time to run.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest

from examples.stream_your_simulator import NumpyScene, make_scene
from tests.examples.running import watched

for module in ("aiohttp", "cv2", "av"):
    pytest.importorskip(module)


def test_its_streams_are_seen() -> None:
    _, shown = watched("stream_your_simulator.py", "--steps", "200", streams=("front", "views", "opencv"))
    assert shown["front"].shape == shown["opencv"].shape == (360, 480, 3)
    # Two views stand side by side.
    assert shown["views"].shape == (360, 960, 3)
    assert all(each.std() > 5 for each in shown.values())
    # The second view is the one that the third stream shows with its channels the other way round.
    difference = np.abs(shown["views"][:, 480:].astype(int) - shown["opencv"]).mean()
    assert difference < 12


def test_without_a_renderer_numpy_draws(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mujoco", None)
    scene = make_scene()
    assert isinstance(scene, NumpyScene)
    assert "drawn with NumPy" in capsys.readouterr().out
    first = scene.render("front")
    assert first.shape == (360, 480, 3)
    assert first.std() > 5
    scene.step()
    assert (scene.render("front") != first).any()
