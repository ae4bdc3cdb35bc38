"""Streams of the environments of a run, and overlays of them.

Any environment has a stream by its number. Others show the worst, the best, and a grid of several.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import numpy as np

from torchrl_gpu.streaming.broadcast.frames import with_facts
from torchrl_gpu.streaming.broadcast.policy_view import PolicyView
from torchrl_gpu.streaming.codecs.images import Frame

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from torchrl_gpu.envs.viewable import Decision, Overlaid, Overlay, Viewable
    from torchrl_gpu.evaluation.player import Decisions
    from torchrl_gpu.streaming.server import StreamServer

# Pictures along each side of a grid, at most.
GRID_SIDE = 3
# Seconds: a stream that a viewer chooses gets a picture, unless the last one is younger.
CHOSEN_SPACING = 1.0
TITLES = {"worst": "The worst", "best": "The best", "grid": "Several"}
# Streams that are offered with their overlays. Overlays of the others are there on demand.
MAX_DECLARED = 40
# The groups are the number of an environment, and an overlay.
_NAME = re.compile(r"(?:env(0|[1-9][0-9]{0,8})|worst|best)(?::([a-z][a-z_]{0,15}))?|grid")
_COUNTS = ("step", "episode", "num_packed")
# Streams that are remembered, of those drawn last.
_MAX_REMEMBERED = 256


_Key = TypeVar("_Key", bound=str | int)
_Value = TypeVar("_Value")


class _Observed(Protocol):
    """A view that also gives what a policy is shown."""

    def observation(self, index: int) -> TensorDictBase: ...


class EnvStreams:
    """Renders and publishes the streams of some environments that somebody wants.

    `envI` shows environment I. `worst` and `best` show the one whose return is least or greatest among those that are
    at least as many steps into their episode as the average, until its episode ends; `grid` the first few side by side.
    `BASE:OVERLAY` shows an overlay of BASE, as far as environment and policy have it
    (`torchrl_gpu.envs.viewable.Overlaid`).

    Args:
        sink: The server.
        view: The environments.
        names: Of the streams, as `check_names` wants them.
        width, height: Pixels of a picture; those of a grid share them.
        decide: Asks the policy; None where there is none.
        policy: Its name: every picture of one environment then tells, as a `PolicyView` does, what the policy does
            next and how long it took to decide, which it does once for each picture. None tells nothing.
    """

    def __init__(
        self,
        sink: StreamServer,
        view: Viewable,
        names: Sequence[str],
        width: int,
        height: int,
        decide: Decisions | None = None,
        policy: str | None = None,
    ) -> None:
        self.policy = policy if decide is not None and hasattr(view, "observation") else None
        self.sink = sink
        self.view = view
        self.names = tuple(names)
        self.width = width
        self.height = height
        self.decide = decide
        has_values = decide is not None and decide.has_values
        self.overlays = overlays_of(view, has_policy=decide is not None, has_values=has_values)
        check_names(names, view.num_envs, self.overlays)
        # Environment and episode that "worst" and "best" show.
        self._followed: dict[str, tuple[int, int]] = {}
        self.shown_worlds: dict[str, tuple[int, dict[str, object]]] = {}
        self.versions: dict[str, int] = {}
        self._inference_ms: dict[int, float] = {}
        self._watchers: dict[str, int] = {}
        self._drawn_at: dict[str, float] = {}
        self._chosen: set[str] = set()
        self._declare()

    def warm_up(self) -> None:
        """Draw a first picture of every named stream, which takes longest.

        The first viewer sees it at once.
        """
        self.publish(only=self.names)
        # No episode has begun, so that none has ended when the next picture is drawn.
        self.shown_worlds.clear()
        self._followed.clear()

    def watched(self) -> list[str]:
        """List the streams of this object that have viewers."""
        before = self._watchers
        self._watchers = {}
        if not self.sink.watchers():
            return []
        old = time.monotonic() - CHOSEN_SPACING
        wanted = filter(self._serves, self.sink.wanted_streams())
        for name in dict.fromkeys((*self.names, *before, *wanted)):
            number = self.sink.watchers(name)
            if number:
                self._watchers[name] = number
                if number > before.get(name, 0) and self._drawn_at.get(name, -math.inf) <= old:
                    self._chosen.add(name)
        self._chosen.intersection_update(self._watchers)
        return list(self._watchers)

    def chosen(self) -> list[str]:
        """List the streams that a viewer has just chosen and that have no fresh picture.

        They are among those that `watched` named last.
        """
        return [name for name in self._watchers if name in self._chosen]

    def publish(self, version: int | None = None, only: Collection[str] | None = None, **extra: object) -> int:
        """Publish every stream of which a picture is due, and return their number.

        With `only`, other streams are left out. `version` changes whenever the environments do: what has been drawn at
        this version already is left out; None always draws. `extra` joins the metrics of the environment as metadata of
        each picture.
        """
        wanted = self.sink.wanted_streams()
        due = [name for name in wanted if self._is_due(name, version, only)]
        if due:
            metrics = self._read()
            decisions: dict[int, Decision] = {}
            for name in due:
                self._publish(name, metrics, decisions, extra)
                _store(self._drawn_at, name, time.monotonic())
            self._chosen.difference_update(due)
        return len(due)

    def _is_due(self, name: str, version: int | None, only: Collection[str] | None) -> bool:
        if only is not None and name not in only:
            return False
        if not self._serves(name):
            return False
        # Overlays and streams that nobody named are drawn only while somebody watches.
        if name not in self.names and self.sink.watchers(name) == 0:
            return False
        return self._is_new(name, version)

    def _declare(self) -> None:
        declared = dict.fromkeys(self.names)
        of_one = [name for name in self.names if name != "grid"]
        bases = [name for name in of_one if ":" not in name]
        for base in bases:
            more = [f"{base}:{overlay}" for overlay in self.overlays]
            if len(declared | dict.fromkeys(more)) <= MAX_DECLARED:
                declared |= dict.fromkeys(more)
        for name in declared:
            self.sink.declare(name, title(name, self.overlays))
        if self.view.num_envs > 1:
            self.sink.declare_family("env", self.view.num_envs, "Environment")
            for overlay in self.overlays:
                words = f"Environment: {self.overlays[overlay].title}"
                self.sink.declare_family(f"env:{overlay}", self.view.num_envs, words)

    def _serves(self, name: str) -> bool:
        """Return whether a stream of the server, which may have others, is one of these."""
        found = _NAME.fullmatch(name)
        if found is None:
            return False
        if int(found[1] or 0) >= self.view.num_envs:
            return False
        return found[2] is None or found[2] in self.overlays

    def _is_new(self, name: str, version: int | None) -> bool:
        if version is None or self.versions.get(name) != version:
            _store(self.versions, name, -1 if version is None else version)
            return True
        return False

    def _publish(
        self, name: str, metrics: dict[str, np.ndarray], decisions: dict[int, Decision], extra: dict[str, object]
    ) -> None:
        if name == "grid":
            self._publish_grid(metrics, extra)
            return
        before = self.shown_worlds.get(name)
        if before is not None and int(metrics["episode"][before[0]]) != before[1]["episode"]:
            self.sink.end_episode(name, before[1])
        base, _, overlay = name.partition(":")
        index = self._index(base, metrics)
        meta: dict[str, object] = {"env": index, **_row(metrics, index), **extra}
        _store(self.shown_worlds, name, (index, meta))
        facts = {}
        if self.policy is not None:
            action = self._decide(index, decisions).action
            inference_ms = self._inference_ms[index]
            view = PolicyView(action=action, inference_ms=inference_ms, policy=self.policy)
            facts = view.facts()
        picture = self._picture(index, overlay, decisions)
        self.sink.publish(picture, name, with_facts(meta, facts))

    # The worst environment of each moment would be another one at every picture, and nobody could follow an episode. So
    # a choice stays until its episode ends.
    def _index(self, base: str, metrics: dict[str, np.ndarray]) -> int:
        """Return the environment that a stream and its overlays show."""
        index, episode = self._followed.get(base, (0, -1))
        if int(metrics["episode"][index]) != episode:
            index = choose(base, metrics)
            if base in TITLES:
                episode = int(metrics["episode"][index])
                self._followed[base] = index, episode
        return index

    def _picture(self, index: int, overlay: str, decisions: dict[int, Decision]) -> Frame:
        if not overlay:
            return self.view.pictures([index], self.width, self.height)[0]
        # Overlays are offered of an `Overlaid` alone.
        view = cast("Overlaid", self.view)
        if self.overlays[overlay].needs != "env":
            self._decide(index, decisions)
        return view.overlay(overlay, index, self.width, self.height, decisions.get(index))

    def _decide(self, index: int, decisions: dict[int, Decision]) -> Decision:
        """Ask the policy for its decision, once for all that is shown of an environment."""
        if index not in decisions:
            assert self.decide is not None
            observation = cast("_Observed", self.view).observation(index)
            begin = time.perf_counter()
            decision = self.decide(observation)
            # The copy waits until the action is there, so that the time is that of the decision.
            decisions[index] = decision._replace(action=decision.action.cpu())
            _store(self._inference_ms, index, 1e3 * (time.perf_counter() - begin))
        return decisions[index]

    def _publish_grid(self, metrics: dict[str, np.ndarray], extra: dict[str, object]) -> None:
        number = min(self.view.num_envs, GRID_SIDE**2)
        side = math.ceil(math.sqrt(number))
        pictures = self.view.pictures(range(number), self.width // side, self.height // side)
        meta: dict[str, object] = {
            key: float(values[:number].mean()) for key, values in metrics.items() if key not in _COUNTS
        }
        meta |= {"env": f"0–{number - 1}", "episode": int(metrics["episode"].sum())} | extra
        self.sink.publish(pictures, "grid", meta)

    def _read(self) -> dict[str, np.ndarray]:
        """Return all metrics, (N,) float64 each, with one read of the device."""
        # The command line checks names of streams before it loads anything heavy such as torch.
        import torch

        with torch.no_grad():
            found = self.view.metrics()
            columns = [values.double() for values in found.values()]
            rows = torch.stack(columns).cpu().numpy()
        return dict(zip(found, rows, strict=True))


def overlays_of(view: Viewable, *, has_policy: bool, has_values: bool) -> dict[str, Overlay]:
    """Return the overlays of an environment whose needs of policy and values are met."""
    # This module is heavy, as torch in `_read`.
    from torchrl_gpu.envs.viewable import Overlaid

    there = {"env"}
    if has_policy:
        there.add("action")
    if has_policy and has_values:
        there.add("values")
    overlays = view.overlays if isinstance(view, Overlaid) else {}
    return {name: overlay for name, overlay in overlays.items() if overlay.needs in there}


def choose(name: str, metrics: dict[str, np.ndarray]) -> int:
    """Return the environment that a stream shows next, by metrics (N,) each."""
    if name.startswith("env"):
        return int(name.removeprefix("env"))
    # Among all, the worst would always be an episode that has just begun.
    far = metrics["step"] >= metrics["step"].mean()
    worse_is_less = metrics["return"] if name == "worst" else -metrics["return"]
    return int(np.where(far, worse_is_less, np.inf).argmin())


def title(name: str, overlays: Mapping[str, Overlay] | None = None) -> str:
    """Return the display name of a stream on the page."""
    base, _, overlay = name.partition(":")
    of = TITLES.get(base) or f"Environment {base.removeprefix('env')}"
    if not overlay:
        return of
    words = overlays[overlay].title if overlays is not None else overlay
    return f"{of}: {words}"


def check_names(
    names: Sequence[str], num_envs: int | None = None, overlays: Mapping[str, Overlay] | None = None
) -> None:
    """Check that every name belongs to an environment and an overlay that exist.

    ValueError otherwise.
    """
    if not names or len(set(names)) != len(names):
        raise ValueError(f"streams must be one name or more, each once, not {list(names)}")
    for name in names:
        found = _NAME.fullmatch(str(name))
        if found is None and ":" in str(name):
            raise ValueError(f"streams: {name!r} is no overlay of env0, env1, …, worst or best, as env0:mask is")
        if found is None:
            raise ValueError(f"streams: {name!r} must be one of env0, env1, …, worst, best, grid")
        if num_envs is not None and int(found[1] or 0) >= num_envs:
            raise ValueError(f"streams: {name!r} must be an environment below {num_envs}")
        overlay = found[2]
        if overlay is not None and overlays is not None and overlay not in overlays:
            there = ", ".join(overlays) or "(none)"
            raise ValueError(f"streams: {name!r} is no overlay that environment and policy have: {there}")


def _store(found: dict[_Key, _Value], name: _Key, value: _Value) -> None:
    """Store a value of a stream or an environment.

    There may be millions of them, so that only the newest stay.
    """
    found.pop(name, None)
    found[name] = value
    if len(found) > _MAX_REMEMBERED:
        found.pop(next(iter(found)))


def _row(metrics: dict[str, np.ndarray], index: int) -> dict[str, float]:
    row: dict[str, float] = {key: int(v[index]) if key in _COUNTS else float(v[index]) for key, v in metrics.items()}
    # The name `step` is left to the program, for the step of the training or of the show.
    return {"episode_step": row.pop("step")} | row
