"""Policy on ROS 2 without an installation of ROS.

python examples/ros2_policy.py --checkpoint runs/…/best.ckpt

Without a checkpoint, a few lines follow the bright spot of an image. Without a robot, `--simulate` publishes a camera
that shows such a spot. `ros2 topic echo /policy/action` on another machine of the network shows what is decided.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time

import numpy as np
import torch
from tensordict import TensorDictBase

from torchrl_gpu.policies import AgentSpace, load_policy
from torchrl_gpu.streaming import RosBridge, StreamServer
from torchrl_gpu.streaming.ros2.cyclone import CycloneDds
from torchrl_gpu.streaming.ros2.messages import IMAGE, Messages


class FollowTheSpot:
    """Policy that turns towards the brightest column of a frame.

    The brighter the column, the higher the confidence.
    """

    name = "FollowTheSpot"
    in_keys, device = ["frame"], torch.device("cpu")
    space = AgentSpace("camera", (), {"frame": ((3, 48, 64), "uint8")}, low=(-1.0,), high=(1.0,))

    def policy(self, rows: TensorDictBase) -> TensorDictBase:
        columns = rows["frame"].float().mean((1, 2)) / 255  # (B, W)
        brightness, column = columns.max(-1)
        rows["confidence"] = brightness
        rows["action"] = (column / 31.5 - 1)[:, None]
        return rows


def publish_camera(transport: CycloneDds, topic: str, messages: Messages) -> None:
    """One frame of a spot that swings from left to right."""
    column = np.arange(640)
    spot = 255 * np.exp(-(((column - 320 - 250 * math.sin(time.time())) / 40) ** 2))
    pixels = np.broadcast_to(spot[None, :, None], (480, 640, 3)).astype(np.uint8)
    transport.publish(topic, IMAGE, messages.pixels(pixels, "bgr8", time.time_ns(), "simulated"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", help="of a policy of images")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--image_topic", default="/camera/image_raw")
    parser.add_argument("--safe_action", type=float, nargs="+", default=[0.0])
    parser.add_argument("--simulate", action="store_true", help="publish a camera, too")
    parser.add_argument("--domain", type=int, help="of ROS 2; that of ROS_DOMAIN_ID without")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--seconds", type=float, default=math.inf)
    args = parser.parse_args()
    policy = load_policy(args.checkpoint, args.device) if args.checkpoint else FollowTheSpot()
    transport, messages = CycloneDds(args.domain), Messages()
    with (
        StreamServer(port=args.port, port_tries=20) as server,
        RosBridge(
            policy,
            image_topic=args.image_topic,
            safe_action=args.safe_action,
            camera_topic="/policy/camera/compressed",
            # Without a frame for so long (s) the safe action is sent.
            max_age=0.5,
            rate=30.0,
            transport=transport,
            server=server,
        ) as bridge,
    ):
        print(f"{policy.name} decides; watch at {server.url}", flush=True)
        ends = time.monotonic() + args.seconds
        while time.monotonic() < ends:
            if args.simulate:
                publish_camera(transport, args.image_topic, messages)
            time.sleep(1 / 30)
        print({name: value for name, value in bridge.metrics().items() if value})


if __name__ == "__main__":
    # This is how a user ends the program.
    with contextlib.suppress(KeyboardInterrupt):
        main()
