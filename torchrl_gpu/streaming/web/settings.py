"""The options of a stream server: their defaults and what they may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrl_gpu.streaming.codecs.images import check_quality
from torchrl_gpu.streaming.web.security import MIN_REMOTE_TOKEN, check_origin, is_loopback

_WHERE = "StreamServer"
_MAX_TOKEN = 1_024
MAX_BODY_BYTES = 65_536  # of a request that strangers may send, and of others by default


@dataclass(frozen=True)
class ServerSettings:
    """The validated arguments of `StreamServer`, which says what they mean; none leaves it open to other machines."""

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
            raise ValueError(f"{_WHERE}: want a host to listen at, such as 127.0.0.1; got {self.host!r}")
        if not _is_integer(self.port) or not 0 <= self.port <= 65535:
            raise ValueError(f"{_WHERE}: want a port of 0 (any that is free) to 65535; got {self.port!r}")
        self._check_tokens()
        if self.tls is not None and (isinstance(self.tls, str) or len(tuple(self.tls)) != 2):
            raise ValueError(f"{_WHERE}: want tls to be the files (certificate, key); got {self.tls!r}")
        object.__setattr__(self, "allowed_origins", tuple(map(check_origin, self.allowed_origins)))
        check_quality(self.jpeg_quality, _WHERE)
        for name in ("max_clients", "port_tries"):
            value = getattr(self, name)
            if not _is_integer(value) or value < 1:
                raise ValueError(f"{_WHERE}: want {name} of at least 1; got {value!r}")
        for name, least, most in (("fps", 0.1, 1000), ("instant_replay_s", 0, 600), ("heartbeat_s", 0.05, 600)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise ValueError(f"{_WHERE}: want {name} of {least:g} to {most:g}; got {value!r}")

    def _check_tokens(self) -> None:
        """None of these errors shows a token."""
        for name in ("token", "view_token"):
            self._check_token(name)
        if self.token is None and not is_loopback(self.host):
            raise ValueError(f"{_WHERE}: want a token to listen beyond this machine; got none for host {self.host!r}")
        if self.token is None and self.view_token is not None:
            raise ValueError(f"{_WHERE}: want a token where there is a view_token; got the latter alone")
        if self.token is not None and self.token == self.view_token:
            raise ValueError(f"{_WHERE}: want view_token to differ from token; got the same for both")

    def _check_token(self, name: str) -> None:
        token = getattr(self, name)
        if token is None:
            return
        if not isinstance(token, str):
            raise ValueError(f"{_WHERE}: want {name} to be None or a string; got {type(token).__name__}")
        if token == "":
            raise ValueError(f"{_WHERE}: want {name} to be None or at least one character; got an empty one")
        if len(token) > _MAX_TOKEN or not token.isprintable() or token != token.strip():
            raise ValueError(
                f"{_WHERE}: want {name} of at most {_MAX_TOKEN} printable characters, without spaces around; "
                f"got another of {len(token)}"
            )
        if len(token) < MIN_REMOTE_TOKEN and not is_loopback(self.host):
            raise ValueError(
                f"{_WHERE}: want {name} of at least {MIN_REMOTE_TOKEN} characters to listen beyond this machine, such "
                f'as python -c "import secrets; print(secrets.token_urlsafe())" makes; got one of {len(token)}'
            )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
