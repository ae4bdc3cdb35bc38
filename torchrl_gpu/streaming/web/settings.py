"""The settings of a stream server: their defaults, and what they may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrl_gpu.streaming.codecs.images import check_quality
from torchrl_gpu.streaming.web.security import MIN_REMOTE_TOKEN, check_origin, is_loopback

# Bytes of a request that strangers may send, and by default of any other.
MAX_BODY_BYTES = 65_536
# Characters.
_MAX_TOKEN = 1_024
_WHERE = "StreamServer"


@dataclass(frozen=True)
class ServerSettings:
    """The validated arguments of `StreamServer`, which documents them.

    Without any, only this machine can connect.

    Raises:
        ValueError: One of them is invalid.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    view_token: str | None = None
    max_clients: int = 64
    tls: tuple[str, str] | None = None
    jpeg_quality: int = 80
    fps: float = 30.0
    instant_replay_s: float = 10.0
    heartbeat_s: float = 5.0
    port_tries: int = 1
    allowed_origins: Sequence[str] = ()
    max_body_bytes: int = MAX_BODY_BYTES

    def __post_init__(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise ValueError(f"{_WHERE}: host must be an address to listen at, such as 127.0.0.1, not {self.host!r}")
        if not _is_integer(self.port) or not 0 <= self.port <= 65535:
            raise ValueError(f"{_WHERE}: port must be 0 (any that is free) to 65535, not {self.port!r}")
        self._check_tokens()
        if self.tls is not None and (isinstance(self.tls, str) or len(tuple(self.tls)) != 2):
            raise ValueError(f"{_WHERE}: tls must be two files (certificate, key), not {self.tls!r}")
        # The class is frozen, and origins are compared in lower case.
        object.__setattr__(self, "allowed_origins", tuple(map(check_origin, self.allowed_origins)))
        check_quality(self.jpeg_quality, _WHERE)
        _check_count("max_clients", self.max_clients)
        _check_count("port_tries", self.port_tries)
        _check_number("fps", self.fps, 0.1, 1000)
        _check_number("instant_replay_s", self.instant_replay_s, 0, 600)
        _check_number("heartbeat_s", self.heartbeat_s, 0.05, 600)

    def _check_tokens(self) -> None:
        """Check both tokens. No error shows a token, since errors are logged."""
        self._check_token("token", self.token)
        self._check_token("view_token", self.view_token)
        if self.token is None and not is_loopback(self.host):
            raise ValueError(f"{_WHERE}: host {self.host!r} lets other machines connect, which needs a token")
        if self.token is None and self.view_token is not None:
            raise ValueError(f"{_WHERE}: view_token needs token, without which everyone has control")
        if self.token is not None and self.token == self.view_token:
            raise ValueError(f"{_WHERE}: view_token must differ from token")

    def _check_token(self, name: str, token: object) -> None:
        if token is None:
            return
        if not isinstance(token, str):
            raise ValueError(f"{_WHERE}: {name} must be None or a string, not {type(token).__name__}")
        if token == "":
            raise ValueError(f"{_WHERE}: {name} is empty; None means that there is none")
        is_plain = token.isprintable() and token == token.strip()
        if len(token) > _MAX_TOKEN or not is_plain:
            raise ValueError(
                f"{_WHERE}: {name} must be at most {_MAX_TOKEN} printable characters without spaces around them; this"
                f" one has {len(token)}"
            )
        if len(token) < MIN_REMOTE_TOKEN and not is_loopback(self.host):
            raise ValueError(
                f"{_WHERE}: {name} needs at least {MIN_REMOTE_TOKEN} characters to let other machines connect; this"
                f" one has {len(token)}. Make one by"
                ' python -c "import secrets; print(secrets.token_urlsafe())"'
            )


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{_WHERE}: {name} must be an integer of at least 1, not {value!r}")


def _check_number(name: str, value: object, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        allowed = f"a number from {least:g} to {most:g}"
        raise ValueError(f"{_WHERE}: {name} must be {allowed}, not {value!r}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
