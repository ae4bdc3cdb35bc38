"""ROS 2 by its own client library, on whatever middleware a sourced install runs.

It was tested against a stand-in that has rclpy's methods, not against an install of ROS 2. So each type is tested at
its first use: a message that rosbags wrote must mean to ROS what it means to rosbags.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from torchrl_gpu.streaming.ros2.messages import COMPRESSED, IMAGE, TEXT, type_store
from torchrl_gpu.streaming.ros2.transport import Callback

_WHERE = "RosBridge"


class Rclpy:
    """A node of a context of its own; see `Transport`. Quality of service is that of `CycloneDds`."""

    def __init__(self, domain: int | None) -> None:
        try:
            rclpy = importlib.import_module("rclpy")
            names = ("context", "executors", "qos", "serialization")
            self._parts = {name: importlib.import_module(f"rclpy.{name}") for name in names}
            self._types = importlib.import_module("rosidl_runtime_py.utilities")
        except ImportError as error:
            message = f"want ROS 2's rclpy, for example by `source /opt/ros/jazzy/setup.bash`; got {error}"
            raise ModuleNotFoundError(f"{_WHERE}: {message}", name=error.name) from error
        self._context = self._parts["context"].Context()
        rclpy.init(context=self._context, **({} if domain is None else {"domain_id": domain}))
        self._rclpy, self._node = rclpy, rclpy.create_node("torchrl_gpu", context=self._context)
        self._executor = self._parts["executors"].SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._tested: dict[str, Any] = {}
        self._publishers: dict[tuple[str, str], Any] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._spin, name="torchrl_gpu ros receiver", daemon=True)
        self._thread.start()

    def subscribe(self, topic: str, type_name: str, callback: Callback) -> None:
        made = self._tested_type(type_name)
        self._node.create_subscription(made, topic, callback, self._quality(type_name == TEXT, type_name), raw=True)

    def publish(self, topic: str, type_name: str, data: bytes) -> None:
        if self._closed:
            raise RuntimeError("Rclpy: want an open transport; got one that was closed")
        if (topic, type_name) not in self._publishers:
            quality = self._quality(type_name not in (IMAGE, COMPRESSED), type_name)
            made = self._node.create_publisher(self._tested_type(type_name), topic, quality)
            self._publishers[topic, type_name] = made
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
        except Exception:  # of a shutdown that comes while it waits
            if not self._closed:
                raise

    def _quality(self, reliable: bool, type_name: str) -> Any:
        qos = self._parts["qos"]
        kind = qos.ReliabilityPolicy.RELIABLE if reliable else qos.ReliabilityPolicy.BEST_EFFORT
        depth = 64 if type_name == TEXT else 1
        return qos.QoSProfile(depth=depth, history=qos.HistoryPolicy.KEEP_LAST, reliability=kind)

    def _tested_type(self, type_name: str) -> Any:
        if type_name not in self._tested:
            found = self._types.get_message(type_name)
            if not self._passes(type_name, found):
                wanted = f"{type_name} as of ROS 2 Humble and later"
                raise ValueError(f"{_WHERE}: want {wanted}; got an install that has another")
            self._tested[type_name] = found
        return self._tested[type_name]

    def _passes(self, type_name: str, found: Any) -> bool:
        serialization, store = self._parts["serialization"], type_store()
        theirs = serialization.serialize_message(found())
        try:
            ours = bytes(store.serialize_cdr(store.deserialize_cdr(theirs, type_name), type_name))
        except Exception:  # of rosbags, of a message of another form
            return False
        return bool(serialization.deserialize_message(ours, found) == found())
