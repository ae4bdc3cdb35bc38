"""What a stream server is told, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from torchrl_gpu.streaming.jpeg import check_quality
from torchrl_gpu.streaming.security import is_loopback

_WHERE = "StreamServer"


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
        check_quality(self.jpeg_quality, _WHERE)
        for name in ("max_clients", "port_tries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{_WHERE}: want {name} of at least 1; got {getattr(self, name)!r}")
        if not 0.1 <= self.fps <= 1000:
            raise ValueError(f"{_WHERE}: want fps of 0.1 to 1000; got {self.fps!r}")
        if not 0 <= self.replay_seconds <= 600:
            raise ValueError(f"{_WHERE}: want replay_seconds of 0 to 600; got {self.replay_seconds!r}")
        if not 0.05 <= self.heartbeat <= 600:
            raise ValueError(f"{_WHERE}: want a heartbeat of 0.05 to 600 seconds; got {self.heartbeat!r}")

    def _check_address(self) -> None:
        if not isinstance(self.host, str) or not self.host:
            raise ValueError(f"{_WHERE}: want a host to listen at, such as 127.0.0.1; got {self.host!r}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"{_WHERE}: want a port of 0 (any that is free) to 65535; got {self.port!r}")

    def _check_tokens(self) -> None:
        for name in ("token", "view_token"):
            if getattr(self, name) == "":
                raise ValueError(f"{_WHERE}: want {name} to be None or at least one character; got an empty one")
        if self.token is None and not is_loopback(self.host):
            raise ValueError(f"{_WHERE}: want a token to listen beyond this machine; got none for host {self.host!r}")
        if self.token is None and self.view_token is not None:
            raise ValueError(f"{_WHERE}: want a token where there is a view_token; got the latter alone")
        if self.token is not None and self.token == self.view_token:
            raise ValueError(f"{_WHERE}: want view_token to differ from token; got the same for both")

    def _check_tls(self) -> None:
        if self.tls is not None and (isinstance(self.tls, str) or len(tuple(self.tls)) != 2):
            raise ValueError(f"{_WHERE}: want tls to be the files (certificate, key); got {self.tls!r}")
