"""Scenes of real simulators.

A policy from a file drives each, and its camera is seen.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from tests.examples.running import EXAMPLES, watched
from torchrl_gpu.cli import doctor

for module in ("aiohttp", "cv2", "av", "prometheus_client"):
    pytest.importorskip(module)

# package, numbers in and out, height and width of the picture, steps, seconds that it may take
SCENES = {"mujoco": ((4, 2), (360, 480), 60, 60), "genesis": ((6, 3), (360, 480), 60, 1200)}


@pytest.mark.parametrize("name", SCENES)
def test_a_policy_drives_a_scene_that_is_watched(name: str, tmp_path: Path) -> None:
    pytest.importorskip(name)
    problem = doctor.opengl_problem() if name == "mujoco" else ""
    if problem:
        pytest.skip(problem)
    (numbers, actions), size, steps, timeout_s = SCENES[name]
    net = torch.nn.Sequential(torch.nn.Linear(numbers, 8), torch.nn.ReLU(), torch.nn.Linear(8, actions))
    path = tmp_path / "policy.pt"
    torch.save({"model_state_dict": net.state_dict(), "obs_dim": numbers, "action_dim": actions}, path)
    words = ["--policy", str(path), "--device", "cpu", "--steps", str(steps)]
    said, shown = watched(f"{name}_camera.py", *words, streams=["camera"], timeout_s=timeout_s)
    assert "Device: cpu\n" in said
    assert shown["camera"].shape == (*size, 3)
    assert shown["camera"].std() > 5
    found = re.search(rf"^{steps} steps, (\d+) pictures; a decision took [\d.]+ ms$", said, re.MULTILINE)
    assert found
    assert int(found[1]) >= 1


def test_the_cart_of_gymnasium_goes_on_from_episode_to_episode() -> None:
    pytest.importorskip("gymnasium")
    scene = runpy.run_path(str(EXAMPLES / "gymnasium_camera.py"))["CartPole"]("cpu")
    assert scene.render().shape == (400, 600, 3)
    assert scene.render().std() > 5
    seen = []
    for action in [None] * 5 + [torch.tensor([0.0, 1.0])] * 20:
        scene.step(action)
        seen.append(scene.observe())
    assert all(each.shape == (4,) and each.dtype == torch.float32 for each in seen)
    # It always goes to the right.
    assert max(each[1] for each in seen) > 1
    # An episode has ended.
    assert seen[-1][1] < 3
