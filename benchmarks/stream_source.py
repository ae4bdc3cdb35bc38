"""A program with pictures, for `benchmarks/streaming.py`.

It serves frames of a given size in JPEG, and reports on itself.

Prints a JSON line when it serves, whenever the number of viewers changes and each second; ends with its input.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from torchrl_gpu.streaming import StreamServer

# Of the server's JPEGs.
QUALITY = 80


def main() -> None:
    """Publish at a steady rate until nobody writes to it any more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kilobytes", type=float, default=50.0, help="of a frame in JPEG")
    parser.add_argument("--fps", type=float, default=30.0)
    parser.add_argument("--heartbeat", type=float, default=5.0)
    args = parser.parse_args()
    frames, size = noisy_frames(args.kilobytes)
    settings: dict[str, Any] = {"fps": args.fps, "heartbeat_s": args.heartbeat}
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with StreamServer(port=0, max_clients=256, **settings) as server:
        server.declare("main")
        say(url=server.url, pid=os.getpid(), frame_bytes=size)
        publish(server, frames, args.fps, ended)


def publish(server: StreamServer, frames: list[np.ndarray], fps: float, ended: threading.Event) -> None:
    """A frame at each tick of a clock, whether anybody watches or not."""
    begin = time.perf_counter()
    watchers = -1
    told = 0.0
    count = 0
    while not ended.is_set():
        server.publish(frames[count % len(frames)], meta={"step": count})
        count += 1
        now = time.perf_counter() - begin
        if server.watchers() != watchers or now - told >= 1.0:
            watchers, told = server.watchers(), now
            say(at=time.time(), watchers=watchers, rss_mb=rss_mb(), cpu_s=time.process_time())
        time.sleep(max(0.0, count / fps - (time.perf_counter() - begin)))


def noisy_frames(kilobytes: float, number: int = 16) -> tuple[list[np.ndarray], int]:
    """Draw pictures of 640×480 of about a given size in JPEG.

    Also returns the size of the first one, bytes.
    """
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:480, :640]
    smooth = np.stack([rows / 2, columns / 3, (rows + columns) / 5], -1)
    noise = rng.normal(size=(number, 480, 640, 3))
    low, high = 0.0, 100.0
    # The size grows with the noise.
    for _ in range(12):
        middle = (low + high) / 2
        size = jpeg_bytes(smooth + middle * noise[0])
        low, high = (middle, high) if size < 1000 * kilobytes else (low, middle)
    frames = [np.clip(smooth + low * each, 0, 255).astype(np.uint8) for each in noise]
    return frames, jpeg_bytes(frames[0])


def jpeg_bytes(frame: np.ndarray) -> int:
    """Return the bytes of a frame in JPEG."""
    pixels = np.clip(frame, 0, 255).astype(np.uint8)
    return len(cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1])


def rss_mb() -> float:
    """Resident memory of this process, MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def say(**facts: Any) -> None:
    """A line of JSON."""
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
