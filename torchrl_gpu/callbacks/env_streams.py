"""Streams of the environments of a run: one by its number, the worst, the best, a grid of several."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from torchrl_gpu.envs.viewable import Viewable

GRID_SIDE = 3  # pictures along each side of a grid, at most
CHOSEN_SPACING = 1.0  # seconds: a stream that somebody chooses gets a picture, unless the last one is younger
TITLES = {"worst": "The worst", "best": "The best", "grid": "Several"}
_NUMBERED = re.compile(r"env(\d+)")
_COUNTS = ("step", "episode", "num_packed")


class FrameSink(Protocol):
    """What is used of `torchrl_gpu.streaming.StreamServer`."""

    def declare(self, stream: str, title: str | None = None) -> None: ...

    def wanted(self, stream: str = "main") -> bool: ...

    def watchers(self, stream: str | None = None) -> int: ...

    def publish(self, frame: Any, stream: str = "main", meta: dict[str, Any] | None = None) -> None: ...

    def end_episode(self, stream: str = "main", meta: dict[str, Any] | None = None) -> None: ...


class EnvStreams:
    """Draws and publishes what is wanted of some environments, and nothing else.

    `envI` shows environment I. `worst` and `best` show the one whose return is least or greatest among those that are
    at least as many steps into their episode as the average, and stay with it until its episode ends. `grid` shows the
    first few side by side.

    Args:
        sink: The server.
        view: The environments.
        names: Of the streams, as `check_names` wants them.
        width, height: Pixels of a picture; those of a grid share them.
    """

    def __init__(self, sink: FrameSink, view: Viewable, names: Sequence[str], width: int, height: int) -> None:
        self.sink, self.view, self.names = sink, view, tuple(names)
        self.width, self.height = width, height
        check_names(names, view.num_envs)
        self._shown: dict[str, tuple[int, dict[str, Any]]] = {}
        self._versions: dict[str, int] = {}
        self._nobody = dict.fromkeys(names, 0)
        self._watchers = self._nobody
        self._drawn_at = dict.fromkeys(names, -math.inf)
        self._chosen: set[str] = set()
        for name in names:
            sink.declare(name, title(name))

    def warm_up(self) -> None:
        """Draws a first picture of every stream, which takes longest, and leaves it for whoever comes."""
        self.publish()
        self._shown.clear()  # no episode has begun, so that none has ended when the next one is drawn

    def watched(self) -> list[str]:
        """Streams that somebody watches."""
        if not self.sink.watchers():
            self._watchers = self._nobody
            return []
        before, self._watchers = self._watchers, {name: self.sink.watchers(name) for name in self.names}
        old = time.monotonic() - CHOSEN_SPACING
        for name, number in self._watchers.items():
            if number > before[name] and self._drawn_at[name] <= old:
                self._chosen.add(name)
        return [name for name, number in self._watchers.items() if number]

    def chosen(self) -> list[str]:
        """Of the streams that `watched` named last, those that somebody has just chosen, without a fresh picture."""
        return [name for name, number in self._watchers.items() if number and name in self._chosen]

    def publish(self, version: int | None = None, only: Collection[str] | None = None, **extra: Any) -> int:
        """Publishes every stream of which a picture is due, and gives their number.

        Args:
            only: Streams to look at; None for all.
            version: Changes whenever the environments do: what has been drawn at this version already is left out.
                None always draws.
            extra: More figures for the meta data of each picture, besides those of the environment.
        """
        names = self.names if only is None else [name for name in self.names if name in only]
        due = [name for name in names if self.sink.wanted(name) and self._is_new(name, version)]
        if due:
            figures = self._read()
            for name in due:
                self._publish(name, figures, extra)
            self._chosen.difference_update(due)
            self._drawn_at.update(dict.fromkeys(due, time.monotonic()))
        return len(due)

    def _is_new(self, name: str, version: int | None) -> bool:
        if version is None or self._versions.get(name) != version:
            self._versions[name] = -1 if version is None else version
            return True
        return False

    def _publish(self, name: str, figures: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        if name == "grid":
            self._publish_grid(figures, extra)
            return
        before = self._shown.get(name)
        if before is not None and int(figures["episode"][before[0]]) != before[1]["episode"]:
            self.sink.end_episode(name, before[1])
            before = None
        index = before[0] if before else choose(name, figures)
        meta = {"env": index} | _row(figures, index) | extra
        self._shown[name] = index, meta
        self.sink.publish(self.view.pictures([index], self.width, self.height)[0], name, meta)

    def _publish_grid(self, figures: dict[str, np.ndarray], extra: dict[str, Any]) -> None:
        number = min(self.view.num_envs, GRID_SIDE**2)
        side = math.ceil(math.sqrt(number))
        pictures = self.view.pictures(range(number), self.width // side, self.height // side)
        meta: dict[str, Any] = {
            key: float(values[:number].mean()) for key, values in figures.items() if key not in _COUNTS
        }
        meta |= {"env": f"0–{number - 1}", "episode": int(figures["episode"].sum())} | extra
        self.sink.publish(pictures, "grid", meta)

    def _read(self) -> dict[str, np.ndarray]:
        """All figures, (N,) float64 each; the device is read once."""
        import torch  # here, since the command line checks names of streams before it loads anything heavy

        with torch.no_grad():
            found = self.view.figures()
            rows = torch.stack([values.double() for values in found.values()]).cpu().numpy()
        return dict(zip(found, rows, strict=True))


def choose(name: str, figures: dict[str, np.ndarray]) -> int:
    """Number of the environment that a stream shows next, by figures (N,) each."""
    if numbered := _NUMBERED.fullmatch(name):
        return int(numbered[1])
    far = figures["step"] >= figures["step"].mean()
    worse_is_less = figures["return"] if name == "worst" else -figures["return"]
    return int(np.where(far, worse_is_less, np.inf).argmin())


def title(name: str) -> str:
    """What viewers read of a stream."""
    return TITLES.get(name) or f"Environment {name.removeprefix('env')}"


def check_names(names: Sequence[str], num_envs: int | None = None) -> None:
    """ValueError unless every name is that of a stream, and of an environment that there is."""
    if not names or len(set(names)) != len(names):
        raise ValueError(f"streams: want one name or more, each once; got {list(names)}")
    for name in names:
        numbered = _NUMBERED.fullmatch(name)
        if not numbered and name not in TITLES:
            raise ValueError(f"streams: want env0, env1, …, worst, best or grid; got {name!r}")
        if numbered and num_envs is not None and int(numbered[1]) >= num_envs:
            raise ValueError(f"streams: want environments below {num_envs}; got {name!r}")


def _row(figures: dict[str, np.ndarray], index: int) -> dict[str, Any]:
    row = {key: int(v[index]) if key in _COUNTS else float(v[index]) for key, v in figures.items()}
    return {"episode_step": row.pop("step")} | row  # `step` is left to the program: of the training, or of the show
