"""Access rules without a socket: tokens, sessions, origins and hosts."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Literal
from urllib.parse import urlsplit

Role = Literal["view", "control"]
ROLES: tuple[Role, ...] = ("control", "view")
# Characters. Nobody guesses a token of this length, however often they try.
MIN_REMOTE_TOKEN = 16
_HOST = re.compile(r"[A-Za-z0-9._\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


def is_loopback(host: str) -> bool:
    """Return whether a name or address is of this machine alone.

    No name but localhost is looked up.
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Sessions:
    """Roles by random cookies, of which only hashes are kept.

    Each role has room for its own sessions, so that viewers cannot push out whoever controls. When it is full, the
    session whose last use is longest ago is forgotten.

    Args:
        size: Sessions of a role.
        lifetime: Seconds without use after which a session ends.
        clock: Seconds.
    """

    def __init__(
        self, size: int = 256, lifetime: float = 7 * 86_400.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._size = size
        self._lifetime = lifetime
        self._clock = clock
        # When each session was used last, the oldest first.
        self._used: dict[Role, OrderedDict[bytes, float]] = {role: OrderedDict() for role in ROLES}

    def open(self, role: Role) -> str:
        """Open a session, and return its cookie."""
        cookie = secrets.token_urlsafe(32)
        used = self._used[role]
        used[_digest(cookie)] = self._clock()
        if len(used) > self._size:
            used.popitem(last=False)
        return cookie

    def role(self, cookie: str) -> Role | None:
        """Return the role of a session. Asking counts as use."""
        # The time of a lookup tells something of the hash at most, and no cookie can be made from a hash.
        key = _digest(cookie)
        now = self._clock()
        for role, used in self._used.items():
            if key in used:
                if now - used.pop(key) > self._lifetime:
                    return None
                used[key] = now
                return role
        return None


class AccessRules:
    """Roles of tokens, and the hosts and origins that requests may name.

    The arguments are those of `ServerSettings`.
    """

    def __init__(
        self, token: str | None = None, view_token: str | None = None, allowed_origins: Iterable[str] = ()
    ) -> None:
        given: dict[Role, str | None] = {"control": token, "view": view_token}
        self._tokens = {role: secret.encode() for role, secret in given.items() if secret is not None}
        self._out_of_reach = {role for role, secret in given.items() if secret and len(secret) >= MIN_REMOTE_TOKEN}
        self.sessions = Sessions()
        self.allowed_origins = tuple(allowed_origins)
        self._allowed_hosts = {urlsplit(origin).netloc for origin in self.allowed_origins}

    @property
    def is_open(self) -> bool:
        """Whether everyone who can connect has control."""
        return "control" not in self._tokens

    def role_of_token(self, token: str) -> Role | None:
        """Return the role of a token.

        All secrets are compared, each in constant time, so that the time of an answer tells nothing.
        """
        found: Role | None = None
        for role, secret in self._tokens.items():
            if hmac.compare_digest(token.encode("utf-8", "surrogatepass"), secret):
                found = found or role
        return found

    def is_out_of_reach(self, role: Role) -> bool:
        """Return whether the token of a role is so long that guesses need no limit."""
        return role in self._out_of_reach

    def allows_host(self, host: str) -> bool:
        """Return whether a request's Host header is allowed.

        Without a token it must name this machine. Otherwise a foreign page whose name was changed to mean 127.0.0.1
        would count as of the same origin (DNS rebinding).
        """
        if not _HOST.fullmatch(host):
            return False
        if not self.is_open:
            return True
        return is_loopback(_hostname(host)) or host.lower() in self._allowed_hosts

    def allows_origin(self, origin: str | None, host: str) -> bool:
        """Return whether a page of an origin may connect to a host.

        Its host must be the same, or its origin an allowed one. A client without a page may connect.
        """
        own_origins = (f"http://{host}".lower(), f"https://{host}".lower())
        return origin is None or origin.lower() in own_origins or self.lists_origin(origin)

    def lists_origin(self, page: str | None) -> bool:
        """Return whether a page has an allowed origin.

        The page is named by its origin or by any address within.
        """
        return page is not None and _origin(page) in self.allowed_origins


class FailureLimit:
    """Rate limit of wrong tokens by address.

    The same wrong token again counts once: a page or script that goes on with the token of an earlier server shuts
    nobody out.

    Args:
        limit: Wrong tokens within `window`.
        window: Seconds.
        clock: Seconds.
        size: Addresses that are remembered.
    """

    def __init__(
        self, limit: int = 5, window: float = 60.0, clock: Callable[[], float] = time.monotonic, size: int = 1024
    ) -> None:
        self._limit = limit
        self._window = window
        self._clock = clock
        self._size = size
        # When each wrong token was tried, by address; the address that failed last stands at the end.
        self._failures: OrderedDict[str, dict[bytes, float]] = OrderedDict()
        self._key = secrets.token_bytes(32)

    def wait(self, address: str) -> float:
        """Return the seconds until an address may try again.

        0 if it may now.
        """
        moments = list(self._recent(network(address)).values())
        if len(moments) < self._limit:
            return 0.0
        return moments[-self._limit] + self._window - self._clock()

    def fail(self, address: str, guess: str) -> None:
        """Remember a wrong token."""
        place = network(address)
        recent = self._recent(place)
        # With a key of its own, so that memory that leaks does not give away what was tried.
        recent.setdefault(_digest(guess, self._key), self._clock())
        newest = list(recent.items())[-self._limit :]
        self._failures[place] = dict(newest)
        self._failures.move_to_end(place)
        while len(self._failures) > self._size:
            self._failures.popitem(last=False)

    def _recent(self, place: str) -> dict[bytes, float]:
        since = self._clock() - self._window
        failures = self._failures.get(place, {})
        return {guess: moment for guess, moment in failures.items() if moment > since}


def check_origin(origin: object) -> str:
    """Return an origin, such as "https://lab.example", in lower case.

    Raises:
        ValueError: It is no origin.
    """
    text = origin.rstrip("/").lower() if isinstance(origin, str) else ""
    scheme, _, host = text.partition("://")
    if scheme not in ("http", "https") or not _HOST.fullmatch(host):
        raise ValueError(f"StreamServer: allowed_origins must be origins such as 'https://lab.example', not {origin!r}")
    return text


def content_security_policy(host: str, allowed_origins: Iterable[str] = ()) -> str:
    """Return the policy of the page.

    Under it the page runs the scripts and styles of this server alone, and only allowed origins embed it.

    Args:
        host: Host and port as the browser knows them, for the WebSocket.
        allowed_origins: Of `ServerSettings`.
    """
    frames = " ".join(["'self'", *allowed_origins])
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; "
        f"connect-src 'self' ws://{host} wss://{host}; worker-src 'self' blob:; base-uri 'none'; form-action 'self'; "
        f"frame-ancestors {frames}"
    )


def network(address: str) -> str:
    """Return the part of an address that one household has to itself.

    That is all of IPv4, and the first 64 bits of IPv6.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        # Brackets around something that is no address.
        return ""


def _origin(page: str) -> str | None:
    try:
        parts = urlsplit(page.lower())
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.netloc}"


def _digest(secret: str, key: bytes = b"") -> bytes:
    return hashlib.blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=32, key=key).digest()
