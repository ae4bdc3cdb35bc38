"""The example shows its streams to whoever comes, and ends by itself when it is told how long to run."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.examples.running import watched

for module in ("aiohttp", "cv2", "av"):
    pytest.importorskip(module)


@pytest.mark.parametrize("renderer", ["as it comes", "none"])
def test_its_streams_are_seen(renderer: str) -> None:
    broken = {"MUJOCO_GL": "none of them"} if renderer == "none" else {}
    streams = ("front", "views", "opencv")
    said, shown = watched("stream_your_simulator.py", "--steps", "200", streams=streams, env=os.environ | broken)
    assert ("drawn with NumPy" in said) or renderer != "none"
    assert shown["front"].shape == shown["opencv"].shape == (360, 480, 3)
    assert shown["views"].shape == (360, 960, 3)  # two side by side
    assert all(each.std() > 5 for each in shown.values())
    # The second view is the one that the third stream shows with its channels the other way round.
    difference = np.abs(shown["views"][:, 480:].astype(int) - shown["opencv"]).mean()
    assert difference < 12
