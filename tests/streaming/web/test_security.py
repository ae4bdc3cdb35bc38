"""Tokens, sessions, hosts and origins."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from torchrl_gpu.streaming.server import StreamServer
from torchrl_gpu.streaming.web import security
from torchrl_gpu.streaming.web.security import AccessRules, FailureLimit, Sessions, content_security_policy, is_loopback


def test_loopback_addresses_are_known() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST.", "::1", "[::1]")))
    others = ("0.0.0.0", "::", "192.168.1.5", "localhost.example.com", "127.0.0.1.example.com", "")
    assert not any(map(is_loopback, others))


def test_tokens_give_roles() -> None:
    gate = AccessRules("drive", "look")
    assert gate.role_of_token("drive") == "control"
    assert gate.role_of_token("look") == "view"
    wrong = ("", "driv", "drive ", "Drive", "dr\u00efve", "\udcff", "\ud800")
    assert [gate.role_of_token(token) for token in wrong] == [None] * len(wrong)
    assert not gate.is_open
    assert AccessRules().is_open
    gate = AccessRules("a token of many characters", "1234")
    assert (gate.is_out_of_reach("control"), gate.is_out_of_reach("view")) == (True, False)


def test_sessions_are_random_and_end_with_the_server() -> None:
    gate, later = AccessRules("drive", "look"), AccessRules("drive", "look")
    control, view = gate.sessions.open("control"), gate.sessions.open("view")
    assert (gate.sessions.role(control), gate.sessions.role(view)) == ("control", "view")
    assert later.sessions.role(control) is None
    assert later.sessions.open("control") != control != gate.sessions.open("control")
    # 256 bits.
    assert len(control) == 43
    assert gate.sessions.role("drive") is None
    assert gate.role_of_token(control) is None
    assert control not in repr(vars(gate.sessions)), "hashes alone are kept"


def test_no_cookie_can_be_computed_from_a_token() -> None:
    gate = AccessRules("1234")
    gate.sessions.open("control")
    message = b"torchrl_gpu session, control"
    guesses = (hmac.new(f"{number:04}".encode(), message, hashlib.sha256).hexdigest() for number in range(10_000))
    assert not any(map(gate.sessions.role, guesses))


def test_sessions_end_without_use_and_are_bounded_role_by_role() -> None:
    now = [0.0]
    sessions = Sessions(size=2, lifetime=10.0, clock=lambda: now[0])
    control = sessions.open("control")
    first = sessions.open("view")
    second = sessions.open("view")
    assert sessions.role(first) == "view"
    third = sessions.open("view")
    assert sessions.role(second) is None, "the one that was used longest ago"
    assert [sessions.role(each) for each in (control, first, third)] == ["control", "view", "view"]
    now[0] = 10.0
    assert sessions.role(first) == "view"
    now[0] = 10.5
    assert [sessions.role(each) for each in (control, first, third)] == [None, "view", None]
    assert sessions.role(control) is None


def test_every_secret_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(given: bytes, secret: bytes) -> bool:
        compared.append(secret)
        return hmac.compare_digest(given, secret)

    monkeypatch.setattr(security, "hmac", type("hmac", (), {"compare_digest": staticmethod(compare)}))
    gate = AccessRules(token="drive", view_token="look")
    for token in ("drive", "look", "neither"):
        compared.clear()
        gate.role_of_token(token)
        assert compared == [b"drive", b"look"]


def test_hosts_that_may_be_asked_for() -> None:
    gate = AccessRules(allowed_origins=["https://lab.example"])
    assert all(map(gate.allows_host, ("127.0.0.1:8080", "localhost:9000", "[::1]:8080", "LAB.example")))
    wrong = ("evil.example:8080", "127.0.0.1:8080, evil.example", "localhost:8080/../", "a b", "[:::::]", "")
    assert not any(map(gate.allows_host, wrong)), "without a token only names of this machine"
    gate = AccessRules("drive")
    assert gate.allows_host("gpu_node-3.cluster:8080")
    assert not gate.allows_host('x"; script-src *')


def test_origins_of_pages_are_checked() -> None:
    gate, own = AccessRules(allowed_origins=["https://lab.example"]), "http://localhost:8080"
    allowed = (None, own, "https://LOCALHOST:8080", "https://lab.example", "https://lab.example/")
    assert all(gate.allows_origin(origin, "localhost:8080") for origin in allowed)
    wrong = ("http://lab.example", "http://localhost:9999", "http://evil.example", "null", "http://[", "file://", "")
    wrong += (f"{own}.evil.example", f"{own}@evil.example")
    assert not any(gate.allows_origin(origin, "localhost:8080") for origin in wrong)


def test_failures_of_one_address_end_in_a_wait() -> None:
    now = [100.0]
    limit = FailureLimit(limit=3, window=60.0, clock=lambda: now[0])
    for i in range(3):
        assert limit.wait("10.0.0.1") == 0
        now[0] = 100.0 + i
        limit.fail("10.0.0.1", f"guess {i}")
    # This is until the first of the three is a minute old.
    assert limit.wait("10.0.0.1") == 58.0
    assert limit.wait("10.0.0.2") == 0
    now[0] = 160.5
    assert limit.wait("10.0.0.1") == 0
    limit.fail("10.0.0.1", "guess 3")
    # Those at 101, 102 and 160.5 count.
    assert limit.wait("10.0.0.1") == pytest.approx(0.5)


def test_a_household_of_ipv6_counts_as_one_and_addresses_are_forgotten() -> None:
    limit = FailureLimit(limit=1, size=2, clock=lambda: 0.0)
    limit.fail("2001:db8:1:2:aaaa::1", "guess")
    assert limit.wait("2001:db8:1:2:bbbb::2") > 0
    assert limit.wait("2001:db8:1:3::1") == 0
    limit.fail("10.0.0.1", "guess")
    assert limit.wait("::ffff:10.0.0.1") > 0
    limit.fail("not an address", "guess")
    assert limit.wait("2001:db8:1:2:aaaa::1") == 0


def test_the_same_wrong_token_again_is_no_other_guess() -> None:
    limit = FailureLimit(limit=2, clock=lambda: 0.0)
    for _ in range(10):
        limit.fail("10.0.0.1", "of the server before")
    assert limit.wait("10.0.0.1") == 0
    limit.fail("10.0.0.1", "another")
    assert limit.wait("10.0.0.1") == 60.0
    assert "of the server before" not in repr(vars(limit))


def test_a_page_may_be_named_by_an_address_within() -> None:
    gate = AccessRules(allowed_origins=["https://lab.example"])
    assert gate.lists_origin("https://LAB.example/wiki/robots?page=2")
    wrong = (None, "https://lab.example.evil.example/", "https://lab.example@evil.example/", "http://[", "null")
    assert not any(map(gate.lists_origin, wrong))


def test_the_policy_lets_the_pages_own_files_run_and_nothing_else() -> None:
    policy = dict(
        part.split(" ", 1) for part in content_security_policy("localhost:80", ["https://lab.example"]).split("; ")
    )
    assert (policy["script-src"], policy["style-src"], policy["default-src"]) == ("'self'", "'self'", "'none'")
    assert policy["connect-src"] == "'self' ws://localhost:80 wss://localhost:80"
    assert policy["frame-ancestors"] == "'self' https://lab.example"
    assert "unsafe" not in " ".join(policy.values())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"host": ""}, "host .*''"),
        ({"host": "0.0.0.0"}, r"host '0\.0\.0\.0' .*token"),
        ({"host": "::"}, "host '::' .*token"),
        ({"host": "gpu-node"}, "host 'gpu-node' .*token"),
        ({"port": 70_000}, "port .*70000"),
        ({"host": "0.0.0.0", "token": "fifteen letters"}, "token .*16 characters.* 15"),
        ({"host": "0.0.0.0", "token": "1234"}, r"token .* 4\..*secrets\.token_urlsafe\(\)"),
        ({"host": "0.0.0.0", "token": "a" * 16, "view_token": "1234"}, "view_token .*16 characters.* 4"),
        ({"token": 1234}, "token .*int"),
        ({"token": "a\nb"}, "token .*printable.* 3"),
        ({"token": " sesame"}, "token .*spaces.* 7"),
        ({"token": "\ud800"}, "token .*printable.* 1"),
        ({"token": "a" * 1025}, "token .*1024.* 1025"),
        *(
            ({"allowed_origins": given}, "allowed_origins")
            for given in ("https://lab.example", ["https://lab.example; script-src *"], ["lab.example"], ["*"], [""])
        ),
        ({"allowed_origins": ["https://lab.example", 7]}, "allowed_origins"),
        ({"allowed_origins": ["https://"]}, "allowed_origins"),
        ({"port": "8080"}, "port .*'8080'"),
        ({"port": True}, "port .*True"),
        ({"max_clients": 1.5}, r"max_clients .*1\.5"),
        ({"fps": float("nan")}, "fps .*nan"),
        ({"heartbeat_s": "5"}, "heartbeat_s .*'5'"),
        ({"token": ""}, "token .*empty"),
        ({"view_token": "look"}, "view_token .*token"),
        ({"token": "a", "view_token": "a"}, "view_token .*differ"),
        ({"max_clients": 0}, "max_clients .*0"),
        ({"port_tries": 0}, "port_tries .*0"),
        ({"jpeg_quality": 0}, "quality .*0"),
        ({"fps": 0}, "fps .*, not 0"),
        ({"instant_replay_s": -1}, "instant_replay_s .*-1"),
        ({"heartbeat_s": 0}, "heartbeat_s .*, not 0"),
        ({"tls": "certificate.pem"}, "tls .*certificate.pem"),
    ],
)
def test_stream_server_refuses_wrong_settings(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=rf"^StreamServer: .*{says}") as error:
        StreamServer(**arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_no_token(host: str) -> None:
    StreamServer(host=host)


def test_a_long_token_listens_anywhere_and_a_short_one_on_this_machine() -> None:
    StreamServer(host="0.0.0.0", token="sixteen letters!")
    server = StreamServer(token="1234", view_token="4321", allowed_origins=["https://LAB.example/"])
    assert server.settings.allowed_origins == ("https://lab.example",)


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
