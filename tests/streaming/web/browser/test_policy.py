"""The panel of a policy: what it saw and did, beside the camera."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.streaming.web.browser.conftest import picture
from tests.streaming.web.browser.page import Page
from tests.streaming.web.browser.test_contrast import both_themes

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=alert(1)>"
SEEN = "return [...document.getElementById('seen').getContext('2d').getImageData(5, 5, 1, 1).data].slice(0, 3)"


@contextmanager
def showing(server: Any, **changes: Any) -> Iterator[dict[str, Any]]:
    """Shows a policy twenty times a second; what is given may be changed meanwhile."""
    from torchrl_gpu.streaming import PolicyView

    given = {"action": {"turn": -0.5, HOSTILE: float("nan")}, "inference_ms": 4.25, "message_age_s": 0.03}
    given |= {"seen": np.full((10, 10, 3), (20, 200, 40), np.uint8), "policy": HOSTILE, "stale": False}
    given |= {"confidence": 0.75} | changes
    done = threading.Event()

    def show() -> None:
        step = 0
        while not done.wait(1 / 20):
            step += 1
            server.show_policy(PolicyView(picture(step, (200, 30, 30)), **given), "camera", {"step": step})

    thread = threading.Thread(target=show)
    with server:
        thread.start()
        try:
            yield given
        finally:
            done.set()
            thread.join()


@pytest.fixture
def server() -> Any:
    import torch  # noqa: F401  # now, or the first picture would wait for it

    from torchrl_gpu.streaming.server import StreamServer

    return StreamServer(port=0)


def is_green(page: Page) -> bool:
    red, green, blue = page.run(SEEN)
    return bool(green > 150 > max(red, blue))


@pytest.mark.parametrize("query", ["", "?transport=jpeg"])
def test_what_it_saw_and_did(page: Page, server: Any, query: str) -> None:
    with showing(server) as given:
        page.open(server.url + query)
        page.wait(lambda: page.is_shown("saw") and is_green(page), "what the policy saw")
        page.wait_for_picture("red")
        told = ("policy-who", "inference", "message-age", "confidence")
        assert [page.text(name) for name in told] == [HOSTILE, "4.3 ms", "30.0 ms", "75.0%"]
        assert page.text("actions").split("\n") == ["turn", "−0.5", HOSTILE[:32], "–"]
        assert not page.is_shown("stale")
        assert page.run("return document.querySelectorAll('#policy img').length") == 0
        assert "Inference" not in page.text("facts")
        both_themes(page, "a policy")
        given.update(stale=True, message_age_s=1.5, action=7)
        page.wait(lambda: page.is_shown("stale"), "a flag")
        page.wait(lambda: page.text("message-age") == "1.5 s", "the age")
        page.wait(lambda: page.text("action") == "7" and not page.is_shown("actions"), "a choice")
        both_themes(page, "a stale policy")
        page.resize(390, 844)
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        page.click('[data-name="seen"]')
        page.wait(lambda: not page.is_shown("saw"), "one picture where both would be the same")
        page.wait(lambda: page.run("return document.getElementById('picture').width") == 10, "the whole picture")
        assert page.complaints() == []


def test_a_held_picture_keeps_its_numbers(page: Page, server: Any) -> None:
    with showing(server) as given:
        page.open(server.url)
        page.wait_for_history(3)
        page.click("#hold")
        given.update(inference_ms=99.0)
        page.wait(lambda: not server.watchers(), "nobody who is sent anything")
        assert page.text("inference") == "4.3 ms"
        page.click("#hold")
        page.wait(lambda: page.text("inference") == "99.0 ms", "those of now")
