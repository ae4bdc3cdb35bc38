"""Photographs the page of a policy that plays: `python docs/images/policy_page.py [--folder FOLDER] [--url URL]`.

policy_page.png: on a desk and on a phone. Without an address it plays dishwashing_video.yaml, whose policy sees a clip.
Needs Chromium and its driver.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from page import photograph, running, side_by_side
from PIL import Image

PLAY = ("play", "--config=dishwashing_video.yaml", "--trainer.accelerator=cpu", "--port=0", "--speed=10")
READY = "return document.title.startsWith('Live') && document.getElementById('seen').width > 1"
READY += " && document.getElementById('past').dataset.pictures >= 25"

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    parser.add_argument("--url", help="of what is shown already")
    asked = parser.parse_args()
    with running(PLAY) if asked.url is None else contextlib.nullcontext(asked.url) as address:
        sheet = side_by_side(*photograph(address, "env0", READY))
    sheet.quantize(128, dither=Image.Dither.NONE).save(asked.folder / "policy_page.png", optimize=True)
