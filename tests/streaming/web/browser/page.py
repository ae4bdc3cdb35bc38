"""The page as a viewer sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_TIMEOUT = 20.0
_COLOR = """
const canvas = document.getElementById("picture"), video = document.getElementById("video");
if (!video.hidden) { canvas.width = video.videoWidth; canvas.height = video.videoHeight; }
const pen = canvas.getContext("2d");
if (!video.hidden && video.videoWidth) pen.drawImage(video, 0, 0);
return [...pen.getImageData(80, 40, 1, 1).data].slice(0, 3);
"""
_BAR = """
const row = document.getElementById("picture").getContext("2d").getImageData(0, 110, 160, 1).data;
let length = 0;
while (length < 160 && row[4 * length + 1] > 128) length++;
return length;
"""


class Page:
    """One tab.

    Args:
        driver: Of selenium.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self._scripts: list[str] = []

    def open(self, url: str) -> None:
        self.driver.get(url)

    def before_scripts(self, script: str) -> None:
        """Has JavaScript run before that of the page, whenever one is loaded."""
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        self._scripts.append(added["identifier"])

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def leave(self) -> None:
        for identifier in self._scripts:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": identifier})
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.driver.get("about:blank")
        self.driver.get_log("browser")

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def text(self, name: str) -> str:
        """Text that can be read at the element of an id.

        Empty where it is hidden.
        """
        return self.run(f"return document.getElementById('{name}').innerText.trim()")

    def is_shown(self, name: str) -> bool:
        return self.run(f"return document.getElementById('{name}').offsetWidth > 0")

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector('{selector}').click()")

    def transport(self) -> str:
        return self.run("return document.getElementById('transport').selectedOptions[0].text")

    def color(self) -> str:
        red, green, blue = self.run(_COLOR)
        if red > 120 > max(green, blue):
            return "red"
        return "blue" if blue > 120 > max(red, green) else "other"

    def bar(self) -> int:
        """Pixels of the bar, which differ from step to step."""
        return self.run(_BAR)

    def complaints(self) -> list[str]:
        """Return errors that the browser has logged since the last call.

        Such as breaches of the content policy.
        """
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def wait(self, happened: Callable[[], Any], what: str) -> Any:
        """Return the result of a function as soon as it is true.

        Fails if it never is.
        """
        end = time.monotonic() + _TIMEOUT
        while time.monotonic() < end:
            if found := happened():
                return found
            time.sleep(0.02)
        raise AssertionError(f"never happened: {what}; the page says {self.text('state')!r}, {self.text('said')!r}")

    def wait_for_picture(self, color: str = "red") -> None:
        self.wait(lambda: self.text("state") == "Live" and self.color() == color, f"a live picture, {color}")

    def step(self) -> int:
        return int(self.run("return document.querySelector('#step b').innerText.replace(/,|·.*/g, '')"))

    def wait_for_history(self, pictures: int) -> None:
        """Until the page is live and keeps so many pictures."""
        self.wait(lambda: self.text("state") == "Live" and self.pictures() >= pictures, f"{pictures} pictures")

    def pictures(self) -> int:
        return int(self.run("return document.getElementById('past').dataset.pictures ?? 0"))

    def slide(self, script: str) -> None:
        """Set the slider over the pictures that are kept.

        In the script `max` is its end.
        """
        move = "const at = document.getElementById('past'), max = Number(at.max); at.value = {}; "
        self.run(move.format(script) + "at.dispatchEvent(new Event('input', {bubbles: true}));")

    def wait_for_change(self) -> None:
        before = self.bar()
        self.wait(lambda: self.bar() != before, "another picture")
