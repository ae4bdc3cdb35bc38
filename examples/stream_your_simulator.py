"""Shows a simulator in the browser: python examples/stream_your_simulator.py

MuJoCo renders where it is installed with an OpenGL that needs no screen; elsewhere a scene is drawn with NumPy.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import time

import numpy as np

from torchrl_gpu.streaming import StreamServer

SIZE, FPS = (360, 480), 30
PENDULUM = """<mujoco><default><joint axis="0 1 0"/><geom rgba=".8 .3 .2 1"/></default><worldbody>
<light pos="0 -2 3"/><geom type="plane" size="2 2 .1" rgba=".8 .8 .85 1"/>
<body pos="0 0 1.2"><joint/><geom type="capsule" size=".04" fromto="0 0 0 0 0 .5"/>
<body pos="0 0 .5"><joint/><geom type="capsule" size=".04" fromto="0 0 0 0 0 .4" rgba=".2 .5 .8 1"/></body></body>
<camera name="front" pos="0 -3 1.2" xyaxes="1 0 0 0 0 1"/><camera name="top" pos="0 0 4"/></worldbody></mujoco>"""


class MujocoScene:
    """A double pendulum."""

    def __init__(self) -> None:
        os.environ.setdefault("MUJOCO_GL", "egl")
        import mujoco

        self.forward, self.model = mujoco.mj_step, mujoco.MjModel.from_xml_string(PENDULUM)
        self.data, self.renderer = mujoco.MjData(self.model), mujoco.Renderer(self.model, *SIZE)
        mujoco.mj_forward(self.model, self.data)
        self.data.qpos[:] = 0.8

    def step(self) -> None:
        for _ in range(int(1 / FPS / self.model.opt.timestep)):
            self.forward(self.model, self.data)

    def render(self, camera: str) -> np.ndarray:
        self.renderer.update_scene(self.data, camera)
        # (H, W, 3), RGB.
        return self.renderer.render()


class NumpyScene:
    """A ball on a circle."""

    angle = 0.0

    def step(self) -> None:
        self.angle += 0.05

    def render(self, camera: str) -> np.ndarray:
        row, col = np.mgrid[: SIZE[0], : SIZE[1]]
        depth = np.sin(self.angle) * (100 if camera == "top" else 20)
        inside = (row - 180 - depth) ** 2 + (col - 240 - 150 * np.cos(self.angle)) ** 2 < 40**2
        return np.where(inside[..., None], (220, 90, 40), (235, 238, 242)).astype(np.uint8)


def make_scene() -> MujocoScene | NumpyScene:
    try:
        return MujocoScene()
    # MuJoCo is not installed, or there is no OpenGL without a screen: each driver has an error of its own.
    except Exception as error:
        print(f"No MuJoCo renderer ({type(error).__name__}: {error}): a scene drawn with NumPy instead")
        return NumpyScene()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--steps", type=int, help="after which it ends; runs on without")
    args = parser.parse_args()
    scene = make_scene()
    with StreamServer(port=args.port, port_tries=20, fps=FPS) as server:
        for name in ("front", "views", "opencv"):
            server.declare(name)
        print(f"Watch at {server.url}", flush=True)
        for step in itertools.count() if args.steps is None else range(args.steps):
            scene.step()
            # Once a second while nobody watches.
            if server.wanted("front"):
                server.publish(scene.render("front"), "front", meta={"step": step})
            # (N, H, W, 3) becomes a grid. A tensor on a GPU would stay there until it is encoded.
            if server.wanted("views"):
                server.publish(np.stack([scene.render(camera) for camera in ("front", "top")]), "views")
            # Blue, green, red is the order of OpenCV and ROS.
            if server.wanted("opencv"):
                server.publish(scene.render("top")[..., ::-1], "opencv", bgr=True)
            time.sleep(1 / FPS)


if __name__ == "__main__":
    # This is how a user ends the program.
    with contextlib.suppress(KeyboardInterrupt):
        main()
