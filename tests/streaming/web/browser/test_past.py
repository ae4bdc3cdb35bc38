"""Pictures that are kept on the page, held and looked through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.streaming.web.browser.page import Page

pytestmark = pytest.mark.browser
Studios = Callable[..., Any]
SHOWN = """
const row = document.getElementById("picture").getContext("2d").getImageData(0, 110, 160, 1).data;
let length = 0;
while (length < 160 && row[4 * length + 1] > 128) length++;
const step = document.querySelector("#step b").innerText.replace(/,|·.*/g, "");
return [length, Number(step), document.getElementById("when").innerText];
"""


def bar_of(step: int) -> int:
    return 8 + 8 * ((step - 5000) % 16)


@pytest.mark.parametrize("transport", ["jpeg", "h264", "mjpeg"])
def test_the_slider_shows_an_older_picture_with_its_own_figures(page: Page, studio: Studios, transport: str) -> None:
    page.open(studio().server.url + f"?transport={transport}")
    page.wait_for_history(10)
    page.slide("max")
    newest = page.wait(lambda: page.text("mark") == "Held" and page.run(SHOWN), "a held picture")[1]
    steps = []
    for place in ("max - 3", "0"):
        page.slide(place)
        page.wait(lambda: page.step() < min([newest, *steps]), "an older picture")
        bar, step, when = page.run(SHOWN)
        assert abs(bar - bar_of(step)) <= 2, "picture and figures are of the same moment"
        assert when.startswith("−")
        steps.append(step)
    page.click("#hold")
    page.wait(lambda: page.text("when") == "Live" and page.step() > newest, "what happens now")
    assert not page.is_shown("mark")


def test_what_is_kept_is_bounded(page: Page, studio: Studios) -> None:
    """In bytes: here of a large picture of noise."""
    import numpy as np

    server = studio().server
    noise = np.random.default_rng(0).integers(0, 256, (1080, 1920, 3), np.uint8)
    server.declare("noise")
    page.open(server.url + "?stream=noise&transport=jpeg")
    page.wait(lambda: page.text("state") in ("Waiting for a picture", "Live"), "a connection")
    sizes, published = [], 0
    while published < 40:
        if server.wanted("noise"):
            server.publish(noise, "noise", {"step": published})
            published += 1
        sizes.append(page.pictures())
    assert 3 <= max(sizes) < 30, "of about two megabytes each"


def test_a_connection_that_is_lost_leaves_what_is_kept_and_nothing_that_does_nothing(
    page: Page, studio: Studios
) -> None:
    there = studio(more=("main:mask",))
    port = there.server.port
    there.server.state(commands=["pause", "resume", "reset"], paused=False)
    page.open(there.server.url)
    page.wait_for_history(6)
    there.__exit__()
    page.wait(lambda: page.text("state").startswith("Reconnecting"), "a page that tries again")
    page.wait(lambda: page.run("return document.getElementById('replay').disabled"), "buttons that are off")
    on = page.run(
        "return [...document.querySelectorAll('#streams button, #overlays button, #commands button')]"
        ".filter((e) => !e.disabled).length"
    )
    assert on == 0
    live = page.step()
    page.slide("0")
    page.wait(lambda: page.step() < live, "an older picture")
    assert not page.is_shown("note"), "it would hide the picture"
    page.click("#hold")
    page.wait(lambda: "Try now" in page.text("note"), "that the connection is lost")
    studio(port=port, more=("main:mask",))
    page.click("#note button")
    page.wait_for_picture()
    page.wait(lambda: not page.run("return document.getElementById('replay').disabled"), "buttons that are on again")


def test_who_holds_a_picture_holds_it_through_a_new_connection(page: Page, studio: Studios) -> None:
    first = studio()
    port = first.server.port
    page.open(first.server.url)
    page.wait_for_history(3)
    page.click("#hold")
    held = page.step()
    first.__exit__()
    page.wait(lambda: page.text("state").startswith("Reconnecting"), "a page that tries again")
    second = studio(port=port)
    page.wait(lambda: page.text("state") == "Held", "a connection")
    page.wait(lambda: second.unwanted["main"] > 10, "no frame wanted")
    assert page.step() == held
    page.click("#hold")
    page.wait_for_change()
    assert not page.is_shown("note")
