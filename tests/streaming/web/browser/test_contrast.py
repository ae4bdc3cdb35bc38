"""What is written on the page can be read: WCAG 2.2, contrast of text at least 4.5 to 1, of icons 3 to 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
FILL = "document.getElementById('viewer').classList.toggle('filled')"  # as full screen, which needs a gesture


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
