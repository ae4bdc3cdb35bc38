"""What a server may be told."""

from __future__ import annotations

from typing import Any

import pytest

from torchrl_gpu.streaming.server import StreamServer


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"host": ""}, "a host to listen at"),
        ({"host": "0.0.0.0"}, "a token to listen beyond this machine"),
        ({"host": "::"}, "a token to listen beyond this machine"),
        ({"host": "gpu-node"}, "a token to listen beyond this machine"),
        ({"port": 70_000}, "a port of 0"),
        ({"host": "0.0.0.0", "token": "fifteen letters"}, "token of at least 16 characters to listen beyond"),
        ({"host": "0.0.0.0", "token": "1234"}, "secrets.token_urlsafe()"),
        ({"host": "0.0.0.0", "token": "a" * 16, "view_token": "1234"}, "view_token of at least 16 characters"),
        ({"token": 1234}, "token to be None or a string; got int"),
        ({"token": "a\nb"}, "token of at most 1024 printable characters"),
        ({"token": " sesame"}, "without spaces around"),
        ({"token": "\ud800"}, "printable characters"),
        ({"token": "a" * 1025}, "at most 1024"),
        ({"allowed_origins": "https://lab.example"}, "allowed_origins such as"),
        ({"allowed_origins": ["https://lab.example; script-src *"]}, "allowed_origins such as"),
        ({"port": "8080"}, "a port of 0"),
        ({"port": True}, "a port of 0"),
        ({"max_clients": 1.5}, "max_clients of at least 1"),
        ({"fps": float("nan")}, "fps of 0.1 to 1000"),
        ({"heartbeat_s": "5"}, "heartbeat_s of 0.05 to 600"),
        ({"token": ""}, "token to be None or at least one character"),
        ({"view_token": "look"}, "a token where there is a view_token"),
        ({"token": "a", "view_token": "a"}, "view_token to differ from token"),
        ({"max_clients": 0}, "max_clients of at least 1"),
        ({"port_tries": 0}, "port_tries of at least 1"),
        ({"jpeg_quality": 0}, "a quality of 1 to 100"),
        ({"fps": 0}, "fps of 0.1 to 1000"),
        ({"instant_replay_s": -1}, "instant_replay_s of 0 to 600"),
        ({"heartbeat_s": 0}, "heartbeat_s of 0.05 to 600"),
        ({"tls": "certificate.pem"}, "tls to be the files"),
    ],
)
def test_what_it_may_not_be(arguments: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match="StreamServer: want ") as error:
        StreamServer(**arguments)
    assert wanted in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_no_token(host: str) -> None:
    StreamServer(host=host)


def test_a_long_token_listens_anywhere_and_a_short_one_on_this_machine() -> None:
    StreamServer(host="0.0.0.0", token="sixteen letters!")
    StreamServer(token="1234", view_token="4321")


@pytest.mark.parametrize(
    "arguments",
    [
        {"host": "0.0.0.0", "token": "secret-word", "view_token": "secret-word"},
        {"token": "secret-word", "view_token": "secret-word"},
        {"token": "secret-word\n"},
    ],
)
def test_no_error_shows_a_token(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as error:
        StreamServer(**arguments)
    assert "secret-word" not in str(error.value)
