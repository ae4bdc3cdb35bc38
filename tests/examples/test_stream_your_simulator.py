"""The example shows its streams to whoever comes, and ends by itself when it is told how long to run."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]

for module in ("aiohttp", "cv2", "av"):
    pytest.importorskip(module)


@pytest.mark.parametrize("renderer", ["as it comes", "none"])
def test_its_streams_are_seen(renderer: str, child_environment: dict[str, str]) -> None:
    broken = {"MUJOCO_GL": "none of them"} if renderer == "none" else {}
    words = [sys.executable, "-u", str(ROOT / "examples" / "stream_your_simulator.py"), "--port", "0", "--steps", "200"]
    with subprocess.Popen(words, env=child_environment | broken, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "Watch at" in line:
                break
        assert ("drawn with NumPy" in said[0]) or renderer != "none"
        found = re.search(r"http://\S+/", said[-1])
        assert found
        shown = {name: picture(f"{found[0]}snapshot.jpg?stream={name}") for name in ("front", "views", "opencv")}
        assert process.wait(timeout=60) == 0
    assert shown["front"].shape == shown["opencv"].shape == (360, 480, 3)
    assert shown["views"].shape == (360, 960, 3)  # two side by side
    assert all(each.std() > 5 for each in shown.values())
    # The second view is the one that the third stream shows with its channels the other way round.
    difference = np.abs(shown["views"][:, 480:].astype(int) - shown["opencv"]).mean()
    assert difference < 12


def picture(url: str) -> np.ndarray:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return np.asarray(Image.open(io.BytesIO(answer.read())).convert("RGB"))
