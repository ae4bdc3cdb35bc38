"""How long an image takes to become an action, and how many images arrive over DDS, between two processes on loopback.

python -m benchmarks.ros --output benchmarks/results/ros.json

Parity comes first: every message that the bridge's code writes must be to the byte what rosbags writes again of it and,
of images, what a struct by the rules of CDR gives, and must arrive over DDS as it was sent. "bridge": from the
arrival of an image to the sending of its action, less the network's own time, at 640×480 and 30 Hz, asked for in 10 ms.
"wire": from before the writing of an image to its arrival in another process, at 1280×720 and 30 Hz, asked for in 10 ms
with 95% delivered. "there and back": from before the writing of an image to the arrival of its action, less the
network's time.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn

from benchmarks.report import refuse
from torchrl_gpu import machine
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import AgentSpace
from torchrl_gpu.streaming import RosBridge
from torchrl_gpu.streaming.ros2.cyclone import CycloneDds
from torchrl_gpu.streaming.ros2.messages import COMPRESSED, DOUBLES, FLOATS, IMAGE, JOINTS, Messages

CAMERA, ACTION = "/camera/image_raw", "/policy/action"
HZ, WARM_S = 30.0, 2.0
SIZES = {"640x480": (480, 640), "1280x720": (720, 1280)}


class Washer:
    """A policy of clips of the size that the sink's have."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = (
            nn.Conv2d(12, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2304, 2),
        )
        self.network = nn.Sequential(*layers, nn.Sigmoid())
        self.space = AgentSpace("sink", (), {"clip": ((4, 3, 64, 64), "uint8")}, low=(0.0, 0.0), high=(1.0, 1.0))
        self.in_keys, self.device = ["clip"], torch.device("cpu")

    def policy(self, rows: TensorDictBase) -> TensorDictBase:
        """Writes the action."""
        return rows.set("action", self.network(rows["clip"].flatten(1, 2) / 255))


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--domain", type=int, default=77, help="of DDS")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--send", choices=SIZES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.send:
        send(args.domain, SIZES[args.send], args.seconds)
        return
    torch.set_num_threads(1)
    begun, checks = time.perf_counter(), parity(args.domain)
    if failed := [check for check in checks if check["difference"]]:
        refuse(failed, "a message that others read otherwise is of no use, however fast it is")
        sys.exit(1)
    rows = [run(name, args.domain, args.seconds) for name in SIZES]
    result = {
        "benchmark": "ros",
        "machine": machine.describe(torch.device("cpu")),
        "arguments": {"seconds": args.seconds},
        "parity": checks,
        "rows": rows,
        "elapsed_s": time.perf_counter() - begun,
    }
    for row in rows:
        print(row["size"], ", ".join(f"{name} {value:.3g}" for name, value in row.items() if name != "size"))
    print(f"Parity: {len(checks)} checks. Load {result['machine']['load_average']} before.")
    if args.output:
        write_json(args.output, result)


def samples() -> dict[str, bytes]:
    """A message of each type that the bridge reads or writes."""
    messages, draw = Messages(), np.random.default_rng(0)
    found = {f"{IMAGE} {name}": pixels(messages, size, draw.integers(2**60)) for name, size in SIZES.items()}
    return found | {
        COMPRESSED: messages.jpeg(draw.bytes(50_000), 5, "cam"),
        JOINTS: messages.joints(["a", "bc"], [1.5, -2.0], 5),
        FLOATS: messages.floats(draw.random(48)),
        DOUBLES: messages.floats(draw.random(48), DOUBLES),
    }


def pixels(messages: Messages, size: tuple[int, int], stamp_ns: int) -> bytes:
    """An image of noise."""
    noise = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    return messages.pixels(noise, "rgb8", int(stamp_ns), "cam")


def by_hand(size: tuple[int, int], data: bytes) -> bytes:
    """The image again, by the rules of CDR: little endian, numbers aligned to their size."""
    stamp = data[4:12]
    head = bytes.fromhex("00010000") + stamp + struct.pack("<I4s", 4, b"cam\0") + struct.pack("<II", *size)
    head += struct.pack("<I5sBxxI", 5, b"rgb8\0", 0, 3 * size[1]) + struct.pack("<I", 3 * size[0] * size[1])
    return head + np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8).tobytes()


