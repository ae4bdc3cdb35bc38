"""Policy that drives a scene of MuJoCo, watched in a browser.

It needs `pip install -e '.[physics,stream]'`:

python examples/mujoco_camera.py --policy swing.pt

The policy is any file that `load_policy` reads with 4 numbers in (two angles, two speeds) and 2 out (torques, Nm).
MuJoCo draws without a screen by MUJOCO_GL=egl, the default here, or osmesa.
"""

from __future__ import annotations

import os

# This must be set before anything imports MuJoCo, and torchrl does.
os.environ.setdefault("MUJOCO_GL", "egl")

import mujoco
import numpy as np
import torch
from torch import Tensor

from torchrl_gpu.serving import simulator

FPS, SIZE = 30, (360, 480)
ARM = """<mujoco><option timestep="0.005"/>
<default><joint axis="0 1 0" damping=".05"/><motor ctrlrange="-3 3"/><geom type="capsule" size=".04"/></default>
<worldbody><light pos="0 -2 3"/><geom type="plane" size="2 2 .1" rgba=".8 .8 .85 1"/>
<body pos="0 0 1"><joint name="shoulder"/><geom fromto="0 0 0 0 0 -.4" rgba=".8 .3 .2 1"/>
<body pos="0 0 -.4"><joint name="elbow"/><geom fromto="0 0 0 0 0 -.4" rgba=".2 .5 .8 1"/></body></body>
<camera name="front" pos="0 -2.5 1" xyaxes="1 0 0 0 0 1"/></worldbody>
<actuator><motor joint="shoulder"/><motor joint="elbow"/></actuator></mujoco>"""


class Arm:
    """An arm of two links that hangs from a point, 0.3 rad away from rest."""

    def __init__(self, device: str) -> None:
        self.forward, self.model = mujoco.mj_step, mujoco.MjModel.from_xml_string(ARM)
        self.data, self.renderer = mujoco.MjData(self.model), mujoco.Renderer(self.model, *SIZE)
        self.data.qpos[:] = 0.3

    def observe(self) -> Tensor:
        """Angles, rad, and their speeds, rad/s, (4,)."""
        return torch.from_numpy(np.concatenate([self.data.qpos, self.data.qvel]).astype(np.float32))

    def step(self, action: Tensor | None) -> None:
        """Hold the torques for one period.

        Without torques the arm swings.
        """
        self.data.ctrl[:] = 0.0 if action is None else action.numpy()
        for _ in range(round(1 / FPS / self.model.opt.timestep)):
            self.forward(self.model, self.data)

    def render(self) -> np.ndarray:
        """uint8 (H, W, 3)."""
        self.renderer.update_scene(self.data, "front")
        return self.renderer.render()


if __name__ == "__main__":
    simulator.main(Arm, __doc__, FPS)
