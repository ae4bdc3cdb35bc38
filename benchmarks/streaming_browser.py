"""How old pictures are when Chromium has painted them: `python benchmarks/streaming_browser.py [--output FILE]`.

The time of capture is painted into every frame as black and white blocks, read back from the page's own canvas behind
each paint, and compared with the browser's clock, which on one machine is the same. Server, producer, browser and
driver share the machine. Needs chromium, chromedriver and selenium; WebRTC also a network besides 127.0.0.1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aioice.ice
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from selenium import webdriver

from torchrl_gpu.machine import describe
from torchrl_gpu.streaming.server import StreamServer

SIZES = ((640, 480), (1280, 720))
BITS, BLOCK = 40, 16  # a clock of tenths of a millisecond, over the whole width of the smaller frame
WRAP = 2**BITS
JOINS = 5
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,900",
)

# What runs in the page: reads the clock of what has been painted; beside it stands the age that the page itself shows.
SCRIPT = (
    f"const BITS = {BITS}, BLOCK = {BLOCK}, WRAP = 2 ** BITS;"
    """
const pen = Object.assign(document.createElement("canvas"), { width: BITS * BLOCK, height: BLOCK })
  .getContext("2d", { willReadFrequently: true });
const clock = () => (performance.timeOrigin + performance.now()) * 10;
window.bench = { ages: [], shown: [], paints: 0, unreadable: 0, last: -1, first: null, offered: null };
bench.began = clock() / 10;
bench.read = (source) => {
  const at = clock();
  pen.drawImage(source, 0, 0, BITS * BLOCK, BLOCK, 0, 0, BITS * BLOCK, BLOCK);
  const row = pen.getImageData(0, BLOCK / 2, BITS * BLOCK, 1).data;
  let stamp = 0;
  for (let i = 0; i < BITS; i++) stamp = stamp * 2 + (row[4 * (i * BLOCK + BLOCK / 2) + 1] > 127);
  const age = (((at - stamp) % WRAP) + WRAP) % WRAP / 10;
  if (stamp === bench.last) return;
  bench.last = stamp;
  bench.first ??= at / 10;
  bench.paints++;
  if (age < 10000) bench.ages.push(age); else bench.unreadable++;
};
document.addEventListener("painted", () => {
  const video = document.getElementById("video");
  bench.read(video.hidden ? document.getElementById("picture") : video);
  bench.shown.push(document.getElementById("age").innerText);
});
const fetched = window.fetch;
window.fetch = (...given) => {
  if (String(given[0]).includes("webrtc/offer")) bench.offered ??= clock() / 10;
  return fetched(...given);
};
"""
)
IN_AN_IMG = """
const image = document.body.appendChild(document.createElement("img"));
image.src = "/stream.mjpg?stream=main";
const look = () => { if (image.naturalWidth) bench.read(image); requestAnimationFrame(look); };
look();
"""
CLEAR = "Object.assign(bench, { ages: [], shown: [], paints: 0, unreadable: 0 });"


def main() -> None:
    """Measures everything, prints it and writes it."""
    args = arguments()
    result: dict[str, Any] = {"benchmark": "streaming_browser", "machine": describe(torch.device("cpu")), "rows": []}
    with browser() as driver:
        result["browser"] = f"{driver.capabilities['browserName']} {driver.capabilities['browserVersion']}"
        for size in SIZES:
            for name, fps, query in (("JPEG", 30, "jpeg"), ("H.264", 30, "h264"), ("MJPEG", 10, "mjpeg")):
                result["rows"].append(painted(driver, name, size, fps, f"?transport={query}", args.seconds))
            result["rows"].append(painted(driver, "MJPEG in <img>", size, 10, "?transport=snapshot", args.seconds))
        if aioice.ice.get_host_addresses(use_ipv4=True, use_ipv6=True):
            for size in SIZES:
                result["rows"].append(painted(driver, "WebRTC", size, 30, "?transport=webrtc", args.seconds))
            result["webrtc"] = connections(driver, SIZES[0], args.seconds)
        else:
            print("no WebRTC: this machine has no address but its own, which ICE never offers", file=sys.stderr)
    show(result)
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(result, indent=1) + "\n")


def painted(driver: Any, name: str, size: tuple[int, int], fps: float, query: str, seconds: float) -> dict[str, Any]:
    """Ages of pictures at one size over one transport."""
    with producer(size, fps) as server:
        driver.get(server.url + query)
        if "<img>" in name:
            driver.execute_script("document.getElementById('hold').click();" + CLEAR + IN_AN_IMG)
        until(driver, "return bench.paints > 5")
        first = driver.execute_script("return bench.first - bench.began")
        time.sleep(2)
        driver.execute_script(CLEAR)
        time.sleep(seconds)
        ages, shown, paints, unreadable = driver.execute_script(
            "return [bench.ages, bench.shown, bench.paints, bench.unreadable]"
        )
    told = [float(each.removesuffix(" ms")) for each in shown if each.endswith(" ms")]
    return {
        "transport": name,
        "width": size[0],
        "height": size[1],
        "fps": fps,
        "painted_fps": paints / seconds,
        "age_ms": spread(ages),
        "age_shown_by_page_ms": statistics.median(told) if told else None,
        "unreadable": unreadable,
        "first_picture_ms": first,
    }


def connections(driver: Any, size: tuple[int, int], seconds: float) -> dict[str, Any]:
    """WebRTC from an offer to a picture, and what one viewer and four cost the server."""
    with producer(size, 30) as server:
        alone = [join(driver, server) for _ in range(JOINS)]
        driver.get(server.url + "?transport=webrtc")
        until(driver, "return bench.paints > 60")
        late = [joined_late(driver, server) for _ in range(JOINS)]
        one = load(driver, seconds)
        home = driver.current_window_handle
        for _ in range(3):
            open_window(driver)
            driver.get(server.url + "?transport=webrtc")
            until(driver, "return bench.paints > 5")
        four = load(driver, seconds)
        close_windows(driver, home)
    return {
        "offer_to_picture_ms": spread([each["offer"] for each in alone]),
        "page_to_picture_ms": spread([each["page"] for each in alone]),
        "late_offer_to_picture_ms": spread([each["offer"] for each in late]),
        "one_viewer": one,
        "four_viewers": four,
        "cost_of_four": four["server_cpu"] / one["server_cpu"],
    }


def join(driver: Any, server: StreamServer) -> dict[str, float]:
    """Milliseconds to the first picture, from the offer and from the beginning of the page."""
    driver.get("about:blank")
    until(driver, "return true", lambda: server.watchers() == 0)
    driver.get(server.url + "?transport=webrtc")
    until(driver, "return bench.first !== null")
    offer, page = driver.execute_script("return [bench.first - bench.offered, bench.first - bench.began]")
    return {"offer": offer, "page": page}


def joined_late(driver: Any, server: StreamServer) -> dict[str, float]:
    """The same in a window of its own, while another one watches."""
    home = driver.current_window_handle
    open_window(driver)
    driver.get(server.url + "?transport=webrtc")
    until(driver, "return bench.first !== null")
    offer, page = driver.execute_script("return [bench.first - bench.offered, bench.first - bench.began]")
    close_windows(driver, home)
    return {"offer": offer, "page": page}


def load(driver: Any, seconds: float) -> dict[str, Any]:
    """Share of one core that this process takes, and what each open window paints meanwhile."""
    windows = driver.window_handles
    for window in windows:
        driver.switch_to.window(window)
        driver.execute_script(CLEAR)
    begin, busy = time.monotonic(), processor_seconds()
    time.sleep(seconds)
    elapsed, busy = time.monotonic() - begin, processor_seconds() - busy
    rates = []
    for window in windows:
        driver.switch_to.window(window)
        rates.append(driver.execute_script("return bench.paints") / elapsed)
    return {"server_cpu": busy / elapsed, "painted_fps": rates}


def processor_seconds() -> float:
    """Of this process: server and producer, and next to nothing of the driver while it sleeps."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def producer(size: tuple[int, int], fps: float) -> Iterator[StreamServer]:
    """A server to which frames with a clock are published at a rate."""
    done = threading.Event()
    with StreamServer(port=0, fps=max(fps, 30)) as server:
        server.declare("main")
        thread = threading.Thread(target=produce, args=(server, scenes(*size), fps, done))
        thread.start()
        try:
            yield server
        finally:
            done.set()
            thread.join()


