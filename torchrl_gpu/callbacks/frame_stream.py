"""`FrameStream`: live view of a run in the browser."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_warn

from torchrl_gpu.callbacks.closing import ClosingCallback
from torchrl_gpu.callbacks.env_streams import EnvStreams, check_names, overlays_of
from torchrl_gpu.callbacks.films import Films
from torchrl_gpu.callbacks.logger_guard import outlives
from torchrl_gpu.envs.viewable import viewable
from torchrl_gpu.evaluation.player import decisions_of
from torchrl_gpu.streaming.web.settings import ServerSettings
from torchrl_gpu.system import arguments
from torchrl_gpu.system.sections import in_section

if TYPE_CHECKING:
    from torchrl_gpu.streaming.server import StreamServer
    from torchrl_gpu.training.run import EnvRun

PORT_TRIES = 50
# Pictures without a viewer, which the next one sees at once, get this share of `most_share`, at least so many seconds
# apart.
UNWATCHED_SHARE = 0.1
UNWATCHED_S = 1.0
FILM_FPS = 4.0
# Limits of `StreamServer.log`.
MOST_CURVES = 200
LONGEST_NAME = 64
# Values that Lightning adds to what a run logs.
_LEFT_OUT = ("epoch", "hp_metric", "step")


class FrameStream(ClosingCallback):
    """Serves pictures of the environments of a run, and prints the address to open.

    Pictures show the environments after a training step, with the updates made as `step` and `policy_version`, and
    `episode`, `episode_step`, `return` and `utilization` of the episode; what the run logs is shown as curves. Drawing
    keeps to its share of the time, but for one picture of a stream that a viewer has just chosen and one every five
    seconds; without viewers to a tenth of that share. A seed gives the same run with and without this callback.

    The first process serves, in any module with an `env` that `torchrl_gpu.envs.viewable` takes. The cost of the hooks
    is logged as `stream/hook_us` and `stream/share`, and printed at the end.

    Args:
        port: The next free one is taken where it is not; 0 takes any.
        host: Address to serve on. Off loopback a token is needed.
        token: Lets viewers in, and control.
        view_token: Lets viewers in, to watch only.
        streams: What is offered first: "env0", "env1", …, "worst", "best", "grid", and overlays of them such as
            "worst:mask", "env0:action", "env0:q"; see `EnvStreams`. Viewers may ask for any other environment, too,
            and for every overlay that environment and policy have.
        fps: Most pictures a second.
        width, height: Pixels.
        most_share: Of the time that drawing may take, in (0, 1]; 1 draws whenever a picture is due.
        record: Folder for films; None writes none.
        record_every_n_episodes: Episodes, over all environments, between films; see `Films`.
        tls: Certificate and key file, to serve https.
        max_clients: Viewers at a time.
        allowed_origins: Pages that may show this one in a frame, or connect: "https://lab.example".
        log_every_n_steps: Training steps between two readings of the cost.
        show_policy: Whether each picture tells what the greedy policy would do next, and how long it took to decide,
            which it does once for each picture; the time counts as drawing.
    """

    def __init__(
        self,
        port: int = ServerSettings.port,
        host: str = ServerSettings.host,
        token: str | None = ServerSettings.token,
        streams: Sequence[str] = ("env0", "worst", "best", "grid"),
        *,
        view_token: str | None = ServerSettings.view_token,
        fps: float = ServerSettings.fps,
        width: int = 640,
        height: int = 480,
        most_share: float = 0.02,
        record: str | None = None,
        record_every_n_episodes: int = 1000,
        tls: tuple[str, str] | None = ServerSettings.tls,
        max_clients: int = ServerSettings.max_clients,
        allowed_origins: Sequence[str] = ServerSettings.allowed_origins,
        log_every_n_steps: int = 100,
        show_policy: bool = False,
    ) -> None:
        check_names(streams)
        for name, pixels in (("width", width), ("height", height)):
            arguments.whole("FrameStream", name, pixels, 16, 8192)
        arguments.number("FrameStream", "most_share", most_share, 0, 1, above=0)
        arguments.whole("FrameStream", "log_every_n_steps", log_every_n_steps, 1)
        if record is None:
            arguments.check_effect("FrameStream", "record", record_every_n_episodes=(record_every_n_episodes, 1000))
        self.streams = tuple(streams)
        self.width = width
        self.height = height
        self.most_share = most_share
        self.log_every_n_steps = log_every_n_steps
        self.show_policy = show_policy
        self.films: Films | None = None
        if record is not None:
            self.films = Films(record, record_every_n_episodes, FILM_FPS, width, height)
        self._settings = ServerSettings(
            host,
            port,
            token,
            view_token,
            max_clients=max_clients,
            tls=tls,
            fps=fps,
            port_tries=PORT_TRIES,
            allowed_origins=allowed_origins,
        )
        self.server: StreamServer | None = None
        # The cost of the last run, see `HookTimer.cost`.
        self.cost: dict[str, float] = {}
        self._curves: CurveLogger | None = None

    @property
    def url(self) -> str | None:
        """Address of the page with its token, or None while nothing is served."""
        return None if self.server is None else self.server.url

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check streams and films before anything is trained."""
        if stage != "fit":
            return
        env = getattr(pl_module, "env", None)
        view = viewable(env)
        policy = {"has_policy": hasattr(pl_module, "policy_for"), "has_values": getattr(pl_module, "has_values", False)}
        check_names(self.streams, view.num_envs, overlays_of(view, **policy))
        can_be_filmed = hasattr(pl_module, "policy_for") and hasattr(env, "like")
        if self.films is not None and not can_be_filmed:
            raise ValueError(
                "FrameStream: record films a module with `policy_for` in an environment with `like`, which"
                f" {type(pl_module).__name__} and {type(env).__name__} are not. Leave record out"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to serve.

        The module has moved its environment to its device by now.
        """
        if not trainer.is_global_zero:
            return
        self._view = viewable(pl_module.env)
        if self.films is not None:
            self.films.begin()
        self.server = make_server(self._settings)
        self.server.start()
        decide = decisions_of(pl_module)
        policy = str(pl_module.learner_name) if self.show_policy and decide is not None else None
        self._streams = EnvStreams(self.server, self._view, self.streams, self.width, self.height, decide, policy)
        # Nobody waits yet, and no share is charged.
        self._streams.warm_up()
        self._budget = TimeBudget(self.most_share)
        self._unwatched = TimeBudget(UNWATCHED_SHARE * self.most_share, burst_s=0.05, silence_s=math.inf)
        self._unwatched_at = time.perf_counter() + UNWATCHED_S
        self.server.state(run=type(pl_module).__name__)
        if trainer.loggers:
            self._curves = CurveLogger(trainer, self.server)
            trainer.loggers = [*trainer.loggers, self._curves]
        print(f"FrameStream: watch at {self.server.url}", flush=True)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = time.perf_counter()
        self._timer = HookTimer(now)
        self._whole = HookTimer(now)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.server is not None:
            cost = self._whole.cost(time.perf_counter())
            self.cost = cost
            per_hook = f"{cost['hook_us']:.1f} µs a hook"
            share = f"{cost['share']:.2%} of the time"
            print(f"FrameStream: {per_hook}, {share}", flush=True)

    def close(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.loggers = [each for each in trainer.loggers if each is not self._curves]
        server = self.server
        self.server = None
        try:
            if server is not None:
                server.stop()
        except RuntimeError as error:
            # It failed on its way. What was trained is as good as without it.
            rank_zero_warn(str(error))

    @in_section("viewers")
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        """Render streams that have viewers, and the others at a low rate."""
        if self.server is None:
            return
        begin = time.perf_counter()
        watched = self._streams.watched()
        if watched:
            names = watched if self._budget.allows(begin) else self._streams.chosen()
            if names:
                self._draw(trainer, begin, self._budget, names)
        elif begin >= self._unwatched_at:
            self._unwatched_at = begin + UNWATCHED_S
            if self._unwatched.allows(begin):
                self._draw(trainer, begin, self._unwatched, self.streams)
        if self.films is not None:
            begun = self.films.due(self._view)
            if begun is not None:
                with outlives("FrameStream: film"):
                    self.films.write(cast("EnvRun", pl_module), begun)
        if self._timer.calls >= self.log_every_n_steps:
            self._log(trainer)
        seconds = time.perf_counter() - begin
        self._timer.add(seconds)
        self._whole.add(seconds)

    def _draw(self, trainer: Trainer, begin: float, budget: TimeBudget, names: Sequence[str]) -> None:
        self._streams.publish(only=names, step=trainer.global_step, policy_version=trainer.global_step)
        budget.spend(time.perf_counter() - begin)

    def _log(self, trainer: Trainer) -> None:
        """Log the cost of the hooks straight to the loggers.

        `pl_module.log` takes longer than all the hooks that it would report.
        """
        now = time.perf_counter()
        cost = self._timer.cost(now)
        self._timer = HookTimer(now)
        for logger in trainer.loggers:
            logger.log_metrics({f"stream/{name}": value for name, value in cost.items()}, trainer.global_step)


def make_server(settings: ServerSettings) -> StreamServer:
    """Build a server that is not started."""
    # This loads aiohttp, which a run without a stream may not have.
    from torchrl_gpu.streaming.server import StreamServer

    return StreamServer(**vars(settings))


class CurveLogger(Logger):
    """Logger that forwards the values given to the run's loggers to a stream server.

    Lightning has read the scalars from the device for the other loggers by then, so that nothing more is read. The step
    is the number of updates made, as in the meta data of the pictures.
    """

    def __init__(self, trainer: Trainer, server: StreamServer) -> None:
        super().__init__()
        self._trainer = trainer
        self._server = server
        self._first = trainer.loggers[0]
        self._names: dict[str, str] = {}
        self._has_warned = False

    @property
    def name(self) -> str | None:
        """Name of the run's first logger, so that progress bars show one."""
        return self._first.name

    @property
    def version(self) -> int | str | None:
        return self._first.version

    def log_hyperparams(self, params: object, *args: object, **kwargs: object) -> None:
        """Ignore hyperparameters."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Pass on the scalars, true as 1."""
        numbers = {name: _number(value) for name, value in metrics.items()}
        scalars = {self._curve(name): value for name, value in numbers.items() if value is not None}
        scalars.pop("", None)
        if scalars:
            self._server.log(self._trainer.global_step, **scalars)

    def _curve(self, name: str) -> str:
        if name in _LEFT_OUT:
            return ""
        if name not in self._names:
            if len(self._names) >= MOST_CURVES:
                if not self._has_warned:
                    self._has_warned = True
                    rank_zero_warn(f"FrameStream: the page shows {MOST_CURVES} curves; {name!r} is not among them")
                return ""
            self._names[name] = name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]
        return self._names[name]


