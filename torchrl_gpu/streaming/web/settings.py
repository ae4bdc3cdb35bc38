"""What a stream server is told, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from torchrl_gpu.streaming.codecs.jpeg import check_quality
from torchrl_gpu.streaming.web.security import LONG_TOKEN, check_origin, is_loopback

_WHERE = "StreamServer"
_LONGEST_TOKEN = 1_024


@dataclass(frozen=True)
class Settings:
    """The arguments of `StreamServer`, which says what they mean.

    Raises:
        ValueError: One of them is something else, or the server would stand open to other machines.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    view_token: str | None = None
    max_clients: int = 64
    tls: tuple[str, str] | None = None
    jpeg_quality: int = 80
    fps: float = 30.0
    replay_seconds: float = 10.0
    heartbeat: float = 5.0
    port_tries: int = 1
    allowed_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_address()
        self._check_tokens()
        self._check_tls()
        self._check_origins()
        check_quality(self.jpeg_quality, _WHERE)
        for name in ("max_clients", "port_tries"):
            value = getattr(self, name)
            if not _is_integer(value) or value < 1:
                raise ValueError(f"{_WHERE}: want {name} of at least 1; got {value!r}")
        self._check_range("fps", 0.1, 1000, "fps of 0.1 to 1000")
        self._check_range("replay_seconds", 0, 600, "replay_seconds of 0 to 600")
        self._check_range("heartbeat", 0.05, 600, "a heartbeat of 0.05 to 600 seconds")

    def _check_range(self, name: str, least: float, most: float, wanted: str) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ValueError(f"{_WHERE}: want {wanted}; got {value!r}")

    def _check_address(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise ValueError(f"{_WHERE}: want a host to listen at, such as 127.0.0.1; got {self.host!r}")
        if not _is_integer(self.port) or not 0 <= self.port <= 65535:
            raise ValueError(f"{_WHERE}: want a port of 0 (any that is free) to 65535; got {self.port!r}")

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
        if len(token) > _LONGEST_TOKEN or not token.isprintable() or token != token.strip():
            raise ValueError(
                f"{_WHERE}: want {name} of at most {_LONGEST_TOKEN} printable characters, without spaces around; "
                f"got another of {len(token)}"
            )
        if len(token) < LONG_TOKEN and not is_loopback(self.host):
            raise ValueError(
                f"{_WHERE}: want {name} of at least {LONG_TOKEN} characters to listen beyond this machine, such as "
                f'python -c "import secrets; print(secrets.token_urlsafe())" makes; got one of {len(token)}'
            )

    def _check_origins(self) -> None:
        for origin in self.allowed_origins:
            check_origin(origin, _WHERE)

    def _check_tls(self) -> None:
        if self.tls is not None and (isinstance(self.tls, str) or len(tuple(self.tls)) != 2):
            raise ValueError(f"{_WHERE}: want tls to be the files (certificate, key); got {self.tls!r}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
