"""Packing sessions over HTTP and WebSocket.

By the client in the documentation, by many at once, and by strangers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.serving import clients
from tests.serving.clients import TOKEN, documented
from torchrl_gpu.palletizing.sessions import PackingSessions
from torchrl_gpu.serving.packing import pallets
from torchrl_gpu.serving.server import policy_server
from torchrl_gpu.streaming import StreamServer

SMALL = {"pallet": [600, 400, 500], "grid": 20}
Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def sessions(tmp_path: Path) -> PackingSessions:
    return PackingSessions(tmp_path, most=8, device="cpu")


@pytest.fixture
def server(sessions: PackingSessions) -> Iterator[StreamServer]:
    options: dict[str, Any] = {"port": 0, "token": TOKEN, "view_token": "only-to-watch", "max_body_mib": 0.25}
    with policy_server(None, pallets=sessions, **options) as running:
        yield running


def client_of_the_document() -> Any:
    return documented("PackingCell", 40, until='cell = PackingCell("cell-3")')


def ask(server: StreamServer, body: bytes, **changes: Any) -> tuple[int, dict[str, Any]]:
    status, text = clients.ask(server, body, "/pallet", **{"kind": "application/json"} | changes)
    return status, json.loads(text) if text.startswith(b"{") else {"message": text.decode()}


def packed(ask: Ask, number: int) -> list[Any]:
    """Places of some boxes of a session that is opened for them."""
    found = [ask("open", **SMALL)]
    for i in range(6):
        sides = [100 + 37 * (i * number % 5), 80 + 29 * (i % 4), 60 + 11 * (number % 3)]
        found.append(ask("offer", boxes=[{"sides": sides}]))
        found.append(ask("confirm"))
    return found


def test_many_cells_at_once_get_what_each_gets_alone(
    server: StreamServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It takes most of the time, and no machine fails here.
    monkeypatch.setattr("os.fsync", lambda _: None)
    make = client_of_the_document()
    with ThreadPoolExecutor(8) as threads:
        cells = [make(f"cell-{number}", port=server.port, token=TOKEN) for number in range(8)]
        found = list(threads.map(lambda cell: packed(cell.ask, int(cell.session[5:])), cells))
    alone = PackingSessions(tmp_path / "alone", device="cpu")
    for number, answers in enumerate(found):

        def asked(do: str, number: int = number, **given: Any) -> dict[str, Any]:
            return alone.answer(json.dumps({"do": do, "session": f"cell-{number}", **given}))[1]

        wanted = packed(asked, number)
        assert [answer | {"request": 0} for answer in answers] == [each | {"request": 0} for each in wanted]
    with pytest.raises(ValueError, match=r"8 sessions"):
        make("cell-8", port=server.port, token=TOKEN).ask("open")


def test_order_is_planned_and_handed_out_over_http(server: StreamServer) -> None:
    cell = client_of_the_document()("a", port=server.port, token=TOKEN)
    order = [{"sides": [200, 100, 100], "quantity": 70, "id": "brick"}]
    # Sixty fill a pallet.
    assert cell.ask("open", order=order, **SMALL)["pallets"] == 2
    packed = []
    while cell.ask("status")["left"]:
        place = cell.ask("offer")
        if place["box"] is None:
            packed.append(cell.ask("next")["left"])
            continue
        assert place["planned"]
        cell.ask("confirm")
    assert packed == [10]
    assert [row["pallet"] for row in cell.ask("close")["plan"]] == [1] * 60 + [2] * 10


def test_cells_of_one_pallet_have_one_box_each_in_turn(server: StreamServer, sessions: PackingSessions) -> None:
    make = client_of_the_document()
    make("a", port=server.port, token=TOKEN).ask("open", **SMALL)

    def place(number: int) -> str:
        try:
            make("a", port=server.port, token=TOKEN).ask("offer", boxes=[{"sides": [100, 100, 100], "id": number}])
        except ValueError as error:
            return str(error)
        return "placed"

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(place, range(8)))
    refused = [answer for answer in found if answer != "placed"]
    assert len(refused) == 7
    assert all(answer.startswith("session: ") and "pending box" in answer for answer in refused)
    assert json.loads((sessions.folder / "a.json").read_text())["waits"]["box"]["id"] == found.index("placed")


@pytest.mark.parametrize(
    ("body", "changes", "status", "said"),
    [
        (b"", {}, 400, "session: invalid JSON: Expecting value"),
        (b"{}", {}, 400, "session: do must be one of open, status, offer"),
        (b'{"do": "status", "session": "a"}', {}, 400, "session: a is not open. Open are none"),
        (
            b'{"do": "status", "session": "a"}',
            {"kind": "application/octet-stream"},
            400,
            "a packing session takes JSON",
        ),
        (b'{"do": "status", "session": "a"}', {"token": "another-long-token"}, 401, ""),
        (b'{"do": "status", "session": "a"}', {"token": "only-to-watch"}, 403, "this token is only for watching"),
        (bytes(300_000), {}, 413, ""),
    ],
)
def test_pallet_server_refuses_wrong_requests(
    server: StreamServer, body: bytes, changes: Any, status: int, said: str
) -> None:
    found, answer = ask(server, body, **changes)
    assert found == status
    assert answer["message"].startswith(said)


async def test_a_socket_answers_one_message_after_the_other(server: StreamServer) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    address = f"http://127.0.0.1:{server.port}/pallet/ws"
    async with aiohttp.ClientSession(headers=headers) as session, session.ws_connect(address) as socket:
        calls = [{"do": "open", **SMALL}, {"do": "offer", "boxes": [{"sides": [100, 100, 100]}]}]
        calls += [{"do": "confirm"}, {"do": "confirm"}, {"do": "close"}]
        for number, call in enumerate(calls):
            await socket.send_json(call | {"session": "a", "request": number})
        answers = [await socket.receive_json() for _ in calls]
    assert [answer.get("request") for answer in answers] == [0, 1, 2, None, 4]
    assert answers[3].keys() == {"message"}
    assert answers[3]["message"].startswith("session: confirm needs")
    assert len(answers[4]["plan"]) == 1


def test_more_than_can_be_answered_soon_is_told_so(
    server: StreamServer, sessions: PackingSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pallets, "_MOST_WAITING", 1)
    begun = threading.Event()
    goes_on = threading.Event()
    answer = sessions.answer

    def slow(message: str | bytes) -> tuple[bool, dict[str, Any]]:
        begun.set()
        assert goes_on.wait(20)
        return answer(message)

    monkeypatch.setattr(sessions, "answer", slow)
    body = json.dumps({"do": "open", "session": "a"} | SMALL).encode()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(ask, server, body)
        assert begun.wait(20)
        assert ask(server, body) == (503, {"message": "too much waits"})
        goes_on.set()
        assert first.result()[0] == 200


def test_error_of_a_session_is_logged_and_sent(
    server: StreamServer, sessions: PackingSessions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "_write", lambda *_: 1 / 0)
    body = json.dumps({"do": "open", "session": "a"} | SMALL).encode()
    assert ask(server, body) == (500, {"message": "the packing session failed: ZeroDivisionError"})
    assert "ZeroDivisionError" in caplog.text


def test_server_without_policy_and_pallets_is_refused() -> None:
    with pytest.raises(ValueError, match=r"policy and pallets"):
        policy_server(None)
    with pytest.raises(ValueError, match=r"page shows"):
        policy_server(None, page=True)


def test_the_answer_of_a_close_that_was_lost_is_given_again(server: StreamServer, sessions: PackingSessions) -> None:
    cell = client_of_the_document()("a", port=server.port, token=TOKEN)
    cell.ask("open", **SMALL)
    cell.ask("offer", boxes=[{"sides": [100, 100, 100]}])
    cell.ask("confirm")
    body = json.dumps({"do": "close", "session": "a", "request": "last"}).encode()
    first = ask(server, body)
    assert first[0] == 200
    assert len(first[1]["plan"]) == 1
    assert ask(server, body) == first
    assert sessions.names == []
    assert ask(server, body.replace(b"last", b"other"))[0] == 400
