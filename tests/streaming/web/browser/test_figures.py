"""Figures and names on the page.

Each is of its own moment, and none reads like another.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.streaming.pictures import scene
from tests.streaming.viewers import server
from tests.streaming.web.browser.page import Page
from tests.streaming.web.browser.test_page import HIDE, LATER, NO_SOCKET, TICKS, TURN
from torchrl_gpu.streaming import PolicyView
from torchrl_gpu.streaming.server import StreamServer

pytestmark = pytest.mark.browser
Studios = Callable[..., Any]
AWAY_MS = 600_000
FACTS = """
return Object.fromEntries([...document.querySelectorAll('#facts > div')].map((row) =>
  [row.firstChild.textContent, row.lastChild.textContent]));
"""


def publish(page: Page, stream_server: StreamServer, step: int, **meta: Any) -> None:
    """Publishes a picture as soon as it is wanted, and waits until the page shows it."""
    page.wait(stream_server.wanted, "a viewer")
    stream_server.publish(scene(shift=step), meta={"step": step} | meta)
    page.wait(lambda: page.text("state") == "Live" and page.step() == step, "the picture")


def hide(page: Page) -> None:
    page.run(HIDE.format("true") + TURN + f"later += {AWAY_MS};" + HIDE.format("false") + TURN)


def sleep(page: Page) -> None:
    page.run(f"later += {AWAY_MS}")


def hold(page: Page) -> None:
    page.click("#hold")
    page.run(f"later += {AWAY_MS}")
    page.click("#hold")


@pytest.mark.parametrize("away", [hide, sleep, hold])
def test_a_source_that_hangs_is_not_live_however_long_the_page_was_away(
    page: Page, away: Callable[[Page], None]
) -> None:
    page.before_scripts(LATER)
    with server() as stream_server:
        stream_server.declare("main")
        page.open(stream_server.url + "?transport=jpeg")
        publish(page, stream_server, 1)
        away(page)
        assert page.driver.execute_async_script(TICKS) != "Live", "nothing has come since"
        publish(page, stream_server, 2)
        page.run("later += 4000")
        assert page.driver.execute_async_script(TICKS) == "No new pictures"


@pytest.mark.parametrize("transport", ["mjpeg", "snapshot"])
def test_a_picture_that_is_sent_again_is_no_new_one(page: Page, transport: str) -> None:
    page.before_scripts(LATER)
    with server(heartbeat_s=0.1) as stream_server:
        stream_server.publish(scene(), meta={"step": 1})
        page.open(f"{stream_server.url}?transport={transport}")
        page.wait(lambda: page.text("state") == "Live" and page.step() == 1, "the picture")
        page.run("later += 4000")
        assert page.driver.execute_async_script(TICKS) == "No new pictures"
        page.wait(lambda: page.text("rate") == "–" and page.text("bandwidth") != "–", "bytes, and no new pictures")
        assert 4.0 <= float(page.text("age").removesuffix(" s")) < 12.0


def test_mjpeg_does_not_know_whether_the_run_is_paused(page: Page, studio: Studios) -> None:
    stream_server = studio().server
    page.open(stream_server.url)
    page.wait_for_picture()
    stream_server.state(paused=True, phase="warm-up")
    page.wait(lambda: page.text("state") == "Run paused" and page.run(FACTS)["Phase"] == "warm-up", "the state")
    page.run("const at = document.getElementById('transport'); at.value = 'mjpeg'; at.onchange({target: at});")
    page.wait(lambda: page.transport() == "MJPEG" and page.text("state") == "Live", "pictures over MJPEG")
    assert not {"Phase", "Paused"} & set(page.run(FACTS))
    page.run("const at = document.getElementById('transport'); at.value = 'jpeg'; at.onchange({target: at});")
    page.wait(lambda: page.text("state") == "Run paused" and "Phase" in page.run(FACTS), "the state again")


def test_steps_in_a_second_are_told_of_a_run_that_goes_on_alone(page: Page, studio: Studios) -> None:
    there = studio()
    page.open(there.server.url)
    page.wait(lambda: page.text("step").endswith("/s"), "a rate")
    there.server.state(paused=True)
    page.wait(lambda: not page.text("step").endswith("/s"), "no rate of a run that is paused")
    there.server.state(paused=False)
    page.wait(lambda: page.text("step").endswith("/s"), "a rate again")
    page.click("#hold")
    page.wait(lambda: not page.text("step").endswith("/s"), "no rate of a picture that is held")


def test_every_value_is_shown_as_text_too_and_a_pictures_own_goes_first(page: Page) -> None:
    meta = {"step": "warm-up", "return": "n/a", "utilization": True, "episode": 3, "seed": 2**60 + 1}
    meta |= {"a b": 1, "a_b": 2, "inference_ms": "slow", "confidence": "high"}
    meta |= {"stale": "unknown", "action/grip": "open"}
    with server() as stream_server:
        stream_server.declare("main")
        stream_server.state(episode=9, paused="by hand", gains=[1.5, 2], lr=0.5)
        page.open(stream_server.url)
        page.wait(stream_server.wanted, "a viewer")
        stream_server.publish(scene(), meta=meta)
        page.wait(lambda: page.text("state") == "Live", "the picture")
        facts = page.wait(lambda: page.run(FACTS), "facts")
        wanted = {"Step": "warm-up", "Return": "n/a", "Utilization": "Yes", "Episode": "3", "Seed": str(2**60 + 1)}
        wanted |= {"A b (a b)": "1", "A b (a_b)": "2", "Inference ms": "slow", "Confidence": "high"}
        wanted |= {"Stale": "unknown", "Action/grip": "open", "Paused": "by hand", "Gains": "1.5, 2", "Lr": "0.5"}
        assert facts == wanted
        page.click("#hold")
        page.wait(lambda: "Lr (now)" in page.run(FACTS), "what is of now, beside a picture of then")
        assert page.run(FACTS)["Episode"] == "3"


def test_metadata_that_http_has_no_room_for_is_told(page: Page) -> None:
    with server() as stream_server:
        stream_server.publish(scene(), meta={f"note {i}": "ü" * 1_000 for i in range(60)} | {"step": 7})
        page.open(stream_server.url + "?transport=mjpeg")
        page.wait(lambda: page.text("state") == "Live" and page.step() == 7, "a picture")
        assert page.run(FACTS) == {"Left out": "60 values: too long for this transport"}


def test_actions_whose_names_are_long_have_a_bar_each(page: Page) -> None:
    names = [f"robot_arm_shoulder_joint_velocity_{side}" for side in ("left", "right")]
    with server() as stream_server:
        stream_server.declare("main")
        page.open(stream_server.url)
        page.wait(stream_server.wanted, "a viewer")
        stream_server.show_policy(PolicyView(scene(), action=dict(zip(names, (0.25, -0.5), strict=True))))
        bars = "return [...document.querySelectorAll('#actions li')].map((bar) => bar.textContent)"
        shown = page.wait(lambda: page.run(bars), "bars")
        assert [bar[-5:].strip("tfh") for bar in shown] == ["0.25", "−0.5"]


FOREIGN = "the page https://lab.example is neither of this server, whose Host is 127.0.0.1:1"


def refuse_login(page: Page) -> None:
    """Has the server answer as it does behind a proxy that does not pass Host."""
    refuse = f"new Response({json.dumps(json.dumps({'message': FOREIGN}))}, {{status: 403}})"
    asks = f"String(there).includes('login') ? Promise.resolve({refuse}) : plain(there, ...rest)"
    page.before_scripts(f"const plain = window.fetch; window.fetch = (there, ...rest) => {asks};")


def test_why_a_token_was_not_looked_at_is_told(page: Page, studio: Studios) -> None:
    refuse_login(page)
    page.open(studio(token="a token of a few letters").server.url.partition("?")[0])
    page.wait(lambda: page.is_shown("gate"), "the form")
    page.run("document.getElementById('token').value = 'a token of a few letters'")
    page.click("#login button")
    page.wait(lambda: page.text("wrong") == f"{FOREIGN}.", "the reason")


def test_why_a_socket_was_refused_is_told_where_it_was_for_the_page(page: Page, studio: Studios) -> None:
    refuse_login(page)
    page.before_scripts(NO_SOCKET)
    page.open(studio().server.url)
    page.wait(lambda: page.text("said") == f"{FOREIGN}.", "the reason")
    page.wait_for_picture()
    assert page.transport() == "Auto (MJPEG)"