def _number(value: object) -> float | None:
    is_scalar = getattr(value, "shape", None) == ()
    plain = value.item() if is_scalar and hasattr(value, "item") else value
    if isinstance(plain, bool):
        return int(plain)
    if isinstance(plain, int | float):
        return plain
    return None


class TimeBudget:
    """Budget of wall-clock time: a share of it, saved up to a burst.

    Args:
        share: Of the time, in (0, 1].
        burst_s: Seconds that can be saved up; there from the start.
        silence_s: Seconds after which something may be spent again, however much was spent at once: what overdraws by
            more than so many seconds bring back is forgiven, for it would keep everything else waiting.
    """

    def __init__(self, share: float, burst_s: float = 0.25, silence_s: float = 5.0) -> None:
        self.share = share
        self.burst_s = burst_s
        self.silence_s = silence_s
        self._left_s = burst_s
        self._at: float | None = None

    def allows(self, now: float) -> bool:
        """Return whether any time is left at `now`, in seconds that never run back."""
        if self._at is not None:
            self._left_s = min(self.burst_s, self._left_s + self.share * (now - self._at))
        self._at = now
        return self._left_s > 0.0

    def spend(self, seconds: float) -> None:
        """Deduct time that was spent.

        It may be more than is left, and then takes its time to come back.
        """
        most_overdrawn_s = self.share * self.silence_s
        self._left_s = max(self._left_s - seconds, -most_overdrawn_s)


class HookTimer:
    """Timer of the hooks of a callback since `now`, seconds."""

    def __init__(self, now: float) -> None:
        self.calls = 0
        self.seconds = 0.0
        self.begun = now

    def add(self, seconds: float) -> None:
        """Count a hook."""
        self.calls += 1
        self.seconds += seconds

    def cost(self, now: float) -> dict[str, float]:
        """Return `hook_us` (mean of a hook) and `share` (of the time, 0 to 1)."""
        hook_us = 1e6 * self.seconds / max(self.calls, 1)
        share = self.seconds / max(now - self.begun, 1e-9)
        return {"hook_us": hook_us, "share": share}
