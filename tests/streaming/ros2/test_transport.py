"""How transports are chosen, and those that need what most machines lack."""

from __future__ import annotations

import socket
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.streaming.ros2.robots import MESSAGES, until
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, IMAGE, JOINTS
from torchrl_gpu.streaming.ros2.transport import open_transport

PIXEL = np.zeros((1, 1, 3), np.uint8)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def test_one_that_is_not_installed_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rclpy", None)
    with pytest.raises(ModuleNotFoundError, match="want ROS 2's rclpy, for example by") as error:
        open_transport("rclpy", None, "node")
    assert "\n" not in str(error.value)


def test_what_an_extra_brings_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, extra in (("zenoh", "zenoh", "zenoh"), ("cyclonedds.core", "cyclonedds", "ros2")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ModuleNotFoundError, match=rf"torchrl_gpu\[{extra}\]"):
            open_transport(name, 7, "node")


class FakeRclpy:
    """The methods of rclpy that are used, over a dict of topics.

    Args:
        honest: Whether its messages are written as rosbags writes them.
    """

    def __init__(self, honest: bool = True) -> None:
        self.calls: list[tuple[str, Any]] = []

        class Message(str):
            """A type of messages; called, an empty one."""

            def __call__(self) -> Any:
                return Message(self)

        def serialize(message: Message) -> bytes:
            return {JOINTS: MESSAGES.joints([], [], 0), IMAGE: MESSAGES.pixels(PIXEL, "rgb8", 0)}[message]

        def deserialize(data: bytes, kind: Message) -> Any:
            return kind if honest and data == serialize(kind) else None

        class Executor:
            def __init__(self, context: object) -> None:
                self.ended = __import__("threading").Event()

            def add_node(self, node: object) -> None:
                pass

            def spin(self) -> None:
                self.ended.wait()

            def shutdown(self) -> None:
                self.ended.set()

        calls = self.calls

        class Node:
            def create_subscription(self, kind: str, topic: str, callback: Any, qos: Any, raw: bool) -> None:
                calls.append(("subscribe", (kind, topic, qos.reliability, raw)))
                callback(b"came")

            def create_publisher(self, kind: str, topic: str, qos: Any) -> Any:
                calls.append(("declare", (kind, topic, qos.reliability)))
                return types.SimpleNamespace(publish=lambda data: calls.append(("publish", data)))

            def destroy_node(self) -> None:
                calls.append(("destroy", None))

        policy = types.SimpleNamespace(RELIABLE="reliable", BEST_EFFORT="best effort", KEEP_LAST="last")
        quality = types.SimpleNamespace(
            ReliabilityPolicy=policy, HistoryPolicy=policy, QoSProfile=lambda **given: types.SimpleNamespace(**given)
        )
        modules = {
            "rclpy": types.SimpleNamespace(
                init=lambda context, domain_id=None: calls.append(("init", domain_id)),
                create_node=lambda name, context: Node(),
                shutdown=lambda context: calls.append(("shutdown", None)),
            ),
            "rclpy.context": types.SimpleNamespace(Context=object),
            "rclpy.executors": types.SimpleNamespace(SingleThreadedExecutor=Executor),
            "rclpy.qos": quality,
            "rclpy.serialization": types.SimpleNamespace(serialize_message=serialize, deserialize_message=deserialize),
            "rosidl_runtime_py": types.SimpleNamespace(),
            "rosidl_runtime_py.utilities": types.SimpleNamespace(get_message=Message),
        }
        self.modules: dict[str, Any] = modules


@pytest.fixture
def rclpy(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], FakeRclpy]:
    """Puts a stand-in where rclpy is imported from."""

    def put(honest: bool) -> FakeRclpy:
        made = FakeRclpy(honest)
        for name, module in made.modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        return made

    return put


def test_rclpy_passes_bytes_with_ros_2s_quality(rclpy: Callable[[bool], FakeRclpy]) -> None:
    fake, came = rclpy(True), []
    transport = open_transport("rclpy", 5, "node")
    transport.subscribe("/camera", IMAGE, came.append)
    transport.publish("/action", JOINTS, b"bytes")
    transport.close()
    transport.close()
    assert came == [b"came"]
    assert fake.calls == [
        ("init", 5),
        ("subscribe", (IMAGE, "/camera", "best effort", True)),
        ("declare", (JOINTS, "/action", "reliable")),
        ("publish", b"bytes"),
        ("destroy", None),
        ("shutdown", None),
    ]
    with pytest.raises(RuntimeError, match="closed"):
        transport.publish("/action", JOINTS, b"bytes")


def test_rclpy_with_another_type_of_that_name_is_refused_at_first_use(rclpy: Callable[[bool], FakeRclpy]) -> None:
    rclpy(False)
    transport = open_transport("rclpy", None, "node")
    with pytest.raises(ValueError, match="want sensor_msgs/msg/Image as of ROS 2 Humble and later"):
        transport.subscribe("/camera", IMAGE, print)
    transport.close()


@pytest.fixture
def routed() -> Iterator[str]:
    """The configuration of a zenoh session that a router of this process answers."""
    zenoh = pytest.importorskip("zenoh", reason="eclipse-zenoh is not installed")
    at = f"tcp/127.0.0.1:{free_port()}"
    quiet = '"scouting": {"multicast": {"enabled": false}}'
    config = f'{{"mode": "router", "listen": {{"endpoints": ["{at}"]}}, {quiet}}}'
    with zenoh.open(zenoh.Config.from_json5(config)):
        yield f'{{"mode": "peer", "connect": {{"endpoints": ["{at}"]}}, {quiet}}}'


def test_zenoh_carries_bytes_between_sessions(routed: str) -> None:
    from torchrl_gpu.streaming.ros2.zenoh import Zenoh

    camera, bridge, came = Zenoh(3, config=routed), Zenoh(3, config=routed), []
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
    robot, bridge = zenoh.open(zenoh.Config.from_json5(routed)), Zenoh(0, config=routed)
    try:
        robot.declare_subscriber("0/action/**", heard.append)
        until(lambda: bridge.publish("/action", JOINTS, b"1") or bool(heard))
        assert str(heard[-1].key_expr).split("/")[-1].startswith("RIHS01_a13ee3a330e3")
        assert len(heard[-1].attachment.to_bytes()) == 77  # as of Jazzy
        bridge.subscribe("/camera", IMAGE, lambda data: None)
        plain = attachment(1, 2, bytes(16), named=False)
        until(
            lambda: (
                robot.put(key(0, "/camera", IMAGE, "TypeHashNotSupported"), b"2", attachment=plain)
                or not (bridge._has_hash or bridge._is_named)
            )
        )
        heard.clear()
        until(lambda: bridge.publish("/action", JOINTS, b"3") or bool(heard))
        assert str(heard[-1].key_expr) == "0/action/sensor_msgs::msg::dds_::JointState_/TypeHashNotSupported"
        assert len(heard[-1].attachment.to_bytes()) == 33
    finally:
        bridge.close()
        robot.close()


def test_attachments_of_recorded_layout() -> None:
    """Of ROS 2 Lyrical, as recorded from `ros2 topic pub`, and of Jazzy, by the order and names of its fields."""
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
    with pytest.raises(ValueError, match=r"want a zenoh (router or peer|network)") as error:
        zenoh.Zenoh(0)
    assert "\n" not in str(error.value)
