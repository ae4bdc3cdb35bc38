"""Choosers of streams and the panel of a policy.

All that is written can be read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from tests.streaming.web.browser.conftest import picture
from tests.streaming.web.browser.page import Page

pytestmark = pytest.mark.browser
Studios = Callable[..., Any]
# The page's colours as sRGB of 0 to 1 with alpha, painted one over the other up to the first that is opaque.
WORST = """
const dot = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
const pen = dot.getContext("2d", {willReadFrequently: true});
const rgba = (color) => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = color; pen.fillRect(0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data].map((part) => part / 255); };
const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
function behind(element) {
  const layers = [];
  for (let at = element; at; at = at.parentElement) {
    layers.push(rgba(getComputedStyle(at).backgroundColor));
    if (layers.at(-1)[3] === 1) break;
  }
  return layers.reverse().reduce((under, top) => over(top, under), [1, 1, 1, 1]);
}
const light = (color) => color.slice(0, 3).map((part) => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4)
  .reduce((sum, part, i) => sum + part * [.2126, .7152, .0722][i], 0);
function contrast(element, pseudo) {
  const under = behind(element), own = over(rgba(getComputedStyle(element, pseudo).color), under);
  const [a, b] = [light(own), light(under)];
  return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
}
const written = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
const visible = {opacityProperty: true, visibilityProperty: true};
const seen = [...document.querySelectorAll("body *")].filter((element) => element.checkVisibility(visible));
const texts = seen.filter((element) => written(element) || element.matches("input:not([type=range]), select"));
const icons = seen.filter((element) => element.matches("button > svg"));
const hints = seen.filter((element) => element.placeholder);
const label = (element) => `${element.tagName} ${element.id || element.className} ${element.textContent.trim()}`;
return [...texts.map((element) => [contrast(element), 4.5, label(element)]),
  ...hints.map((element) => [contrast(element, "::placeholder"), 4.5, label(element)]),
  ...icons.map((element) => [contrast(element), 3, label(element.parentElement)])];
"""
# Full screen would need a gesture.
FILL = "document.getElementById('viewer').classList.toggle('filled')"


def too_faint(page: Page) -> list[Any]:
    found = page.run(WORST)
    assert len(found) > 3
    return [each for each in found if each[0] < each[1]]


def both_themes(page: Page, what: str) -> None:
    for _ in range(2):
        assert too_faint(page) == [], what
        page.click("#theme")


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desk", "phone"])
def test_everything_can_be_read_in_both_themes(page: Page, studio: Studios, size: tuple[int, int]) -> None:
    there = studio(more=("main:mask",))
    there.server.state(commands=["pause", "resume", "reset"], paused=False)
    there.server.log(1, **{"train/loss": 1.0, "train/return": 2.0})
    page.resize(*size)
    page.open(there.server.url)
    page.wait_for_history(3)
    page.click("#choose")
    page.wait(lambda: page.is_shown("choices"), "the choice of curves")
    both_themes(page, "live")
    page.click("#hold")
    both_themes(page, "held")
    page.click("#hold")
    page.run(FILL)
    both_themes(page, "all over the window")
    page.click("#hold")
    both_themes(page, "held there")
    page.click("#hold")
    page.run(FILL)
    page.run("document.getElementById('shortcuts').showModal()")
    both_themes(page, "the list of keys")
    page.run("document.getElementById('shortcuts').close()")
    there.__exit__()
    page.wait(lambda: page.text("state").startswith("Reconnecting"), "a page that tries again")
    page.wait(lambda: page.run("return document.getElementById('replay').disabled"), "buttons that are off")
    both_themes(page, "disconnected")
    page.run(FILL)
    both_themes(page, "disconnected, all over the window")


OVERLAYS = "return [...document.querySelectorAll('#overlays button')].map((e) => e.innerText)"
TABS = "return [...document.querySelectorAll('#streams button')].map((e) => e.innerText)"
SET = "const n = document.getElementById('number'); n.value = '{}'; n.dispatchEvent(new Event('change'));"


def watched(page: Page) -> str:
    return parse_qs(urlsplit(page.driver.current_url).query)["stream"][0]


def test_any_member_of_several_families_can_be_watched_by_its_number(page: Page, studio: Studios) -> None:
    server = studio().server
    for family, count, title in (("env", 1024, None), ("env:mask", 1024, None), ("robot", 4, "Robot")):
        server.declare_family(family, count, title)
    page.open(server.url + "?stream=main")
    page.wait_for_picture("red")
    assert page.run(TABS) == ["Environment 0", "Robot 0", "Main stream", "Other stream"]
    assert not page.is_shown("source")
    page.click('[data-name="env0"]')
    page.wait_for_picture("blue")
    assert (page.text("of"), page.run(OVERLAYS)) == ("of 1,024", ["None", "Mask"])
    assert page.run("return document.getElementById('previous').disabled")
    page.run(SET.format(7))
    page.wait(lambda: server.watchers("env7") == 1, "a viewer at number 7")
    page.wait_for_picture("blue")
    assert (watched(page), page.run(TABS)[0]) == ("env7", "Environment 7")
    page.click("#overlays [data-name=mask]")
    page.wait(lambda: server.watchers("env7:mask") == 1, "a viewer at its mask")
    page.run(SET.format(99999))
    page.wait(lambda: server.watchers("env1023:mask") == 1, "the last one, with its mask")
    page.wait(lambda: page.run("return document.getElementById('next').disabled"), "none behind it")
    page.open(page.driver.current_url)
    page.wait(lambda: server.watchers("env1023:mask") == 1 and page.text("state") == "Live", "the same by its link")
    page.run(SET.format(""))
    assert watched(page) == "env1023:mask"
    page.click('[data-name="robot0"]')
    page.wait(lambda: server.watchers("robot0") == 1, "a viewer of the second family")
    assert (page.text("of"), page.run(OVERLAYS)) == ("of 4", [])
    page.run(SET.format(9))
    page.wait(lambda: server.watchers("robot3") == 1, "a viewer of its last")
    assert page.run(TABS)[:2] == ["Environment 1023", "Robot 3"]


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


HOSTILE = "<img src=x onerror=alert(1)>"
SEEN = "return [...document.getElementById('seen').getContext('2d').getImageData(5, 5, 1, 1).data].slice(0, 3)"


@contextmanager
def showing(server: Any, **changes: Any) -> Iterator[dict[str, Any]]:
    """Show a policy twenty times a second.

    What is given may be changed meanwhile.
    """
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
def test_panel_shows_what_a_policy_saw_and_did(page: Page, server: Any, query: str) -> None:
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
