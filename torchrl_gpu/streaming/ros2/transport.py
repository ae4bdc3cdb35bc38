"""The protocol of transports: bytes by topic, over any middleware."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import Protocol

from torchrl_gpu.system import arguments

Callback = Callable[[bytes], None]
"""Takes the bytes of a message on a thread of the transport, and returns at once."""

TRANSPORTS = ("auto", "cyclonedds", "rclpy")
# Module and class of each.
_HOMES = {"cyclonedds": ("cyclone", "CycloneDds"), "rclpy": ("rclpy", "Rclpy")}
_MAX_DOMAIN = 232


class Transport(Protocol):
    """Messages in and out as CDR bytes.

    Topics are absolute, such as "/camera/image_raw", types such as "sensor_msgs/msg/Image".
    """

    def subscribe(self, topic: str, type_name: str, callback: Callback) -> None:
        """Call back with each message.

        Of those that come while the callback runs, only the newest counts.
        """

    def publish(self, topic: str, type_name: str, data: bytes) -> None:
        """Send a message, without waiting for who receives it."""

    def close(self) -> None:
        """End every subscription. Closing again does nothing.

        When it returns nothing is called back any more.
        """


def open_transport(name: str, domain: int | None) -> Transport:
    """Return the transport of a name, in a domain of ROS 2.

    Args:
        name: Of `TRANSPORTS`, checked before. "auto" is rclpy if that can be imported, else cyclonedds.
        domain: None for that of the environment.
    """
    if name == "auto":
        name = "rclpy" if importlib.util.find_spec("rclpy") else "cyclonedds"
    module_name, class_name = _HOMES[name]
    module = importlib.import_module(f"torchrl_gpu.streaming.ros2.{module_name}")
    transport: Transport = getattr(module, class_name)(domain)
    return transport


def ros_domain(domain: int | None) -> int:
    """Return a domain of ROS 2, by default that of the environment.

    Raises:
        ValueError: It is no integer from 0 to 232.
    """
    given = (os.environ.get("ROS_DOMAIN_ID") or 0) if domain is None else domain
    plain = int(given) if str(given).isdecimal() else given
    return arguments.whole("RosBridge", "domain", plain, 0, _MAX_DOMAIN)
