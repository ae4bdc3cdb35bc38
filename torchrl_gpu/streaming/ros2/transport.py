"""The protocol of transports: bytes by topic, over any middleware."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Any, Protocol

from torchrl_gpu.system import arguments

Callback = Callable[[bytes], None]
"""Takes the bytes of a message on a thread of the transport, and returns at once."""

TRANSPORTS = ("auto", "cyclonedds", "rclpy", "zenoh")


class Transport(Protocol):
    """Messages in and out as CDR bytes. Topics are absolute, such as "/camera/image_raw", types such as
    "sensor_msgs/msg/Image".
    """

    def subscribe(self, topic: str, type_name: str, callback: Callback) -> None:
        """Calls back with each message; of those that come while it runs, with the newest."""

    def publish(self, topic: str, type_name: str, data: bytes) -> None:
        """Sends a message; never waits for who receives it."""

    def close(self) -> None:
        """Ends every subscription; when it returns nothing is called back any more. Closing again does nothing."""


def open_transport(name: str, domain: int | None) -> Transport:
    """The transport of a name of `TRANSPORTS`, checked before, in a domain of ROS 2; None for that of the environment.

    "auto" is rclpy where that can be imported, and cyclonedds elsewhere.
    """
    if name == "auto":
        name = "rclpy" if importlib.util.find_spec("rclpy") else "cyclonedds"
    homes = {"cyclonedds": ("cyclone", "CycloneDds"), "rclpy": ("rclpy", "Rclpy"), "zenoh": ("zenoh", "Zenoh")}
    module, made = homes[name]
    transport: Transport = getattr(importlib.import_module(f"torchrl_gpu.streaming.ros2.{module}"), made)(domain)
    return transport


def ros_domain(domain: int | None) -> int:
    """A domain of ROS 2, by default that of the environment; ValueError for what is none."""
    given: Any = (os.environ.get("ROS_DOMAIN_ID") or 0) if domain is None else domain
    return arguments.whole("RosBridge", "domain", int(given) if str(given).isdecimal() else given, 0, 232)
