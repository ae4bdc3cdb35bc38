"""Pictures of what runs: encoded where they lie, served to browsers and to ROS 2.

Here are `StreamServer` (`server.py`, to be read first), streams and their viewers (`broadcast`), encoders (`codecs`),
the web server (`web`) and the bridge to a robot's topics (`ros2`). Not here is what draws environments
(`envs.viewable`) and what answers for a policy (`serving`). The import loads neither torch nor an extra's packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchrl_gpu.streaming.broadcast.policy_view import PolicyView as PolicyView
    from torchrl_gpu.streaming.broadcast.policy_view import observation_picture as observation_picture
    from torchrl_gpu.streaming.broadcast.protocol import Command as Command
    from torchrl_gpu.streaming.broadcast.protocol import read_picture as read_picture
    from torchrl_gpu.streaming.codecs.mp4 import Mp4Writer as Mp4Writer
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline as GpuFramePipeline
    from torchrl_gpu.streaming.ros2.bridge import RosBridge as RosBridge
    from torchrl_gpu.streaming.server import StreamServer as StreamServer

_HOMES = {
    "Command": "broadcast.protocol",
    "GpuFramePipeline": "codecs.pipeline",
    "Mp4Writer": "codecs.mp4",
    "PolicyView": "broadcast.policy_view",
    "RosBridge": "ros2.bridge",
    "StreamServer": "server",
    "observation_picture": "broadcast.policy_view",
    "read_picture": "broadcast.protocol",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
