"""`StreamServer`: shows a program's frames to browsers."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from torchrl_gpu.streaming.broadcast.frames import Meta, Scalar, with_facts
from torchrl_gpu.streaming.broadcast.policy_view import SEEN, PolicyView
from torchrl_gpu.streaming.broadcast.protocol import Command
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.images import Frame, Range
from torchrl_gpu.streaming.web.settings import ServerSettings

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline
    from torchrl_gpu.streaming.web.service import AddRoutes, Service

# Addresses that mean every interface, and are no address to open.
_ANYWHERE = ("0.0.0.0", "::")


class StreamServer:
    """Shows pictures to browsers, next to a program that never waits for them.

    Opening `url` shows the newest frame at once. Without viewers one frame a second is copied and kept for the next
    viewer; the others cost microseconds, and none is encoded. A viewer gets the newest picture whenever it has
    painted the one before the last: a slow one sees fewer pictures, not older ones, and costs the others nothing.
    Before `start` and after `stop` nothing happens.

    Args:
        host: Address to listen at; beyond this machine ("0.0.0.0") a token of at least 16 characters is needed.
        port: TCP port; 0 for any that is free.
        token: Gives control. None: everyone on this machine has it.
        view_token: Lets watch, but not command.
        max_clients: Viewers at once; more are sent away.
        tls: Files of a certificate chain and its key, PEM.
        jpeg_quality: 1 to 100.
        fps: The largest rate of a stream, frames per second.
        instant_replay_s: How far instant replay reaches back.
        heartbeat_s: Time between signs of life; viewers without one are dropped within two.
        port_tries: Ports from `port` on that are tried where one is in use.
        allowed_origins: Pages of other hosts that may connect or show the page in a frame: "https://lab.example".
        pipeline: A `GpuFramePipeline` that makes the JPEGs; None for OpenCV, and one of its own for frames on a GPU.
        add_routes: Adds routes of one's own to the aiohttp application, behind the same token and limits.
        max_body_bytes: Largest body of a request.

    Raises:
        ValueError: An argument is invalid, or there is no token for a host beyond this machine.
        ModuleNotFoundError: The extra `stream` is not installed.
    """

    def __init__(
        self,
        host: str = ServerSettings.host,
        port: int = ServerSettings.port,
        token: str | None = ServerSettings.token,
        view_token: str | None = ServerSettings.view_token,
        *,
        max_clients: int = ServerSettings.max_clients,
        tls: tuple[str, str] | None = ServerSettings.tls,
        jpeg_quality: int = ServerSettings.jpeg_quality,
        fps: float = ServerSettings.fps,
        instant_replay_s: float = ServerSettings.instant_replay_s,
        heartbeat_s: float = ServerSettings.heartbeat_s,
        port_tries: int = ServerSettings.port_tries,
        allowed_origins: Sequence[str] = ServerSettings.allowed_origins,
        pipeline: GpuFramePipeline | None = None,
        add_routes: AddRoutes | None = None,
        max_body_bytes: int = ServerSettings.max_body_bytes,
    ) -> None:
        self.settings = ServerSettings(
            host=host,
            port=port,
            token=token,
            view_token=view_token,
            max_clients=max_clients,
            tls=tls,
            jpeg_quality=jpeg_quality,
            fps=fps,
            instant_replay_s=instant_replay_s,
            heartbeat_s=heartbeat_s,
            port_tries=port_tries,
            allowed_origins=allowed_origins,
            max_body_bytes=max_body_bytes,
        )
        for module in ("aiohttp", "cv2", "av", "prometheus_client"):
            load(module)
        self._pipeline = pipeline
        self._add_routes = add_routes
        self.service: Service | None = None
        # A forked process has a copy of this object, but not the thread that serves.
        self._owner = os.getpid()

    def start(self) -> StreamServer:
        """Listen and serve.

        A server that runs goes on.

        Raises:
            ValueError: No port that may be tried is free, or the host or the certificate cannot be used.
        """
        if self.service is None:
            self._owner = os.getpid()
            # Here, as it brings aiohttp.
            from torchrl_gpu.streaming.web.service import Service

            self.service = Service(self.settings, self._pipeline, self._add_routes)
            atexit.register(self._stop_quietly)
        return self

    def stop(self) -> None:
        """Close every connection and give the port back.

        Raises:
            RuntimeError: Server or encoder failed while it ran.
        """
        service, self.service = self.service, None
        if service is None or os.getpid() != self._owner:
            return
        atexit.unregister(self._stop_quietly)
        error = service.stop()
        if error is not None:
            raise RuntimeError(f"StreamServer: it failed while it ran: {type(error).__name__}: {error}") from error

    def __enter__(self) -> StreamServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        else:
            # The program's own error is the one to be seen.
            self._stop_quietly()

    @property
    def port(self) -> int:
        """The port that it listens at.

        Before `start`, the one that was asked for.
        """
        return self.settings.port if self.service is None else self.service.port

    @property
    def url(self) -> str:
        """Address to open in a browser.

        It carries the token: it is for a terminal, not for a log that others read.
        """
        scheme = "https" if self.settings.tls else "http"
        host = self.settings.host
        if host in _ANYWHERE:
            host = socket.gethostname()
        # An address of IPv6 stands in brackets, as a port follows it.
        host = f"[{host}]" if ":" in host else host
        token = self.settings.token
        query = f"?token={quote(token, safe='')}" if token else ""
        return f"{scheme}://{host}:{self.port}/{query}"

    # -- pictures ------------------------------------------------------------------------------------------------------

    def publish(
        self, frame: Frame, stream: str = "main", meta: Meta = None, *, bgr: bool = False, depth_range: Range = None
    ) -> None:
        """Show a frame to the viewers, and to those who come before the next one.

        Never waits for them.

        Args:
            frame: NumPy or torch, on any device, in any strides: uint8 H×W×3 (RGB), H×W×4 (RGBA, over white),
                H×W×1 or H×W (gray), or float32 or float16 H×W×1 or H×W (depth in metres, shown in colours, and gray
                where it is NaN or infinite); or a batch of them N×H×W×C, which is tiled into a grid. Three axes are
                always H×W×C. It may be overwritten as soon as this returns.
            stream: Where it belongs.
            meta: JSON scalars that are shown with it, such as step, episode, return, utilization, policy_version. A
                frame of depth adds `depth_near_m` and `depth_far_m`, which the first and the last colour stand for.
            bgr: Whether the channels are blue, green, red (and alpha).
            depth_range: Those two, metres; None takes the least and the greatest of the frame.

        Raises:
            ValueError: An argument is invalid.
        """
        if self.service is not None:
            self.service.hub.publish(frame, stream, meta, bgr=bgr, depth_range=depth_range)

    def show_policy(self, view: PolicyView, stream: str = "main", meta: Meta = None, *, bgr: bool = False) -> None:
        """Show a policy's input and action side by side.

        Call it for every decision.

            server.show_policy(PolicyView(frame, seen, action, inference_ms=4.2, message_age_s=0.03, stale=False))

        The camera's frame goes to `stream`, and what the policy saw of it to `stream:seen`; both carry the numbers, so
        that a held or replayed picture comes with those of its moment. Without a frame, the numbers are shown with the
        picture of the page. As `publish`, it never waits, and while no frame is wanted it takes microseconds; more than
        `fps` views a second are left out.

        Args:
            view: Input, action and timing.
            stream: Of the camera; a name without a colon.
            meta: More scalars that are shown with the picture.
            bgr: Whether the channels of both frames are blue, green, red.
        """
        if view.frame is None and view.seen is None:
            self.state(**view.facts())
            return
        for frame, name in ((view.frame, stream), (view.seen, f"{stream}:{SEEN}")):
            if frame is not None and self.wanted(name):
                self.publish(frame, name, with_facts(meta, view.facts()), bgr=bgr)

    def wanted(self, stream: str = "main") -> bool:
        """Return whether a frame of this stream is wanted now.

        Ask before rendering. Takes about a microsecond.

        That is so while a viewer waits for one, and once a second while none does, so that the next viewer sees the
        newest frame at once.
        """
        return self.service is not None and self.service.hub.wanted(stream)

    def wanted_streams(self) -> list[str]:
        """Return the streams of which a frame is wanted now, members of families included."""
        return [] if self.service is None else self.service.hub.wanted_streams()

    def watchers(self, stream: str | None = None) -> int:
        """Return the number of viewers of a stream, or of all."""
        return 0 if self.service is None else self.service.hub.watchers(stream)

    def declare(self, stream: str, title: str | None = None) -> None:
        """Name a stream before its first frame, so that viewers can choose it.

        Args:
            stream: 1 to 64 characters. There are at most 64 streams.
            title: What viewers read; None for the name.
        """
        if self.service is not None:
            self.service.hub.declare(stream, title)

    def declare_family(self, name: str, count: int, title: str | None = None) -> None:
        """Let viewers choose any of many streams.

        `declare_family("env", 1024)` offers env0 to env1023. A member exists while it has viewers, and a little
        longer; `wanted_streams` then names it. There are at most 64 streams at a time, and 64 families. Frames
        published to a member that no viewer has asked for are ignored.

        Args:
            name: Letters and underscores; or NAME:OVERLAY, whose members are NAME0:OVERLAY, NAME1:OVERLAY, …
            count: How many members there are, at most 10⁹.
            title: What viewers read; a member's has its number behind it, before a colon if there is one.
        """
        if self.service is not None:
            self.service.hub.declare_family(name, count, title)

    def end_episode(self, stream: str = "main", meta: Meta = None) -> None:
        """Mark the end of an episode, which instant replay shows.

        `meta` joins that of its last picture.
        """
        if self.service is not None:
            self.service.hub.end_episode(stream, meta)

    # -- commands, state and curves ------------------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """Return the commands of viewers with control since the last call.

        The oldest come first; at most 256 are kept.
        """
        return [] if self.service is None else self.service.hub.take_commands()

    def state(self, **values: Scalar | Sequence[Scalar]) -> None:
        """Show values with the picture.

        Those of earlier calls stay. Lists are of JSON scalars.
        """
        if self.service is not None:
            self.service.hub.set_state(values)

    def log(self, step: int, /, **scalars: float) -> None:
        """Add a point to each named curve, which every viewer sees from its beginning.

        There are at most 200 curves. Each keeps at most 1,000 points: of a longer one only every second value, then
        every fourth, and so on, and always the newest. What is not finite is left out. A step that is not beyond the
        last one of a curve takes back what came from there on.

        Args:
            step: Of the run, an integer from 0 to 2⁵³.
            scalars: Numbers by the names of their curves, of 1 to 64 characters: `log(9, **{"train/loss": 0.5})`.
                Curves whose names begin alike, up to a slash, are shown together.
        """
        if self.service is not None:
            self.service.hub.curves.log(step, scalars)

    def _stop_quietly(self) -> None:
        with contextlib.suppress(RuntimeError):
            self.stop()
