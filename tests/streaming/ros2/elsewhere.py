"""The other end of a DDS network: python -m tests.streaming.ros2.elsewhere DOMAIN

Each line of the standard input names a function of this module and its arguments; what it says is a line of output.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from typing import Any

import numpy as np

from torchrl_gpu.streaming.ros2.cyclone import CycloneDds
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, IMAGE, JOINTS, Messages

MESSAGES = Messages()
ACTIONS: list[bytes] = []


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def camera_and_motor(dds: CycloneDds, camera: str, action: str) -> None:
    """Sends images of one colour until an action of the policy comes, and writes that."""
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
                say(decided={"name": message.name, "position": message.position[:-1].tolist(), "stamp": stamp})
                return


def view(dds: CycloneDds, pictures: str, action: str) -> None:
    """Says the size of the first picture; keeps the actions."""
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    dds.subscribe(action, JOINTS, ACTIONS.append)
    dds.subscribe(pictures, COMPRESSED, came.put)
    say(size=MESSAGES.image(came.get(timeout=30), COMPRESSED).pixels.shape)


def last_action(dds: CycloneDds, number: int) -> None:
    """Says the last of the actions kept, and how old it is by its stamp, once one is safe behind so many others."""
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        messages = [MESSAGES.store.deserialize_cdr(data, JOINTS) for data in ACTIONS]
        if len(messages) >= number and messages[-1].position[-2] == 1:
            break
        time.sleep(0.01)
    say(last=messages[-1].position[:-1].tolist())


def declare(dds: CycloneDds, action: str) -> None:
    dds.is_matched(action, JOINTS)


def send_one(dds: CycloneDds, action: str) -> None:
    while not dds.is_matched(action, JOINTS):
        time.sleep(0.01)
    dds.publish(action, JOINTS, MESSAGES.joints(["a"], [1.0], 5))


def leave(dds: CycloneDds, action: str) -> None:
    del dds._writers[action, JOINTS]


def stock_reader(dds: CycloneDds, topic: str) -> None:
    """Reads one message with cyclonedds' own codec, and writes its fields."""
    from cyclonedds.sub import DataReader
    from cyclonedds.topic import Topic

    struct = dds._struct(JOINTS)  # as DDS is told of it, with its own codec
    reader = DataReader(dds._participant, Topic(dds._participant, f"rt{topic}", struct), dds._qos(reliable=True))
    found = reader.take_one(timeout=30 * 10**9)
    stamp = found.header.stamp
    fields = {name: list(getattr(found, name)) for name in ("name", "position", "velocity", "effort")}
    say(stamp=[stamp.sec, stamp.nanosec], **fields)


def main() -> None:
    dds = CycloneDds(int(sys.argv[1]), loopback=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        globals()[name](dds, *arguments)
    dds.close()


if __name__ == "__main__":
    main()
