"""Who may watch and who may control: tokens, sessions, origins and hosts, without a socket."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Literal
from urllib.parse import urlsplit

Role = Literal["view", "control"]
ROLES: tuple[Role, ...] = ("control", "view")
_HOST = re.compile(r"[A-Za-z0-9._\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's alone. No name but localhost is looked up."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Gate:
    """Decides on roles.

    Args:
        token: Gives control; None where everyone has it.
        view_token: Gives a view only.
        allowed_origins: Pages of other hosts that may connect, such as "https://lab.example".
    """

    def __init__(
        self, token: str | None = None, view_token: str | None = None, allowed_origins: Iterable[str] = ()
    ) -> None:
        secrets: dict[Role, str | None] = {"control": token, "view": view_token}
        self._tokens = {role: secret.encode() for role, secret in secrets.items() if secret is not None}
        self._sessions = {role: _session(role, secret) for role, secret in self._tokens.items()}
        self.allowed_origins = tuple(origin.rstrip("/").lower() for origin in allowed_origins)
        self._allowed_hosts = {urlsplit(origin).netloc for origin in self.allowed_origins}

    @property
    def is_open(self) -> bool:
        """Whether everyone has control."""
        return "control" not in self._tokens

    def role_of_token(self, token: str) -> Role | None:
        """What a token gives; takes as long whatever is wrong with it."""
        return _match(token, self._tokens)

    def role_of_session(self, cookie: str) -> Role | None:
        """What a session cookie gives."""
        return _match(cookie, self._sessions)

    def session(self, role: Role) -> str:
        """The cookie of a role: made from its token, so that it outlives the server but not the token."""
        return self._sessions[role].decode()

    def allows_host(self, host: str) -> bool:
        """Whether a request's Host header may stand there.

        Without a token only names of this machine may: a page of a name that was turned to 127.0.0.1 would otherwise
        count as of the same origin (DNS rebinding).
        """
        if not _HOST.fullmatch(host):
            return False
        return (
            not self.is_open or is_loopback(urlsplit(f"//{host}").hostname or "") or host.lower() in self._allowed_hosts
        )

    def allows_origin(self, origin: str | None, host: str) -> bool:
        """Whether a page of this origin may connect: one of the same host, or an allowed one; no page at all may."""
        if origin is None:
            return True
        parts = urlsplit(origin.lower())
        same = parts.scheme in ("http", "https") and parts.netloc == host.lower()
        return same or origin.rstrip("/").lower() in self.allowed_origins


class FailureLimit:
    """How many wrong tokens an address may try.

    Args:
        limit: Failures within the window, after which the address is refused.
        window: Seconds.
        clock: Seconds, monotonic.
        size: Addresses that are remembered; the one that failed longest ago is forgotten first.
    """

    def __init__(
        self, limit: int = 5, window: float = 60.0, clock: Callable[[], float] = time.monotonic, size: int = 1024
    ) -> None:
        self._limit, self._window, self._clock, self._size = limit, window, clock, size
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until the address may try again; 0 if it may now."""
        recent = self._recent(_network(address))
        return 0.0 if len(recent) < self._limit else recent[-self._limit] + self._window - self._clock()

    def fail(self, address: str) -> None:
        """Notes a wrong token."""
        network = _network(address)
        self._failures[network] = [*self._recent(network), self._clock()][-self._limit :]
        self._failures.move_to_end(network)
        while len(self._failures) > self._size:
            self._failures.popitem(last=False)

    def _recent(self, network: str) -> list[float]:
        since = self._clock() - self._window
        return [moment for moment in self._failures.get(network, ()) if moment > since]


def content_security_policy(page: str, host: str, allowed_origins: Iterable[str] = ()) -> str:
    """A policy under which a page runs its own inline scripts and styles, known by their hashes, and nothing else.

    Args:
        page: The HTML.
        host: Host and port as the browser knows them, for the WebSocket.
        allowed_origins: Who may show the page in a frame.
    """
    frames = " ".join(["'self'", *allowed_origins])
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hashes(page, 'script')}",
            f"style-src {_hashes(page, 'style')}",
            "img-src 'self' blob: data:",
            "media-src 'self' blob:",
            f"connect-src 'self' ws://{host} wss://{host}",
            "worker-src 'self' blob:",
            "base-uri 'none'",
            "form-action 'self'",
            f"frame-ancestors {frames}",
        )
    )


def _hashes(page: str, tag: str) -> str:
    blocks = re.findall(rf"<{tag}(?:\s[^>]*)?>(.*?)</{tag}\s*>", page, re.DOTALL | re.IGNORECASE)
    digests = [base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


def _match(given: str, secrets: dict[Role, bytes]) -> Role | None:
    """The role whose secret this is; all are compared, each in constant time."""
    found: Role | None = None
    for role, secret in secrets.items():
        if hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret):
            found = found or role
    return found


def _session(role: Role, token: bytes) -> bytes:
    return hmac.new(token, f"torchrl_gpu session, {role}".encode(), hashlib.sha256).hexdigest().encode()


def _network(address: str) -> str:
    """An address as far as one household has it to itself: all of IPv4, the first 64 bits of IPv6."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))
