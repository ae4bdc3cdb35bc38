"""Choice of transports, and those that need what most machines lack."""

from __future__ import annotations

import socket
import sys
import threading
import types
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY, MagicMock

import numpy as np
import pytest

from tests.streaming.ros2.robots import MESSAGES
from torchrl_gpu.streaming.ros2.messages import IMAGE, JOINTS
from torchrl_gpu.streaming.ros2.transport import open_transport


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_missing_transport_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rclpy", None)
    with pytest.raises(ModuleNotFoundError, match=r"rclpy .*for example") as error:
        open_transport("rclpy", None)
    assert "\n" not in str(error.value)


def test_extra_of_a_transport_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cyclonedds.core", None)
    with pytest.raises(ModuleNotFoundError, match=r"\[ros2\]"):
        open_transport("cyclonedds", 7)


class Message(str):
    """A type of messages, which called gives an empty one."""

    def __call__(self) -> Any:
        return Message(self)


EMPTY = {JOINTS: MESSAGES.joints([], [], 0), IMAGE: MESSAGES.pixels(np.zeros((1, 1, 3), np.uint8), "rgb8", 0)}


@pytest.fixture
def rclpy(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], MagicMock]:
    """Put a stand-in where rclpy is imported from.

    Its messages are written as rosbags writes them, or are not.
    """

    def put(honest: bool) -> MagicMock:
        fake = MagicMock()
        utilities = MagicMock()
        ended = threading.Event()
        executor, node = fake.executors.SingleThreadedExecutor.return_value, fake.create_node.return_value
        executor.spin.side_effect, executor.shutdown.side_effect = ended.wait, ended.set
        node.create_subscription.side_effect = lambda kind, topic, callback, qos, raw: callback(b"came")
        fake.qos.ReliabilityPolicy = types.SimpleNamespace(RELIABLE="reliable", BEST_EFFORT="best effort")
        fake.qos.QoSProfile.side_effect = lambda **given: given["reliability"]
        fake.serialization.serialize_message.side_effect = EMPTY.get
        understood = fake.serialization.deserialize_message
        understood.side_effect = lambda data, kind: kind if honest and data == EMPTY[kind] else None
        utilities.get_message.side_effect = Message
        modules = {"rclpy": fake, "rosidl_runtime_py": MagicMock(), "rosidl_runtime_py.utilities": utilities}
        modules |= {f"rclpy.{name}": getattr(fake, name) for name in ("context", "executors", "qos", "serialization")}
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        return fake

    return put


def test_rclpy_passes_bytes_with_ros_2s_quality(rclpy: Callable[[bool], MagicMock]) -> None:
    fake, came = rclpy(True), []
    transport = open_transport("rclpy", 5)
    transport.subscribe("/camera", IMAGE, came.append)
    transport.publish("/action", JOINTS, b"bytes")
    transport.close()
    transport.close()
    assert came == [b"came"]
    node = fake.create_node.return_value
    fake.init.assert_called_once_with(context=ANY, domain_id=5)
    node.create_subscription.assert_called_once_with(IMAGE, "/camera", ANY, "best effort", raw=True)
    node.create_publisher.assert_called_once_with(JOINTS, "/action", "reliable")
    node.create_publisher.return_value.publish.assert_called_once_with(b"bytes")
    node.destroy_node.assert_called_once_with()
    fake.shutdown.assert_called_once_with(context=ANY)
    with pytest.raises(RuntimeError, match="closed"):
        transport.publish("/action", JOINTS, b"bytes")


def test_rclpy_with_another_type_of_that_name_is_refused_at_first_use(rclpy: Callable[[bool], MagicMock]) -> None:
    rclpy(False)
    transport = open_transport("rclpy", None)
    with pytest.raises(ValueError, match=r"sensor_msgs/msg/Image .*install"):
        transport.subscribe("/camera", IMAGE, print)
    transport.close()
