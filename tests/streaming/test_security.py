"""Tokens, sessions, hosts and origins."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from torchrl_gpu.streaming import security
from torchrl_gpu.streaming.security import FailureLimit, Gate, content_security_policy, is_loopback


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_roles() -> None:
    gate = Gate("drive", "look")
    assert gate.role_of_token("drive") == "control"
    assert gate.role_of_token("look") == "view"
    wrong = ("", "driv", "drive ", "Drive", "dr\u00efve", "\udcff", "\ud800")
    assert [gate.role_of_token(token) for token in wrong] == [None] * len(wrong)
    assert not gate.is_open
    assert Gate().is_open


def test_sessions_stand_for_a_role_and_end_with_the_token() -> None:
    gate, later, other = Gate("drive", "look"), Gate("drive", "look"), Gate("drove", "look")
    assert later.role_of_session(gate.session("control")) == "control"
    assert later.role_of_session(gate.session("view")) == "view"
    assert other.role_of_session(gate.session("control")) is None
    assert gate.role_of_session("drive") is None
    assert gate.role_of_token(gate.session("control")) is None
    assert "drive" not in gate.session("control")


def test_every_secret_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(given: bytes, secret: bytes) -> bool:
        compared.append(secret)
        return hmac.compare_digest(given, secret)

    monkeypatch.setattr(security, "hmac", type("hmac", (), {"compare_digest": staticmethod(compare)}))
    gate = object.__new__(Gate)
    gate._tokens = {"control": b"drive", "view": b"look"}
    for token in ("drive", "look", "neither"):
        compared.clear()
        gate.role_of_token(token)
        assert compared == [b"drive", b"look"]


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8080", True),
        ("localhost:9000", True),
        ("[::1]:8080", True),
        ("LAB.example", True),
        ("evil.example:8080", False),
        ("127.0.0.1:8080, evil.example", False),
        ("localhost:8080/../", False),
        ("a b", False),
        ("", False),
    ],
)
def test_without_a_token_only_names_of_this_machine_may_be_asked_for(host: str, allowed: bool) -> None:
    assert Gate(allowed_origins=["https://lab.example"]).allows_host(host) is allowed


def test_with_a_token_any_name_may() -> None:
    gate = Gate("drive")
    assert gate.allows_host("gpu_node-3.cluster:8080")
    assert not gate.allows_host('x"; script-src *')


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://localhost:8080", True),
        ("https://LOCALHOST:8080", True),
        ("https://lab.example", True),
        ("https://lab.example/", True),
        ("http://lab.example", False),
        ("http://localhost:9999", False),
        ("http://evil.example", False),
        ("null", False),
        ("file://", False),
        ("", False),
        ("http://localhost:8080.evil.example", False),
        ("http://localhost:8080@evil.example", False),
    ],
)
def test_origins(origin: str | None, allowed: bool) -> None:
    assert Gate(allowed_origins=["https://lab.example"]).allows_origin(origin, "localhost:8080") is allowed


def test_failures_of_one_address_end_in_a_wait() -> None:
    now = [100.0]
    limit = FailureLimit(limit=3, window=60.0, clock=lambda: now[0])
    for i in range(3):
        assert limit.wait("10.0.0.1") == 0
        now[0] = 100.0 + i
        limit.fail("10.0.0.1")
    assert limit.wait("10.0.0.1") == 58.0  # until the first of the three is a minute old
    assert limit.wait("10.0.0.2") == 0
    now[0] = 160.5
    assert limit.wait("10.0.0.1") == 0
    limit.fail("10.0.0.1")
    assert limit.wait("10.0.0.1") == pytest.approx(0.5)  # those at 101, 102 and 160.5


def test_a_household_of_ipv6_counts_as_one_and_addresses_are_forgotten() -> None:
    limit = FailureLimit(limit=1, size=2, clock=lambda: 0.0)
    limit.fail("2001:db8:1:2:aaaa::1")
    assert limit.wait("2001:db8:1:2:bbbb::2") > 0
    assert limit.wait("2001:db8:1:3::1") == 0
    limit.fail("10.0.0.1")
    assert limit.wait("::ffff:10.0.0.1") > 0
    limit.fail("not an address")
    assert limit.wait("2001:db8:1:2:aaaa::1") == 0


def test_the_policy_names_the_inline_blocks_and_nothing_else() -> None:
    script, style = "\n let a = '</b>';\n", "b { color: red }"
    page = f"<html><style>{style}</style><p>text</p><script>{script}</script></html>"
    policy = dict(
        part.split(" ", 1)
        for part in content_security_policy(page, "localhost:80", ["https://lab.example"]).split("; ")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy["script-src"] == f"'sha256-{digest}'"
    assert policy["style-src"].startswith("'sha256-")
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self' ws://localhost:80 wss://localhost:80"
    assert policy["frame-ancestors"] == "'self' https://lab.example"
    assert "unsafe" not in " ".join(policy.values())
    assert "script-src 'none'" in content_security_policy("<p>", "localhost")
