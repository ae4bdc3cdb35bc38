"""ROS 2 by its own client library, on whatever middleware a sourced install runs.

It was tested against a stand-in that has rclpy's methods, not against an install of ROS 2. So each type is tested at
its first use: a message that rosbags wrote must mean to ROS what it means to rosbags.
"""

from __future__ import annotations

import importlib
import threading
from types import ModuleType
from typing import Protocol

from torchrl_gpu.streaming.ros2.messages import COMPRESSED, IMAGE, TEXT, type_store
from torchrl_gpu.streaming.ros2.transport import Callback

_WHERE = "RosBridge"
_PARTS = ("context", "executors", "qos", "serialization")
# Texts that are kept for a reader; of everything else, the newest.
_KEPT_TEXTS = 64


class _Publisher(Protocol):
    """A publisher of rclpy."""

    def publish(self, data: bytes) -> None: ...


class Rclpy:
    """A node of a context of its own.

    A `Transport`.

    Quality of service is that of `CycloneDds`.

    Raises:
        ModuleNotFoundError: ROS 2 is not installed, or not sourced.
    """

    def __init__(self, domain: int | None) -> None:
        try:
            self._rclpy = importlib.import_module("rclpy")
            self._parts: dict[str, ModuleType] = {name: importlib.import_module(f"rclpy.{name}") for name in _PARTS}
            self._types = importlib.import_module("rosidl_runtime_py.utilities")
        except ImportError as error:
            raise ModuleNotFoundError(
                f"{_WHERE}: ROS 2's rclpy cannot be imported ({error}); source an install before, for example by"
                " `source /opt/ros/jazzy/setup.bash`",
                name=error.name,
            ) from error
        self._context = self._parts["context"].Context()
        # Without the option, rclpy takes ROS_DOMAIN_ID by itself.
        options = {} if domain is None else {"domain_id": domain}
        self._rclpy.init(context=self._context, **options)
        self._node = self._rclpy.create_node("torchrl_gpu", context=self._context)
        self._executor = self._parts["executors"].SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._tested: dict[str, type] = {}
        self._publishers: dict[tuple[str, str], _Publisher] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._spin, name="torchrl_gpu ros receiver", daemon=True)
        self._thread.start()

    def subscribe(self, topic: str, type_name: str, callback: Callback) -> None:
        message_type = self._find_type(type_name)
        is_text = type_name == TEXT
        quality = self._quality(is_text, type_name)
        self._node.create_subscription(message_type, topic, callback, quality, raw=True)

    def publish(self, topic: str, type_name: str, data: bytes) -> None:
        if self._closed:
            raise RuntimeError("Rclpy is closed")
        if (topic, type_name) not in self._publishers:
            is_reliable = type_name not in (IMAGE, COMPRESSED)
            quality = self._quality(is_reliable, type_name)
            publisher = self._node.create_publisher(self._find_type(type_name), topic, quality)
            self._publishers[topic, type_name] = publisher
        self._publishers[topic, type_name].publish(data)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._executor.shutdown()
        self._thread.join()
        self._node.destroy_node()
        self._rclpy.shutdown(context=self._context)

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except Exception:
            # A shutdown may come while it waits.
            if not self._closed:
                raise

    def _quality(self, is_reliable: bool, type_name: str) -> object:
        """Return the quality of service of a subscription or publisher."""
        qos = self._parts["qos"]
        kind = qos.ReliabilityPolicy.RELIABLE if is_reliable else qos.ReliabilityPolicy.BEST_EFFORT
        depth = _KEPT_TEXTS if type_name == TEXT else 1
        profile: object = qos.QoSProfile(depth=depth, history=qos.HistoryPolicy.KEEP_LAST, reliability=kind)
        return profile

    def _find_type(self, type_name: str) -> type:
        """Return the type of a message in this install.

        Raises:
            ValueError: It is another one than rosbags has.
        """
        if type_name not in self._tested:
            found = self._types.get_message(type_name)
            if not self._agrees(type_name, found):
                raise ValueError(
                    f"{_WHERE}: {type_name} of this install is not the one of ROS 2 Humble and later; source another"
                    " install"
                )
            self._tested[type_name] = found
        return self._tested[type_name]

    def _agrees(self, type_name: str, found: type) -> bool:
        """Return whether a message means to ROS what it means to rosbags."""
        serialization = self._parts["serialization"]
        store = type_store()
        theirs = serialization.serialize_message(found())
        try:
            ours = bytes(store.serialize_cdr(store.deserialize_cdr(theirs, type_name), type_name))
        except Exception:
            # rosbags fails in many ways over a message of another form.
            return False
        return bool(serialization.deserialize_message(ours, found) == found())
