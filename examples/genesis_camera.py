"""Policy that drives a scene of Genesis, watched in a browser.

It needs `pip install -e '.[genesis,stream]'`:

python examples/genesis_camera.py --policy push.pt

The policy is any file that `load_policy` reads with 6 numbers in (place and speed of a box) and 3 out (the force on it,
N). Without a screen Genesis draws by PYOPENGL_PLATFORM=egl, or by osmesa, the default here on a CPU, which needs
libosmesa6. The first start compiles its kernels, which takes minutes; later ones find them again.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from torchrl_gpu.device import get_device
from torchrl_gpu.serving import simulator

FPS, SIZE = 30, (480, 360)


class Box:
    """A box of a kilogram that is pushed about on a plane."""

    def __init__(self, device: str) -> None:
        on_cpu = get_device(device).type == "cpu"
        if on_cpu:
            os.environ.setdefault("PYOPENGL_PLATFORM", "osmesa")
        import genesis

        genesis.init(backend=genesis.cpu if on_cpu else genesis.cuda, logging_level="warning")
        self.scene = genesis.Scene(sim_options=genesis.options.SimOptions(dt=1 / FPS, substeps=4), show_viewer=False)
        self.scene.add_entity(genesis.morphs.Plane())
        size = 0.2
        material = genesis.materials.Rigid(rho=1.0 / size**3)
        box = genesis.morphs.Box(size=(size,) * 3, pos=(0.0, 0.0, 0.5))
        self.box: Any = self.scene.add_entity(box, material=material)
        self.camera: Any = self.scene.add_camera(res=SIZE, pos=(1.5, -1.5, 1.2), lookat=(0.0, 0.0, 0.1), GUI=False)
        self.scene.build()
        # The first push and the first picture compile kernels.
        self.step(torch.zeros(3))
        self.render()

    def observe(self) -> Tensor:
        """Place, m, and speed, m/s, (6,), where Genesis computes."""
        return torch.cat([self.box.get_pos(), self.box.get_vel()]).float()

    def step(self, action: Tensor | None) -> None:
        """Push the box for one period.

        Without a force the box falls and comes to rest.
        """
        if action is not None:
            self.box.apply_links_external_wrench(action[None].clamp(-20, 20))
        self.scene.step()

    def render(self) -> Any:
        """Draw the scene, (H, W, 3) uint8.

        This is an array of the rasteriser, or a tensor that stays on its GPU.
        """
        return self.camera.render(rgb=True)[0]


if __name__ == "__main__":
    simulator.main(Box, __doc__, FPS)
