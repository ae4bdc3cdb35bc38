"""The other end of a DDS network, in a process of its own.

Each message names a function here and its arguments.
"""

from __future__ import annotations

import queue
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from torchrl_gpu.streaming.ros2.cyclone import CycloneDds
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, IMAGE, JOINTS, Messages

MESSAGES = Messages()
ACTIONS: list[bytes] = []


def camera_and_motor(dds: CycloneDds, camera: str, action: str) -> dict[str, Any] | None:
    """Sends images of one colour until an action of the policy comes, and tells that."""
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    dds.subscribe(action, JOINTS, came.put)
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        pixels = np.full((480, 640, 3), 77, np.uint8)
        dds.publish(camera, IMAGE, MESSAGES.pixels(pixels, "bgr8", time.time_ns(), "cam"))
        time.sleep(0.03)
        while not came.empty():
            message = MESSAGES.store.deserialize_cdr(came.get(), JOINTS)
            if message.position[-2] == 0:
                stamp = message.header.stamp.sec + 1e-9 * message.header.stamp.nanosec
                return {"name": message.name, "position": message.position[:-1].tolist(), "stamp": stamp}
    return None


def view(dds: CycloneDds, pictures: str, action: str) -> tuple[int, ...]:
    """Return the size of the first picture, and keep the actions."""
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    dds.subscribe(action, JOINTS, ACTIONS.append)
    dds.subscribe(pictures, COMPRESSED, came.put)
    return MESSAGES.image(came.get(timeout=30), COMPRESSED).pixels.shape


def last_action(dds: CycloneDds, number: int) -> list[float]:
    """Return the last of the kept actions, and its age by its stamp.

    Once one is safe after the given number of others.
    """
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        messages = [MESSAGES.store.deserialize_cdr(data, JOINTS) for data in ACTIONS]
        if len(messages) >= number and messages[-1].position[-2] == 1:
            break
        time.sleep(0.01)
    return list(messages[-1].position[:-1])


def declare(dds: CycloneDds, action: str) -> None:
    dds.is_matched(action, JOINTS)


def send_one(dds: CycloneDds, action: str) -> None:
    while not dds.is_matched(action, JOINTS):
        time.sleep(0.01)
    dds.publish(action, JOINTS, MESSAGES.joints(["a"], [1.0], 5))


def leave(dds: CycloneDds, action: str) -> None:
    del dds.writers[action, JOINTS]


def stock_reader(dds: CycloneDds, topic: str) -> dict[str, Any]:
    """Fields of one message, read with cyclonedds' own codec."""
    from cyclonedds.sub import DataReader
    from cyclonedds.topic import Topic

    # DDS is told of this type, with its own codec.
    struct = dds.struct_of(JOINTS)
    reader = DataReader(dds.participant, Topic(dds.participant, f"rt{topic}", struct), dds.quality_of(True, JOINTS))
    found = reader.take_one(timeout=30 * 10**9)
    stamp = found.header.stamp
    fields = {name: list(getattr(found, name)) for name in ("name", "position", "velocity", "effort")}
    return {"stamp": [stamp.sec, stamp.nanosec], **fields}


def main(domain: int, messages: Connection) -> None:
    dds = CycloneDds(domain)
    while True:
        name, *arguments = messages.recv()
        said = globals()[name](dds, *arguments)
        if said is not None:
            messages.send(said)
