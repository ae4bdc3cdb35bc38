"""Chromium behind a driver, and a server with two streams that move."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.streaming.web.browser.page import Page

FORBID = "TORCHRL_GPU_FORBID_SKIPS"
_FLAGS = (
    "--headless",
    # Root may not start it otherwise.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1280,800",
)


def missing() -> str | None:
    """Return what keeps the tests from running on this machine.

    None if nothing does.
    """
    for module in ("selenium", "aiohttp", "av", "cv2"):
        try:
            __import__(module)
        except ModuleNotFoundError:
            return f"needs {module}, which the extra dev brings"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"needs {program}: apt-get install chromium chromium-driver"
    return None


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium with an empty profile, for all tests of the session."""
    problem = missing()
    if problem and "browser" in os.environ.get(FORBID, "").split(","):
        pytest.fail(f"{problem}; {FORBID} forbids to skip")
    if problem:
        pytest.skip(problem)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(10)
    yield driver
    driver.quit()


@pytest.fixture
def page(driver: Any) -> Iterator[Page]:
    """The page of whatever server it opens, left without cookies and kept values."""
    page = Page(driver)
    yield page
    page.leave()


COLORS = {"main": (200, 30, 30), "other": (30, 30, 200)}


class Studio:
    """Publish to a server's streams main, red, and other, blue.

    A bar runs through all pictures.

    Args:
        server: Not started.
        more: Other streams, which are blue too, as members of families are.

    Attributes:
        unwanted: How many times in a row nobody has wanted a frame of a stream, asked twenty times a second.
    """

    def __init__(self, server: Any, more: Sequence[str] = ()) -> None:
        self.server = server
        self.colors = COLORS | dict.fromkeys(more, COLORS["other"])
        self.unwanted = dict.fromkeys(self.colors, 0)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def __enter__(self) -> Studio:
        self.server.start()
        for name in self.colors:
            self.server.declare(name, f"{name.capitalize()} stream")
        self._done.clear()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.server.stop()

    def _publish(self) -> None:
        step = 0
        while not self._done.wait(1 / 20):
            step += 1
            for stream in dict.fromkeys((*self.colors, *self.server.wanted_streams())):
                self.unwanted[stream] = self.unwanted.get(stream, 0) + 1
                if self.server.wanted(stream):
                    self.unwanted[stream] = 0
                    color = self.colors.get(stream, COLORS["other"])
                    self.server.publish(picture(step, color), stream, meta(step))


def picture(step: int, color: tuple[int, int, int]) -> Any:
    """A picture of 160×120 in one colour.

    A white bar at the bottom shows the step.
    """
    import numpy as np

    frame = np.full((120, 160, 3), color, np.uint8)
    frame[100:, : 8 + 8 * (step % 16)] = 255
    return frame


def meta(step: int) -> dict[str, Any]:
    return {"step": 5000 + step, "return": 12.5, "utilization": 0.625, "episode": 3, "env": "bpp10"}


@pytest.fixture
def studio() -> Iterator[Callable[..., Studio]]:
    """Open servers, by the arguments of `StreamServer`.

    They are closed after the test.
    """
    from contextlib import ExitStack

    from torchrl_gpu.streaming.server import StreamServer

    with ExitStack() as stack:

        def open_studio(more: Sequence[str] = (), **arguments: Any) -> Studio:
            return stack.enter_context(Studio(StreamServer(**({"port": 0} | arguments)), more))

        yield open_studio


@pytest.fixture
def downloads(driver: Any, tmp_path: Path) -> Path:
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    return tmp_path
