"""A server without sockets, whose viewers are set from outside.

What is published is kept.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from torchrl_gpu.streaming.web.settings import ServerSettings


class FakeServer:
    """As much of a `StreamServer` as producers use.

    The last one made is `FakeServer.last`.
    """

    last: ClassVar[FakeServer | None] = None

    def __init__(self, watched: tuple[str, ...] = (), settings: ServerSettings | None = None) -> None:
        FakeServer.last = self
        self.watched, self.settings = set(watched), settings
        # Streams with a picture for every new viewer, which here never grows old.
        self.kept: set[str] = set()
        self.url = "http://127.0.0.1:8080/"
        self.running = False
        self.asked = 0
        self.declared: dict[str, str | None] = {}
        self.families: dict[str, tuple[int, str | None]] = {}
        self.published: list[tuple[str, np.ndarray, dict[str, Any]]] = []
        self.ended: list[tuple[str, dict[str, Any]]] = []
        self.shown: dict[str, Any] = {}
        self.pending: list[Any] = []
        self.logged: list[tuple[int, dict[str, float]]] = []

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def declare(self, stream: str, title: str | None = None) -> None:
        self.declared[stream] = title

    def declare_family(self, name: str, count: int, title: str | None = None) -> None:
        self.families[name] = count, title

    def watchers(self, stream: str | None = None) -> int:
        self.asked += stream is None
        return len(self.watched) if stream is None else int(stream in self.watched)

    def wanted_streams(self) -> list[str]:
        declared = [name for name in self.declared if name in self.watched or name not in self.kept]
        return declared + sorted(self.watched - self.declared.keys())

    def publish(
        self, frame: Any, stream: str = "main", meta: dict[str, Any] | None = None, *, bgr: bool = False
    ) -> None:
        picture = frame.cpu().numpy() if isinstance(frame, torch.Tensor) else frame
        self.kept.add(stream)
        self.published.append((stream, np.array(picture), dict(meta or {})))

    def end_episode(self, stream: str = "main", meta: dict[str, Any] | None = None) -> None:
        self.ended.append((stream, dict(meta or {})))

    def state(self, **values: Any) -> None:
        self.shown |= values

    def log(self, step: int, /, **scalars: float) -> None:
        self.logged.append((step, scalars))

    def commands(self) -> list[Any]:
        drained, self.pending = self.pending, []
        return drained

    def metas(self, stream: str) -> list[dict[str, Any]]:
        return [meta for name, _, meta in self.published if name == stream]