def parity(domain: int) -> list[dict[str, Any]]:
    """What differs in each check; "" for nothing."""
    store, checks = Messages().store, []
    dds, came = CycloneDds(domain, loopback=True), []
    try:
        for name, data in samples().items():
            kind = name.partition(" ")[0]
            again = bytes(store.serialize_cdr(store.deserialize_cdr(data, kind), kind))
            checks.append({"setting": f"{name}, rosbags", "difference": "" if again == data else "bytes"})
            if kind == IMAGE:
                alike = by_hand(SIZES[name.partition(" ")[2]], data) == data
                checks.append({"setting": f"{name}, CDR by hand", "difference": "" if alike else "bytes"})
            topic = f"/parity/t{len(checks)}"
            dds.subscribe(topic, kind, came.append)
            ends = time.monotonic() + 10
            while not came and time.monotonic() < ends:
                dds.publish(topic, kind, data)
                time.sleep(0.05)
            arrived = bool(came) and all(each == data for each in came)
            checks.append({"setting": f"{name}, over DDS", "difference": "" if arrived else "bytes, or nothing came"})
            came.clear()
    finally:
        dds.close()
    return checks


def run(name: str, domain: int, seconds: float) -> dict[str, Any]:
    """Images of one size from another process to the bridge, and actions back."""
    dds, wire = CycloneDds(domain, loopback=True), []

    def arrived(data: bytes) -> None:
        seconds, nanoseconds = struct.unpack_from("<II", data, 4)
        wire.append((time.time_ns() - seconds * 10**9 - nanoseconds) / 1e6)

    dds.subscribe(CAMERA, IMAGE, arrived)
    command = [sys.executable, "-m", "benchmarks.ros", "--send", name, "--domain", str(domain)]
    bridge = RosBridge(Washer(), safe_action=(0.0, 1.0), image_topic=CAMERA, max_age=0.5, rate=HZ, transport=dds)
    with bridge:
        sender = subprocess.run([*command, "--seconds", str(seconds)], capture_output=True, text=True, check=True)
        found = bridge.metrics()
    sent, back, count = (float(each) for each in sender.stdout.split())
    return {
        "size": name,
        "hz": HZ,
        "sent": sent,
        "delivered": len(wire) / sent,
        "wire_median_ms": float(np.median(wire)),
        "wire_p95_ms": float(np.percentile(wire, 95)),
        "bridge_overhead_median_ms": found["overhead_ms"],
        "bridge_overhead_p95_ms": found["overhead_p95_ms"],
        "network_median_ms": found["inference_ms"],
        "there_and_back_median_ms": back,
        "there_and_back_less_network_ms": back - found["inference_ms"],
        "actions_back": count,
        "safe_actions": found["safe_actions"],
    }


def send(domain: int, size: tuple[int, int], seconds: float) -> None:
    """The camera's process: prints how many images were sent, once the bridge was there, the median time to the next
    action, and how many of those came."""
    dds, messages, times = CycloneDds(domain, loopback=True), Messages(), []
    waiting: list[int] = []

    def acted(data: bytes) -> None:
        is_safe = messages.store.deserialize_cdr(data, JOINTS).position[-2] == 1
        if waiting and not is_safe:
            times.append((time.time_ns() - waiting.pop()) / 1e6)

    dds.subscribe(ACTION, JOINTS, acted)
    body = bytearray(pixels(messages, size, 0))
    while not dds.is_matched(CAMERA, IMAGE):
        time.sleep(0.01)
    time.sleep(WARM_S)  # the other side finds the writer, too
    number = int(seconds * HZ)
    due = time.perf_counter()
    for _ in range(number):
        due += 1 / HZ
        time.sleep(max(0.0, due - time.perf_counter()))
        now = time.time_ns()
        waiting[:] = [now]
        struct.pack_into("<II", body, 4, *divmod(now, 10**9))
        dds.publish(CAMERA, IMAGE, bytes(body))
    time.sleep(0.5)
    print(number, float(np.median(times)) if times else float("nan"), len(times))
    dds.close()


if __name__ == "__main__":
    main()
