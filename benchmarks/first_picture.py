"""What a newcomer sees of a run: `python benchmarks/first_picture.py`.

Starts `lightning fit` of shipped configs with `FrameStream`, waits until it trains, and opens the page's WebSocket a
few times: how long until the first picture, and how many pictures there are for each training step from then on. Also
how long `/snapshot.jpg` takes while nobody watches. About a minute for each config, on a machine that does nothing
else; options that are not its own go to `lightning fit`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from streaming import Row, describe, line

from torchrl_gpu import configs

HERE = Path(__file__).parent
CONFIGS = ("packing_dqn.yaml", "packing_irregular.yaml", "navigation_iqn.yaml")
START_S = 300.0
LARGEST = 1 << 24


def main() -> None:
    """Measures, prints each figure beside its target, and writes all as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "first_picture.json")
    parser.add_argument("--configs", nargs="+", default=list(CONFIGS))
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=12, help="new ones behind the first, after which a visit ends")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which it ends in any case")
    parser.add_argument("--pause_s", type=float, default=5.0, help="before each, with nobody watching")
    args, options = parser.parse_known_args()  # others go to `lightning fit`
    os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")  # torchrl announces every buffer that it allocates
    command = " ".join(["python benchmarks/first_picture.py", *sys.argv[1:]])
    result: dict[str, Any] = {"command": command, "machine": describe(), "runs": {}}
    rows: list[Row] = []
    for name in args.configs:
        print(f"{name} …", flush=True)
        found, raw = measure(name, args, options)
        result["runs"][name] = raw
        rows += found
        for row in found:
            print(line(row), flush=True)
    result["rows"] = [row.data() for row in rows]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"Written: {args.output}")


def measure(name: str, args: argparse.Namespace, options: list[str]) -> tuple[list[Row], dict[str, Any]]:
    """One config."""
    config = yaml.safe_load(Path(configs.find(name)).read_text(encoding="utf-8"))
    updates = config["model"]["init_args"].get("updates_per_step", 4)  # which is every module's default
    with running(name, options) as (url, address_s):
        visits = asyncio.run(visit(url, args))
    firsts = [each["first_s"] for each in visits["pages"]]
    steps = [step for each in visits["pages"] for step in each["steps"]]
    per_step = [pictures_per_step(each["steps"], updates) for each in visits["pages"]]
    gaps = [gap for each in visits["pages"] for gap in each["gaps_s"]]
    between = sum(sum(each["gaps_s"][1:-1]) for each in visits["pages"])
    seconds_a_step = between / max(1.0, sum(trained(each["steps"], updates) for each in visits["pages"]))
    notes = f"slowest of {len(firsts)} visits; {len(steps)} pictures, {seconds_a_step:.2f} s a training step"
    rows = [
        Row(f"{name}: first picture", max(firsts), "s", 1.0, notes=notes),
        Row(f"{name}: snapshot", max(visits["snapshots_s"]), "s", 1.0, notes="while nobody watches"),
        Row(f"{name}: longest silence behind it", max(gaps, default=float("inf")), "s", 5.0 + 2 * seconds_a_step),
    ]
    if name == "packing_dqn.yaml":
        rows.append(Row(f"{name}: pictures per training step", statistics.mean(per_step), "", 1.0, least=True))
    return rows, visits | {"address_s": address_s, "pictures_per_step": per_step, "updates_per_step": updates}


def trained(steps: list[int], updates: int) -> float:
    """Training steps between the first and the last of some pictures."""
    return (steps[-1] - steps[0]) / updates if steps else 0.0


def pictures_per_step(steps: list[int], updates: int) -> float:
    """Of training steps from the first to the last of some pictures, how many were shown; 0 where none was."""
    return len(set(steps)) / (trained(steps, updates) + 1) if steps else 0.0


async def visit(url: str, args: argparse.Namespace) -> dict[str, Any]:
    """Opens the page's socket a few times, with pauses in which nobody watches and a snapshot is asked for."""
    pages, snapshots = [], []
    async with aiohttp.ClientSession() as session:
        await trains(session, url)
        for _ in range(args.visits):
            await asyncio.sleep(args.pause_s)
            begin = time.perf_counter()
            async with session.get(f"{url}snapshot.jpg?stream=env0") as answer:
                answer.raise_for_status()
                await answer.read()
            snapshots.append(time.perf_counter() - begin)
            await asyncio.sleep(args.pause_s)
            pages.append(await page(session, url, args))
    return {"pages": pages, "snapshots_s": snapshots}


async def trains(session: aiohttp.ClientSession, url: str) -> None:
    """Waits until updates are made: until then a run fills its replay buffer, with nothing to see."""
    async with asyncio.timeout(START_S), session.ws_connect(f"{url}ws", max_msg_size=LARGEST, compress=0) as socket:
        async for header in pictures(socket):
            if header["meta"].get("step", 0) > 0:
                return


async def page(session: aiohttp.ClientSession, url: str, args: argparse.Namespace) -> dict[str, Any]:
    """One visit: seconds until the first picture, and the steps of those that were drawn after it.

    `gaps_s` are the seconds from each picture to the next one, the first and the end of the visit included.
    """
    begin, arrived, steps = time.perf_counter(), list[float](), list[int]()
    async with session.ws_connect(f"{url}ws", max_msg_size=LARGEST, compress=0) as socket:
        try:
            async with asyncio.timeout(args.seconds):
                async for header in pictures(socket):
                    step = header["meta"].get("step", 0)
                    if not steps or step != steps[-1]:  # one that is shown twice has arrived once
                        arrived.append(time.perf_counter() - begin)
                        steps.append(step)
                    if len(steps) > args.pictures:
                        break
        except TimeoutError:
            pass
    end = time.perf_counter() - begin
    gaps = [b - a for a, b in zip(arrived, [*arrived[1:], end], strict=True)]
    # The first one was drawn before anybody came.
    return {"first_s": arrived[0] if arrived else end, "steps": steps[1:], "gaps_s": gaps}


async def pictures(socket: aiohttp.ClientWebSocketResponse) -> Any:
    """Headers of the pictures of env0, each acknowledged at once."""
    await socket.send_json({"type": "watch", "stream": "env0", "codec": "jpeg", "fps": None})
    async for message in socket:
        if message.type == aiohttp.WSMsgType.BINARY:
            (length,) = struct.unpack_from(">I", message.data)
            header = json.loads(message.data[4 : 4 + length])
            await socket.send_json({"type": "ack", "seq": header["seq"]})
            yield header


@contextmanager
def running(name: str, options: list[str]) -> Iterator[tuple[str, float]]:
    """`lightning fit` of a config: the address of its page, and the seconds until it was printed."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "torchrl_gpu.cli", "fit", "--config", name, "--trainer.max_steps=1000000"]
        words += [f"--trainer.default_root_dir={folder}", f"--trainer.logger.init_args.save_dir={folder}"]
        words += ["--trainer.callbacks+=torchrl_gpu.callbacks.FrameStream", "--trainer.callbacks.port=0", *options]
        said, begin = Path(folder) / "said.txt", time.perf_counter()
        with said.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        try:
            while not (found := re.search(r"watch at (http://\S+)", said.read_text(encoding="utf-8"))):
                if process.poll() is not None or time.perf_counter() - begin > START_S:
                    raise RuntimeError(f"{name}: want an address; got {said.read_text(encoding='utf-8')[-2000:]}")
                time.sleep(0.05)
            yield found[1], time.perf_counter() - begin
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
