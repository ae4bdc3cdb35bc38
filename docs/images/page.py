"""Photographs the page of a real run: `python docs/images/page.py [--folder FOLDER] [--validations N] [--url URL]`.

stream_page.png: on a desk and on a phone. Without an address it starts a run of packing.yaml, small enough for a CPU,
and waits for so many validations. Needs Chromium and its driver.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver

RUN = (
    "fit",
    "--config=packing.yaml",
    "--trainer.accelerator=cpu",
    "--trainer.max_steps=200000",
    "--model.env.num_envs=32",
    "--model.updates_per_step=2",
    "--model.batch_size=64",
    "--model.warmup_frames=1024",
    "--data.steps_per_epoch=60",
    "--data.num_val_episodes=32",
    "--trainer.callbacks+=torchrl_gpu.callbacks.FrameStream",
    "--trainer.callbacks.port=0",
    "--trainer.callbacks.most_share=0.2",
)
DESK, PHONE = (1280, 800), (390, 844)
GAP = 40


@contextlib.contextmanager
def running(words: Sequence[str] = RUN) -> Iterator[str]:
    """Runs a subcommand in a folder that goes away, and gives the address of the page."""
    program = "lightning" if words[0] == "fit" else "torchrl-gpu"
    code = f"import sys; from torchrl_gpu.cli import main; sys.exit(main({list(words)!r}, program={program!r}))"
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            while True:
                said = (Path(folder) / "log").read_text(encoding="utf-8", errors="replace")
                if found := re.search(r"watch at (http://[\d.:]+/)", said):
                    yield found[1]
                    return
                if process.poll() is not None:
                    raise RuntimeError(f"the run ended: {said[-2000:]}")
                time.sleep(0.5)
        finally:
            process.terminate()
            process.wait()


def wait_for(url: str, validations: int) -> None:
    """Until the run has been validated so many times."""
    while True:
        with urllib.request.urlopen(f"{url}curves") as answer:
            curves = {each["name"]: each["steps"] for each in json.load(answer)["curves"]}
        if len(curves.get("val/utilization", [])) >= validations:
            return
        time.sleep(2)


READY = "return document.title.startsWith('Live') && document.getElementById('past').dataset.pictures >= 25"


def photograph(url: str, stream: str = "best", ready: str = READY) -> tuple[Image.Image, Image.Image]:
    """The page on a desk, light, and on a phone, dark."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,900"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        page = driver, url, stream, ready
        return shot(*page, DESK, "light", mobile=False), shot(*page, PHONE, "dark", mobile=True)
    finally:
        driver.quit()


def shot(
    driver: Any, url: str, stream: str, ready: str, size: tuple[int, int], theme: str, *, mobile: bool
) -> Image.Image:
    """One photograph, of a page at which a script says that it is ready."""
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1.5, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(url)
    driver.execute_script(f"localStorage.setItem('torchrl_gpu.theme', '{theme}')")
    driver.get(f"{url}?stream={stream}")
    while not driver.execute_script(ready):
        time.sleep(0.05)
    return Image.open(io.BytesIO(base64.b64decode(driver.get_screenshot_as_base64()))).convert("RGB")


def side_by_side(desk: Image.Image, phone: Image.Image) -> Image.Image:
    """Both at the same height, on white."""
    phone = phone.resize((round(phone.width * desk.height / phone.height), desk.height), Image.Resampling.LANCZOS)
    sheet = Image.new("RGB", (desk.width + GAP + phone.width, desk.height), "white")
    sheet.paste(desk, (0, 0))
    sheet.paste(phone, (desk.width + GAP, 0))
    return sheet


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--validations", type=int, default=20)
    parser.add_argument("--url", help="of a run that is there already")
    asked = parser.parse_args()
    with running() if asked.url is None else contextlib.nullcontext(asked.url) as address:
        wait_for(address, asked.validations)
        sheet = side_by_side(*photograph(address))
    sheet.quantize(256, dither=Image.Dither.NONE).save(asked.folder / "stream_page.png", optimize=True)
