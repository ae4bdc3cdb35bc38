"""Environments by their number, what is laid over a picture, and streams on a phone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.streaming.web.browser.page import Page
from torchrl_gpu.streaming.broadcast.hub import Hub

pytestmark = pytest.mark.browser
Studios = Callable[..., Any]
OVERLAYS = "return [...document.querySelectorAll('#overlays button')].map((e) => e.innerText)"
TABS = "return [...document.querySelectorAll('#streams button')].map((e) => e.innerText)"
SET = "const n = document.getElementById('number'); n.value = '{}'; n.dispatchEvent(new Event('change'));"


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers say that there are 1,024 environments, and list only the first of them."""
    listed = Hub.describe_streams

    def of_a_family(self: Hub) -> list[dict[str, Any]]:
        found = [one for one in listed(self) if not one["name"].startswith(("env7", "env1023"))]
        for one in found:
            one |= {"family": "env", "count": 1024} if one["name"] == "env0" else {}
            one |= {"base": "env0", "overlay": "mask"} if one["name"] == "env0:mask" else {}
        return found

    monkeypatch.setattr(Hub, "describe_streams", of_a_family)


def watched(page: Page) -> str:
    return parse_qs(urlsplit(page.driver.current_url).query)["stream"][0]


def test_any_environment_can_be_watched_by_its_number(page: Page, studio: Studios, family: None) -> None:
    there = studio(more=("env0", "env0:mask", "env7", "env7:mask", "env1023", "env1023:mask"))
    page.open(there.server.url + "?stream=main")
    page.wait_for_picture("red")
    assert page.run(TABS) == ["Environment 0", "Main stream", "Other stream"]
    assert not page.is_shown("source")
    page.click('[data-name="env0"]')
    page.wait_for_picture("blue")
    assert page.text("of") == "of 1,024"
    assert page.run("return document.getElementById('previous').disabled")
    page.run(SET.format(7))
    page.wait(lambda: there.server.watchers("env7") == 1, "a viewer at number 7")
    page.wait_for_picture("blue")
    assert (watched(page), page.run(TABS)[0]) == ("env7", "Environment 7")
    page.click("#overlays [data-name=mask]")
    page.wait(lambda: there.server.watchers("env7:mask") == 1, "a viewer at its mask")
    page.run(SET.format(99999))
    page.wait(lambda: there.server.watchers("env1023:mask") == 1, "the last one, with its mask")
    page.wait(lambda: page.run("return document.getElementById('next').disabled"), "none behind it")
    page.open(page.driver.current_url)
    page.wait(
        lambda: there.server.watchers("env1023:mask") == 1 and page.text("state") == "Live", "the same by its link"
    )
    page.run(SET.format(""))
    assert watched(page) == "env1023:mask"


def test_each_of_several_families_can_be_watched(page: Page, studio: Studios) -> None:
    server = studio().server
    server.declare_family("env", 8)
    server.declare_family("robot", 4, "Robot")
    server.declare_family("robot:mask", 4)
    page.open(server.url + "?stream=main")
    page.wait_for_picture("red")
    assert page.run(TABS) == ["Environment 0", "Robot 0", "Main stream", "Other stream"]
    page.click('[data-name="robot0"]')
    page.wait(lambda: server.watchers("robot0") == 1, "a viewer of the second family")
    assert (page.text("of"), page.run(OVERLAYS)) == ("of 4", ["None", "Mask"])
    page.run(SET.format(9))
    page.wait(lambda: server.watchers("robot3") == 1, "a viewer of its last")
    page.click('[data-name="env0"]')
    page.wait(lambda: server.watchers("env0") == 1, "a viewer of the first")
    assert page.run(TABS)[:2] == ["Environment 0", "Robot 3"]
    assert (page.text("of"), page.run(OVERLAYS)) == ("of 8", [])


def test_overlays_are_offered_where_there_are_any(page: Page, studio: Studios) -> None:
    there = studio(more=("main:mask", "main:q", "main:action"))
    page.open(there.server.url)
    page.wait_for_picture("red")
    assert page.run(TABS) == ["Main stream", "Other stream"]
    assert page.run(OVERLAYS) == ["None", "Mask", "Q map", "Action"]
    page.click("#overlays [data-name=q]")
    page.wait_for_picture("blue")
    assert watched(page) == "main:q"
    page.run("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'o', bubbles: true}))")
    page.wait(lambda: watched(page) == "main:action", "the next overlay")
    page.click('#streams [data-name="other"]')
    page.wait(lambda: watched(page) == "other" and not page.is_shown("overlays"), "a stream without overlays")


def test_the_chosen_stream_is_in_view_on_a_phone(page: Page, studio: Studios) -> None:
    more = [f"camera {i}" for i in range(12)]
    server = studio(more=more).server
    page.resize(390, 844)
    page.open(server.url + "?stream=camera 11")
    page.wait_for_picture("blue")
    left, right = page.run(
        "const at = document.querySelector('#streams [aria-checked=true]').getBoundingClientRect();"
        "return [at.left, at.right]"
    )
    assert 0 <= left < right <= 390
    assert page.run("return document.scrollingElement.scrollTop") == 0


def test_arrow_keys_move_through_a_group(page: Page, studio: Studios) -> None:
    page.open(studio().server.url)
    page.wait_for_picture("red")
    page.run(
        "const at = document.querySelector('#streams [aria-checked=true]'); at.focus();"
        "at.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true, cancelable: true}))"
    )
    page.wait_for_picture("blue")
    assert page.run("return document.activeElement.dataset.name") == "other"
