"""The page in Chromium, against a real server."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.streaming.pictures import scene
from tests.streaming.viewers import only_loopback, server
from tests.streaming.web.browser.page import Page
from tests.streaming.web.browser.test_panels import both_themes

pytestmark = pytest.mark.browser
Studios = Callable[..., Any]
NO_DECODER = "delete window.VideoDecoder;"
NO_SOCKET = """
window.WebSocket = class { constructor() { setTimeout(() => this.onclose?.({}), 10); } send() {} close() {} };
"""
# Times in a row, half a second together.
UNWANTED = 10
HIDE = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});"
NAMELESS = """
return [...document.querySelectorAll('button, select, input:not([hidden]), canvas, video, output')].filter((e) =>
  !(e.ariaLabel || e.innerText?.trim() || e.labels?.length ||
    e.textContent.trim() && ['BUTTON', 'OUTPUT'].includes(e.tagName))).map((e) => e.outerHTML);
"""
TURN = "document.dispatchEvent(new Event('visibilitychange'));"


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("", "Auto (H.264)"),
        ("?transport=jpeg", "JPEG"),
        ("?transport=mjpeg", "MJPEG"),
        ("?transport=snapshot", "Snapshots"),
    ],
)
def test_the_picture_moves_beside_its_age_and_figures(page: Page, studio: Studios, query: str, name: str) -> None:
    page.open(studio().server.url + query)
    page.wait_for_picture()
    page.wait_for_change()
    assert page.transport() == name
    page.wait(lambda: re.fullmatch(r"\d+ ms", page.text("age")), "an age in milliseconds")
    assert page.text("dropped").isdigit()
    assert page.text("size") == "160 × 120"
    assert "12.50" in page.text("return")
    assert "62.5%" in page.text("utilization")
    assert re.search(r"5,\d\d\d", page.text("step"))
    assert "bpp10" in page.text("facts")
    assert not page.is_shown("policy"), "there is none"
    assert page.run(NAMELESS) == [], "every control has a name"
    assert page.complaints() == []


@pytest.mark.parametrize(("lacking", "name"), [(NO_DECODER, "Auto (JPEG)"), (NO_SOCKET, "Auto (MJPEG)")])
def test_what_the_browser_or_the_way_lacks_is_done_without(
    page: Page, studio: Studios, lacking: str, name: str
) -> None:
    page.before_scripts(lacking)
    page.open(studio().server.url)
    page.wait_for_picture()
    assert page.transport() == name


def test_another_stream_takes_the_place_of_the_first(page: Page, studio: Studios) -> None:
    server = studio().server
    page.open(server.url)
    page.wait_for_picture("red")
    page.click('[data-name="other"]')
    page.wait_for_picture("blue")
    page.wait(lambda: server.watchers("main") == 0, "nobody at main")
    assert urlsplit(page.driver.current_url).query == "stream=other"
    page.open(page.driver.current_url)
    page.wait_for_picture("blue")


def test_a_held_picture_stands_still_and_like_a_hidden_tab_asks_for_nothing(page: Page, studio: Studios) -> None:
    there = studio()
    page.open(there.server.url)
    page.wait_for_history(2)
    page.click("#hold")
    assert page.text("mark") == "Held"
    assert (page.text("state"), page.text("hold")) == ("Held", "Live")
    before = page.bar()
    page.wait(lambda: there.unwanted["main"] > UNWANTED, "no frame wanted")
    assert page.bar() == before
    page.click("#hold")
    page.wait_for_change()
    page.run(HIDE.format("true") + TURN)
    page.wait(lambda: there.unwanted["main"] > UNWANTED, "no frame wanted")
    page.run(HIDE.format("false") + TURN)
    page.wait_for_change()


def test_instant_replay_shows_the_past_and_goes_on(page: Page, studio: Studios) -> None:
    page.open(studio().server.url + "?transport=jpeg")
    page.wait_for_picture()
    page.wait_for_history(8)
    live = page.step()
    page.click("#replay")
    page.wait(lambda: page.text("mark") == "Replay", "the mark of a replay")
    page.wait(lambda: page.step() < live, "the figures of the replayed picture")
    page.wait_for_picture()
    page.wait(lambda: page.step() > live, "the figures of now")


def test_only_who_may_control_has_buttons_that_do(page: Page, studio: Studios) -> None:
    server = studio(token="the control token", view_token="the view token").server
    server.state(commands=["pause", "resume", "next_item"], paused=False)
    page.open(f"http://127.0.0.1:{server.port}/?token=the+view+token")
    page.wait_for_picture()
    assert not page.is_shown("control")
    page.open(server.url)
    page.wait(lambda: page.is_shown("control"), "buttons")
    assert page.text("commands").split("\n") == ["Pause run", "Next item"], "not both to pause and to resume"
    page.click('[data-command="pause"]')
    command = page.wait(server.commands, "a command")[0]
    assert (command.name, command.stream) == ("pause", "main")
    server.state(paused=True)
    page.wait(lambda: page.text("commands").startswith("Resume run"), "a button to resume")
    page.wait(lambda: page.text("state") == "Run paused", "that the run is paused, not the picture")
    assert page.text("hold") == "Hold", "which is another thing"


def test_the_token_is_asked_for_and_leaves_the_address(page: Page, studio: Studios) -> None:
    server = studio(token="open sesame").server
    page.open(f"http://127.0.0.1:{server.port}/")
    page.wait(lambda: page.is_shown("login"), "the form")
    enter(page, "open barley")
    page.wait(lambda: "not the token" in page.text("wrong"), "a refusal")
    both_themes(page, "the form")
    enter(page, "open sesame")
    page.wait_for_picture()
    page.leave()
    page.open(server.url)
    page.wait_for_picture()
    assert "sesame" not in page.driver.current_url


def enter(page: Page, token: str) -> None:
    page.run(f"document.getElementById('token').value = '{token}'")
    page.click("#login button")


def test_webrtc_shows_the_picture_and_its_age(page: Page, studio: Studios) -> None:
    pytest.importorskip("aiortc", reason="needs the extra webrtc")
    if only_loopback():
        pytest.skip("needs a network: ICE has no candidate for 127.0.0.1")
    server = studio().server
    page.open(server.url + "?transport=webrtc")
    page.wait_for_picture("red")
    assert page.transport() == "WebRTC"
    page.wait(lambda: re.fullmatch(r"\d+ ms", page.text("age")), "an age in milliseconds")
    page.wait(lambda: "62.5%" in page.text("utilization"), "figures beside the picture")
    page.click('[data-name="other"]')
    page.wait_for_picture("blue")
    page.wait_for_history(2)
    page.click("#hold")
    page.wait(lambda: server.watchers("other") == 0, "nobody watching while paused")


OWN_SOCKETS = """
window.sockets = [];
window.WebSocket = class extends WebSocket { constructor(...all) { super(...all); window.sockets.push(this); } };
"""


def test_commands_come_back_under_webrtc_when_the_socket_was_lost(page: Page, studio: Studios) -> None:
    pytest.importorskip("aiortc", reason="needs the extra webrtc")
    if only_loopback():
        pytest.skip("needs a network: ICE has no candidate for 127.0.0.1")
    server = studio().server
    server.state(commands=["reset"])
    page.before_scripts(OWN_SOCKETS)
    page.open(server.url + "?transport=webrtc")
    page.wait_for_picture("red")
    ready = "return document.querySelector('#commands button')?.disabled === false"
    page.wait(lambda: page.run(ready), "a command")
    page.run("sockets.at(-1).close()")
    page.wait(lambda: not page.run(ready), "no command without a socket")
    page.wait(lambda: page.run(f"{ready} && sockets.length === 2"), "another socket")
    page.click("#commands button")
    assert page.wait(server.commands, "the command")[0].name == "reset"


def test_an_option_of_the_address_that_means_nothing_is_told(page: Page, studio: Studios) -> None:
    server = studio().server
    for query, said in (
        ("?transport=toString", "transport must be one of auto, h264"),
        ("?fps=0.05", "fps must be 0.1 to 1000"),
        *((f"?fps={fps}", "fps must") for fps in ("-1", "Infinity")),
        ("?transport=auto&fps=", ""),
    ):
        page.open(server.url + query)
        assert page.text("said").startswith(said)
        page.wait_for_picture()


def test_why_an_offer_is_refused_is_told_in_words(page: Page, studio: Studios) -> None:
    refuse = """new Response('{"message": "no such offer"}', {status: 400})"""
    asks = f"String(there).includes('offer') ? Promise.resolve({refuse}) : plain(there, ...rest)"
    page.before_scripts(f"const plain = window.fetch; window.fetch = (there, ...rest) => {asks};")
    page.open(studio().server.url + "?transport=webrtc")
    page.wait(lambda: page.text("said") == "no such offer.", "the reason")


LATER = "const real = performance.now.bind(performance); window.later = 0; performance.now = () => real() + later;"
TICKS = "const done = arguments[0]; setTimeout(() => done(document.getElementById('heard').textContent), 350);"


def test_a_source_that_is_slow_is_live_all_the_time(page: Page) -> None:
    """A slow source is live all the time.

    A picture comes every four seconds: a screen reader must not say each time that it waits, and then that it lives.
    """
    page.before_scripts(LATER)
    with server() as stream_server:
        stream_server.declare("main")
        page.open(stream_server.url)
        for shift, heard in enumerate(["No new pictures", "Live", "Live"]):
            page.wait(stream_server.wanted, "a viewer")
            stream_server.publish(scene(shift=shift))
            page.wait(lambda: page.text("state") == "Live", "a picture")
            page.run("later += 4000")
            assert page.driver.execute_async_script(TICKS) == heard


def test_pictures_without_a_step_count_no_steps(page: Page) -> None:
    page.before_scripts(LATER)
    with server() as stream_server:
        stream_server.declare("main")
        page.open(stream_server.url)
        for pictures, meta in enumerate([{}, {"step": 1_000_000}], start=1):
            page.wait(stream_server.wanted, "a viewer")
            stream_server.publish(scene(shift=pictures), meta=meta)
            page.wait_for_history(pictures)
            page.run("later += 2500")
        page.wait(lambda: page.text("step").endswith("1 M"), "steps, and no rate of theirs")


def test_the_picture_can_be_saved(page: Page, studio: Studios, downloads: Path) -> None:
    page.open(studio().server.url)
    page.wait_for_picture()
    page.click("#save")
    page.wait(lambda: list(downloads.glob("torchrl_gpu-main-step5*.png")), "a file")


def test_a_phone_shows_everything_without_scrolling_sideways(page: Page, studio: Studios) -> None:
    server = studio(more=("main:mask", "main:q", "main:action")).server
    server.state(commands=["pause", "resume", "reset"], paused=False)
    server.log(1, **{"a curve with a name that is too long for a phone of this size": 1e-9})
    page.resize(360, 740)
    page.open(server.url)
    page.wait_for_picture()
    assert page.run("return document.scrollingElement.scrollWidth") == 360
    assert page.run("return document.getElementById('frame').getBoundingClientRect().width") == 360
    small = page.run(
        "return [...document.querySelectorAll('button, select, input')].filter((e) => e.offsetWidth)"
        ".filter((e) => e.offsetHeight < 34).map((e) => e.outerHTML)"
    )
    assert small == [], "too small for a finger"


def test_keys_do_what_the_list_says(page: Page, studio: Studios) -> None:
    page.open(studio().server.url)
    page.wait_for_picture()
    press = "document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{}', bubbles: true}}));"
    theme = page.run("return document.documentElement.dataset.theme")
    page.run(press.format("t"))
    assert page.run("return document.documentElement.dataset.theme") != theme
    page.run(press.format("2"))
    page.wait_for_picture("blue")
    page.wait_for_history(3)
    page.run(press.format(" "))
    assert page.text("mark") == "Held"
    held = page.step()
    page.run(press.format("ArrowLeft"))
    page.wait(lambda: page.step() < held, "an earlier picture")
    page.run(press.format("ArrowRight"))
    page.wait(lambda: page.step() == held, "the picture again")
    page.run(press.format("ArrowRight"))
    page.wait_for_picture("blue")
    page.run(press.format("?"))
    assert "Hold the picture" in page.text("shortcuts")


@pytest.mark.parametrize(("is_allowed", "width"), [(True, 160), (False, 0)])
def test_a_stream_in_a_page_of_another_site(page: Page, studio: Studios, is_allowed: bool, width: int) -> None:
    """A page that `allowed_origins` names may hold the stream.

    No other may, as docs/streaming.md promises.
    """
    html = b"""<!doctype html><title>wiki</title><script>
    window.onload = () => {
      const image = document.body.appendChild(new Image());
      image.onload = image.onerror = () => { document.title = image.naturalWidth; };
      image.src = decodeURIComponent(location.hash.slice(1));
    };
    </script><body></body>"""

    class Wiki(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html)

        def log_message(self, format: str, *arguments: object) -> None:
            """Is silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Wiki) as wiki:
        serving = threading.Thread(target=wiki.serve_forever)
        serving.start()
        try:
            there = f"http://127.0.0.1:{wiki.server_port}"
            server = studio(host="localhost", token="1234", allowed_origins=[there] if is_allowed else []).server
            for path in ("snapshot.jpg", "stream.mjpg"):
                picture = f"http://localhost:{server.port}/{path}?stream=main&token=1234"
                page.open("about:blank")
                page.open(f"{there}/#{quote(picture, safe='')}")
                page.wait(lambda: page.run("return document.title") == str(width), f"{width} pixels of {path}")
        finally:
            wiki.shutdown()
            serving.join()
