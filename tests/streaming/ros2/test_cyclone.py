"""ROS 2's wire over real DDS, on the loopback interface.

The other end is a process of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import forks
from tests.streaming.ros2 import elsewhere as other_end
from tests.streaming.ros2.robots import ACTION, CAMERA, IMAGES, MESSAGES, Told, until
from torchrl_gpu.streaming import RosBridge
from torchrl_gpu.streaming.ros2.cyclone import CycloneDds
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, DOUBLES, FLOATS, IMAGE, JOINTS, TEXT

pytest.importorskip("cyclonedds", reason="cyclonedds has no wheel for this Python on this processor")

# A domain for each process that runs tests.
DOMAIN = 1 + os.getpid() % 200
PIXELS = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
BYTES = {
    IMAGE: MESSAGES.pixels(PIXELS, "rgb8", 5, "cam"),
    COMPRESSED: MESSAGES.jpeg(bytes(range(256)) * 99, 5),
    JOINTS: MESSAGES.joints(["a", "b"], [1.5, -2.0], 5),
    FLOATS: MESSAGES.floats([1.0, 2.5, 3.0]),
    DOUBLES: MESSAGES.floats([1.0, 2.5], DOUBLES),
    TEXT: MESSAGES.string('{"do": "élan"}'),
}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_LOCALHOST_ONLY", "1")


@pytest.fixture
def dds() -> Iterator[CycloneDds]:
    made = CycloneDds(DOMAIN)
    yield made
    made.close()
    assert not [thread for thread in threading.enumerate() if "ros receiver" in thread.name]


class Elsewhere:
    """A process of its own on the same network."""

    def __init__(self, log: Path) -> None:
        self.messages, theirs = forks.CONTEXT.Pipe()
        self.process = forks.start(other_end.main, DOMAIN, theirs, log=log, environment={"ROS_LOCALHOST_ONLY": "1"})

    def ask(self, function: str, *arguments: object) -> None:
        self.messages.send([function, *arguments])

    def says(self) -> Any:
        assert self.messages.poll(60)
        return self.messages.recv()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    made = Elsewhere(tmp_path_factory.mktemp("elsewhere") / "log")
    yield made
    made.process.kill()
    made.process.join()


def test_a_type_is_known_by_ros_2s_names(dds: CycloneDds) -> None:
    topic = dds.topic_of("/camera/image_raw", IMAGE)
    assert (topic.get_name(), topic.get_type_name()) == ("rt/camera/image_raw", "sensor_msgs::msg::dds_::Image_")
    assert [field for field in dds.types[IMAGE].__annotations__] == [
        *("header", "height", "width", "encoding", "is_bigendian", "step", "data")
    ]


@pytest.mark.parametrize("type_name", BYTES)
def test_bytes_arrive_as_they_were_sent(dds: CycloneDds, type_name: str) -> None:
    came: list[bytes] = []
    dds.subscribe("/a/topic", type_name, came.append)
    until(lambda: dds.is_matched("/a/topic", type_name))
    dds.publish("/a/topic", type_name, BYTES[type_name])
    until(lambda: bool(came))
    assert came[0] == BYTES[type_name]


def test_images_come_from_another_process_and_actions_go_there(dds: CycloneDds, elsewhere: Elsewhere) -> None:
    policy = Told(observations=IMAGES, confidence=0.5)
    topics = {"image_topic": CAMERA, "action_topic": ACTION}
    with RosBridge(policy, **topics, safe_action=(0.25, -0.25), max_age=10.0, rate=100.0, transport=dds):
        elsewhere.ask("camera_and_motor", CAMERA, ACTION)
        found = elsewhere.says()
    assert found["position"][:4] == [0.5, 0.75, 0.5, 0.0]
    assert found["name"] == ["action_0", "action_1", "confidence", "safe", "age_s"]
    assert abs(time.time() - found["stamp"]) < 60
    assert (policy.seen[0]["frame"] == 77).all()


def test_pictures_and_the_last_safe_action_reach_another_process(dds: CycloneDds, elsewhere: Elsewhere) -> None:
    topics = {"observation_topic": "/v", "camera_topic": "/view/compressed", "action_topic": "/view/action"}
    options: dict[str, Any] = {"safe_action": (0.25, -0.25), "rate": 5.0, "camera_rate": 100.0, "max_age": 60.0}
    elsewhere.ask("view", topics["camera_topic"], topics["action_topic"])
    with RosBridge(Told(), **topics, **options, transport=dds) as bridge:
        until(lambda: dds.is_matched("/view/compressed", COMPRESSED) and dds.is_matched("/view/action", JOINTS))
        until(lambda: elsewhere.messages.poll(0.02) or (bridge.publish_frame(PIXELS) and False))
        bridge.inputs.put("observation", MESSAGES.floats([0, 0, 0]))
        until(lambda: bridge.metrics()["actions"] == 1)
    assert elsewhere.says() == (480, 640, 3)
    elsewhere.ask("last_action", 2)
    assert elsewhere.says() == [0.25, -0.25, 0.0, 1.0]


def test_what_cyclonedds_itself_decodes_is_what_was_sent(dds: CycloneDds, elsewhere: Elsewhere) -> None:
    """The other end reads with cyclonedds' own codec.

    It knows the type from what DDS announces.
    """
    elsewhere.ask("stock_reader", "/joints")
    until(lambda: elsewhere.messages.poll(0.02) or dds.publish("/joints", JOINTS, BYTES[JOINTS]) is not None)
    wanted = {"stamp": [0, 5], "name": ["a", "b"], "position": [1.5, -2.0], "velocity": [], "effort": []}
    assert elsewhere.says() == wanted


def test_a_writer_that_leaves_is_no_message(dds: CycloneDds, elsewhere: Elsewhere) -> None:
    came: list[bytes] = []
    dds.subscribe("/one/action", JOINTS, came.append)
    elsewhere.ask("declare", "/one/action")
    # Nobody hears what comes before.
    until(lambda: bool(dds.readers[0][0].get_matched_publications()))
    elsewhere.ask("send_one", "/one/action")
    until(lambda: bool(came))
    elsewhere.ask("leave", "/one/action")
    until(lambda: not dds.readers[0][0].get_matched_publications())
    assert len(came) == 1


def test_a_domain_in_use_and_one_that_is_none_are_one_line(dds: CycloneDds) -> None:
    with pytest.raises(ValueError, match=rf"domain {DOMAIN}") as error:
        CycloneDds(DOMAIN)
    assert "\n" not in str(error.value)
    for bad in (233, -1, 1.5, "a"):
        with pytest.raises(ValueError, match=rf"domain .*{bad}"):
            CycloneDds(bad)  # type: ignore[arg-type]


def test_a_network_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    config = '<CycloneDDS><Domain><General><Interfaces><NetworkInterface name="nowhere0"/></Interfaces></General>'
    monkeypatch.setenv("CYCLONEDDS_URI", config + "</Domain></CycloneDDS>")
    with pytest.raises(ValueError, match=rf"domain {DOMAIN}"):
        CycloneDds(DOMAIN)
    monkeypatch.delenv("CYCLONEDDS_URI")
    made = CycloneDds(DOMAIN)
    made.close()
    made.close()
    with pytest.raises(RuntimeError, match="closed"):
        made.publish("/a", FLOATS, BYTES[FLOATS])


def test_the_environment_names_the_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_DOMAIN_ID", str(DOMAIN))
    made = CycloneDds()
    assert made.domain == DOMAIN
    made.close()
    monkeypatch.setenv("ROS_DOMAIN_ID", "all")
    with pytest.raises(ValueError, match=r"domain .*whole number"):
        CycloneDds()
