"""Choice of transports, and those that need what most machines lack."""

from __future__ import annotations

import socket
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import ANY, MagicMock

import numpy as np
import pytest

from tests.streaming.ros2.robots import MESSAGES, until
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, IMAGE, JOINTS
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
    for module, name, extra in (("zenoh", "zenoh", "zenoh"), ("cyclonedds.core", "cyclonedds", "ros2")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ModuleNotFoundError, match=rf"\[{extra}\]"):
            open_transport(name, 7)


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


@pytest.fixture(scope="module")
def routed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A configuration file of a zenoh session.

    A router of this process answers it.
    """
    zenoh = pytest.importorskip("zenoh", reason="eclipse-zenoh is not installed")
    at = f"tcp/127.0.0.1:{free_port()}"
    quiet = '"scouting": {"multicast": {"enabled": false}}'
    file = tmp_path_factory.mktemp("zenoh") / "peer.json5"
    file.write_text(f'{{"mode": "peer", "connect": {{"endpoints": ["{at}"]}}, {quiet}}}')
    config = f'{{"mode": "router", "listen": {{"endpoints": ["{at}"]}}, {quiet}}}'
    with zenoh.open(zenoh.Config.from_json5(config)), pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZENOH_SESSION_CONFIG_URI", str(file))
        yield str(file)


def test_zenoh_carries_bytes_between_sessions(routed: str) -> None:
    from torchrl_gpu.streaming.ros2.zenoh import Zenoh

    camera = Zenoh(3)
    bridge = open_transport("zenoh", 3)
    came = []
    try:
        bridge.subscribe("/camera", COMPRESSED, came.append)
        data = MESSAGES.jpeg(bytes(200_000), 5)
        until(lambda: camera.publish("/camera", COMPRESSED, data) or bool(came))
        assert came[0] == data
    finally:
        camera.close()
        bridge.close()
    with pytest.raises(RuntimeError, match="closed"):
        camera.publish("/camera", COMPRESSED, data)


def test_zenoh_answers_in_the_dialect_that_it_hears(routed: str) -> None:
    import zenoh

    from torchrl_gpu.streaming.ros2.zenoh import Zenoh, attachment, key

    heard: list[Any] = []
    robot, bridge = zenoh.open(zenoh.Config.from_file(routed)), Zenoh(0)
    try:
        robot.declare_subscriber("0/action/**", heard.append)
        until(lambda: bridge.publish("/action", JOINTS, b"1") or bool(heard))
        assert str(heard[-1].key_expr).split("/")[-1].startswith("RIHS01_a13ee3a330e3")
        # Jazzy has this length.
        assert len(heard[-1].attachment.to_bytes()) == 77
        bridge.subscribe("/camera", IMAGE, lambda data: None)
        plain = attachment(1, 2, bytes(16), named=False)
        until(
            lambda: (
                robot.put(key(0, "/camera", IMAGE, "TypeHashNotSupported"), b"2", attachment=plain)
                or not (bridge._has_hash or bridge._is_named)
            )
        )
        # What was sent before may still arrive: only the bytes tell which message is heard.
        until(lambda: bridge.publish("/action", JOINTS, b"3") or any(bytes(one.payload) == b"3" for one in heard))
        assert str(heard[-1].key_expr) == "0/action/sensor_msgs::msg::dds_::JointState_/TypeHashNotSupported"
        assert len(heard[-1].attachment.to_bytes()) == 33
    finally:
        bridge.close()
        robot.close()


def test_attachments_of_recorded_layout() -> None:
    """Attachments as recorded.

    Of ROS 2 Lyrical from `ros2 topic pub`, and of Jazzy by the order and names of its fields.
    """
    from torchrl_gpu.streaming.ros2.zenoh import attachment, is_named

    recorded = bytes.fromhex("0900000000000000df8ab6f7e735d31810fe98e4a3b54b6e599c5934f4cfc25343")
    time_ns = int.from_bytes(recorded[8:16], "little")
    assert attachment(9, time_ns, recorded[17:], named=False) == recorded
    named = attachment(9, time_ns, recorded[17:], named=True)
    assert named[:24] == b"\x0fsequence_number" + recorded[:8]
    assert named[24:49] == b"\x10source_timestamp" + recorded[8:16]
    assert named[49:] == b"\x0asource_gid" + recorded[16:]
    assert is_named(named)
    assert not is_named(recorded)


def test_no_router_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zenoh", reason="eclipse-zenoh is not installed")
    from torchrl_gpu.streaming.ros2 import zenoh

    monkeypatch.setattr(zenoh, "_ROUTER", f"tcp/127.0.0.1:{free_port()}")
    monkeypatch.setattr(zenoh, "_ROUTER_S", 0.05)
    monkeypatch.delenv("ZENOH_SESSION_CONFIG_URI", raising=False)
    with pytest.raises(ValueError, match=r"zenoh (router|network)") as error:
        zenoh.Zenoh(0)
    assert "\n" not in str(error.value)