def produce(server: StreamServer, frames: list[np.ndarray], fps: float, done: threading.Event) -> None:
    """Publishes frames, with the time in each, whenever somebody wants one."""
    number, due = 0, time.monotonic()
    while not done.wait(max(0.0, due - time.monotonic())):
        number, due = number + 1, max(due + 1 / fps, time.monotonic() - 1 / fps)
        if server.wanted("main"):
            frame = frames[number % len(frames)]
            paint_clock(frame, time.time())
            server.publish(frame, meta={"step": number, "return": number % 100 / 10, "utilization": number % 50 / 50})


def scenes(width: int, height: int) -> list[np.ndarray]:
    """Frames of something that moves before a textured ground."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(0).normal(0, 4, (height, width, 3))
    ground = np.stack([90 + 60 * np.sin(x / 37), 110 + 50 * np.sin(y / 29), 120 + 40 * np.sin((x + y) / 53)], -1)
    frames = []
    for number in range(60):
        frame = np.clip(ground + noise, 0, 255).astype(np.uint8)
        left = round((width - 200) * (0.5 + 0.5 * np.sin(2 * np.pi * number / 60)))
        frame[height // 3 : height // 3 + 150, left : left + 150] = (240, 160, 40)
        frame[height // 2 : height // 2 + 90, width - left - 120 : width - left] = (40, 90, 220)
        frames.append(frame)
    return frames


def paint_clock(frame: np.ndarray, seconds: float) -> None:
    """Writes a time into the first rows."""
    stamp = int(seconds * 10_000) % WRAP
    bits = np.array([stamp >> (BITS - 1 - bit) & 1 for bit in range(BITS)], np.uint8) * 255
    frame[:BLOCK, : BITS * BLOCK] = np.repeat(bits, BLOCK)[None, :, None]


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Chromium with an empty profile, whose pages carry the script."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        add_script(driver)
        try:
            yield driver
        finally:
            driver.quit()


def add_script(driver: Any) -> None:
    """Has the script run in whatever this window loads."""
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SCRIPT})


def open_window(driver: Any) -> None:
    """Another window, not a tab: what is behind another tab is hidden, and asks for nothing."""
    driver.switch_to.new_window("window")
    add_script(driver)


def close_windows(driver: Any, home: str) -> None:
    """Closes all windows but one, and goes there."""
    for window in driver.window_handles:
        if window != home:
            driver.switch_to.window(window)
            driver.close()
    driver.switch_to.window(home)


def until(driver: Any, script: str, also: Any = lambda: True, timeout: float = 30.0) -> None:
    """Waits for something in the page."""
    end = time.monotonic() + timeout
    while not (driver.execute_script(script) and also()):
        if time.monotonic() > end:
            said = driver.execute_script("return document.body.innerText")
            raise RuntimeError(f"never true: {script}; the page says {said[:200]!r}")
        time.sleep(0.05)


def spread(values: list[float]) -> dict[str, float]:
    """Number, median, 95th percentile and largest."""
    p95 = float(np.percentile(values, 95))
    return {"number": len(values), "median": statistics.median(values), "p95": p95, "most": max(values)}


def show(result: dict[str, Any]) -> None:
    """Prints what came of it."""
    table = Table("transport", "size", "fps", "painted", "age, ms", "p95", "page says", "first picture, ms")
    for row in result["rows"]:
        age = row["age_ms"]
        says = "–" if row["age_shown_by_page_ms"] is None else f"{row['age_shown_by_page_ms']:.0f}"
        table.add_row(
            row["transport"],
            f"{row['width']}×{row['height']}",
            f"{row['fps']}",
            f"{row['painted_fps']:.1f}",
            f"{age['median']:.1f}",
            f"{age['p95']:.1f}",
            says,
            f"{row['first_picture_ms']:.0f}",
        )
    Console(width=120).print(table)
    if "webrtc" in result:
        print(json.dumps(result["webrtc"], indent=2))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
