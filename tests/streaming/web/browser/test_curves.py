"""The curves of a run on the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.streaming.web.browser.page import Page

pytestmark = pytest.mark.browser
Studios = Callable[..., Any]
NAMES = "return [...document.querySelectorAll('#plots figcaption span')].map((e) => e.innerText)"
READINGS = "return [...document.querySelectorAll('#plots figcaption')].map((e) => e.innerText.split('\\n').slice(1))"
POINT = """
const canvas = document.querySelector('#plots canvas');
canvas.dispatchEvent(new PointerEvent('pointermove', {{clientX: canvas.getBoundingClientRect().left + 4 +
  {part} * (canvas.clientWidth - 8), clientY: canvas.getBoundingClientRect().top + 20, bubbles: true}}));
"""
PRESS = """
const canvas = document.querySelector('#plots canvas');
canvas.focus();
canvas.dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', bubbles: true, cancelable: true}}));
"""


def trained(studio: Studios) -> Any:
    """A server with a run of 50 log points, none of which anybody has watched."""
    server = studio().server
    for step in range(0, 500, 10):
        server.log(step, **{"train/loss": 1 / (1 + step), "train/return": step / 100, "train/epsilon": 0.5})
    server.log(490, **{"val/utilization": 0.625})
    return server


def names(page: Page) -> list[str]:
    found: list[str] = page.run(NAMES)
    return found


def readings(page: Page) -> list[list[str]]:
    found: list[list[str]] = page.run(READINGS)
    return found


@pytest.mark.parametrize("query", ["", "?transport=snapshot"], ids=["socket", "http"])
def test_who_comes_late_sees_the_run_from_its_beginning_and_what_follows(
    page: Page, studio: Studios, query: str
) -> None:
    server = trained(studio)
    page.open(server.url + query)
    page.wait(lambda: names(page) == ["train/return", "val/utilization", "train/loss"], "a return, a score and a loss")
    page.wait(lambda: readings(page)[0] == ["4.9"], "the newest value")
    assert page.text("axis").split() == ["0", "step", "490"]
    server.log(1000, **{"train/return": 7.25})
    page.wait(lambda: readings(page)[0] == ["7.25"], "a new point")
    assert page.text("axis").split() == ["0", "step", "1,000"]
    page.driver.refresh()
    page.wait(lambda: page.text("axis").split() == ["0", "step", "1,000"], "the same after a reload")
    assert page.complaints() == []


def test_a_pointer_and_the_arrow_keys_read_values(page: Page, studio: Studios) -> None:
    page.open(trained(studio).url)
    page.wait(lambda: len(readings(page)) == 3, "curves")
    page.run(POINT.format(part=0.5))
    assert readings(page) == [["2.4", "step 240"], ["0.625", "step 490"], ["0.004149", "step 240"]] or readings(page)[
        0
    ] == ["2.5", "step 250"]
    page.run(PRESS.format("Home"))
    assert readings(page)[0] == ["0", "step 0"]
    page.run(PRESS.format("ArrowRight"))
    assert readings(page)[0] == ["0.1", "step 10"]
    assert page.run("return document.querySelector('#plots canvas').ariaValueText") == "0.1 at step 10"
    page.run("document.querySelector('#plots canvas').dispatchEvent(new PointerEvent('pointerleave'))")
    assert readings(page)[0] == ["4.9"]


def test_the_choice_of_curves_is_kept(page: Page, studio: Studios) -> None:
    page.open(trained(studio).url)
    page.wait(lambda: len(readings(page)) == 3, "curves")
    page.click("#choose")
    page.run("const f = document.getElementById('filter'); f.value = 'eps'; f.dispatchEvent(new Event('input'));")
    assert page.text("list").split() == ["train", "epsilon"]
    page.click("#list input")
    page.run("const f = document.getElementById('filter'); f.value = ''; f.dispatchEvent(new Event('input'));")
    page.click('#list input[value="train/loss"]')
    chosen = ["train/return", "train/epsilon", "val/utilization"]
    assert names(page) == chosen
    page.driver.refresh()
    page.wait(lambda: names(page) == chosen, "the same curves after a reload")
    page.run("localStorage.clear()")


def test_a_program_that_begins_again_begins_its_curves_again(page: Page, studio: Studios) -> None:
    first = studio()
    port = first.server.port
    first.server.log(900, loss=1.0)
    page.open(first.server.url)
    page.wait(lambda: page.text("axis").split() == ["899", "step", "901"], "a curve")
    first.__exit__()
    second = studio(port=port).server
    page.wait_for_picture()
    page.wait(lambda: not page.is_shown("curves"), "no curve any more")
    second.log(5, gain=1.0)
    page.wait(lambda: names(page) == ["gain"], "the curve of the second run")


def test_a_held_picture_is_found_again_in_the_curves_whose_names_are_text(page: Page, studio: Studios) -> None:
    there, name = studio(), "<img src=x onerror=alert(1)>/loss"
    there.server.log(5001, **{name: 1.0})
    page.open(there.server.url)
    page.wait_for_history(6)
    there.server.log(9000, **{name: 2.0})
    page.wait(lambda: readings(page) == [["2"]], "the newest value")
    page.slide("0")
    page.wait(lambda: readings(page) == [["1", "step 5,001"]], "the value beside the held picture")
    page.click("#choose")
    assert names(page) == [name]
    assert page.run("return document.querySelectorAll('img').length") == 0
    assert page.complaints() == []


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
