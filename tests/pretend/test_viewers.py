"""Pictures, metrics and overlays of environments on the device.

They are those of the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.envs.marine import settings as marine
from tests.envs.packing import settings as packing
from tests.pretend_cuda import waits
from torchrl_gpu.envs import MarineNavEnv, PackingEnv
from torchrl_gpu.envs.marine import viewer as marine_viewer
from torchrl_gpu.envs.packing import viewer
from torchrl_gpu.envs.viewable import Decision, Overlaid, viewable

COARSE = {"resolution": 10, "grid_step": 3, "reward": "objective", "backend": "eager"}
ENVS = {
    "boxes": lambda device: packing.packing("three visible", device=device, backend="eager"),
    "solids": lambda device: packing.packing("irregular", device=device, **COARSE),
    "v2": lambda device: marine.marine("v2", device=device),
}
ENVS["v3"] = lambda device: marine.marine("v3", device=device)
ENVS["one robot"] = lambda device: marine.marine("v2, one robot", device=device)
WIDTH, HEIGHT = 48, 32


@pytest.fixture(params=ENVS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def stepped(kind: str, device: str) -> PackingEnv | MarineNavEnv:
    env = ENVS[kind](device)
    current = env.reset()
    for _ in range(3):
        if isinstance(env, PackingEnv):
            current["action"] = current["action_mask"].int().argmax(1)
        else:
            shape = (env.num_envs, env.num_robots, *(() if env.num_actions else (2,)))
            marine.acted(env, current, torch.full(shape, 7 if env.num_actions else 0.5, device=env.device))
        _, current = env.step_and_maybe_reset(current)
    return env


def on_host(picture: Any) -> np.ndarray:
    return picture.cpu().numpy() if isinstance(picture, torch.Tensor) else picture


def test_metrics_wait_for_nothing(kind: str) -> None:
    there, here = viewable(stepped(kind, "cuda")), viewable(stepped(kind, "cpu"))
    with waits() as counted:
        found = there.metrics()
    assert counted.total == 0, counted.report()
    for name, wanted in here.metrics().items():
        assert found[name].is_cuda
        torch.testing.assert_close(found[name].cpu(), wanted)


def test_pictures_are_those_of_the_cpu(kind: str) -> None:
    there, here = stepped(kind, "cuda"), stepped(kind, "cpu")
    found = on_host(viewable(there).pictures([0, 2], WIDTH, HEIGHT))
    assert found.shape == (2, HEIGHT, WIDTH, 3)
    draw = viewer.render if isinstance(here, PackingEnv) else marine_viewer.render
    wanted = on_host(draw(here, [0, 2], width=WIDTH, height=HEIGHT))
    assert np.abs(found.astype(int) - wanted).max() <= 1


def test_overlays_are_those_of_the_cpu(kind: str) -> None:
    there, here = stepped(kind, "cuda"), stepped(kind, "cpu")
    views = viewable(there), viewable(here)
    assert isinstance(views[0], Overlaid)
    for name in views[0].overlays:
        drawn = []
        for view, env in zip(views, (there, here), strict=True):
            seen = view.observation(1)
            group = seen if "robots" not in seen.keys() else seen["robots"]  # noqa: SIM118  # of a tensordict
            if isinstance(env, PackingEnv):
                action = group["action_mask"].int().argmax(-1)[0]
                values = torch.arange(group["action_mask"].shape[-1], device=env.device).float()
            else:
                shape = () if env.flat else (env.num_robots,)
                action = torch.full((*shape, *(() if env.num_actions else (2,))), 1, device=env.device)
                values = torch.arange(9.0, device=env.device).expand(*shape, 9)
            assert group.device == env.device
            drawn.append(on_host(view.overlay(name, 1, 320, 240, Decision(action, values))))
        assert np.array_equal(*drawn), name
