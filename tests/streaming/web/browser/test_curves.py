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
