"""The robot's camera, shown to browsers and published as JPEGs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from torchrl_gpu.streaming.broadcast import policy_view
from torchrl_gpu.streaming.broadcast.frames import MAX_META
from torchrl_gpu.streaming.broadcast.policy_view import PolicyView
from torchrl_gpu.streaming.broadcast.rate_limits import FrameSchedule
from torchrl_gpu.streaming.codecs.images import Frame
from torchrl_gpu.streaming.ros2.inputs import NewestMessages, Statistics, pace_of
from torchrl_gpu.streaming.server import StreamServer

CAMERA = "camera"
SEEN = f"{CAMERA}:{policy_view.SEEN}"
NAME = "image"


class CameraOut:
    """A thread that shows the newest image, at most `rate` times a second.

    A server shows the stream "camera" and, where the policy takes images, "camera:seen"; `facts` gives the view of the
    policy, without the camera's frame, and the state of the page. `send` publishes a frame with its stamp, `frame_id`
    and whether blue comes first. Either may be None.
    """

    def __init__(
        self,
        *,
        read: Callable[[bytes], Any],
        send: Callable[[Frame, int, str, bool], None] | None,
        server: StreamServer | None,
        facts: Callable[[], tuple[PolicyView, dict[str, Any]]],
        rate: float,
        statistics: Statistics,
    ) -> None:
        self._read, self._send, self._server, self._facts = read, send, server, facts
        self._statistics = statistics
        self._pace, self._rendered = pace_of(rate), FrameSchedule(1 / rate)
        self._images = NewestMessages([NAME])
        self._thread = threading.Thread(target=self._run, name="torchrl_gpu ros camera", daemon=True)

    def start(self) -> None:
        if self._server is not None:
            self._server.declare(CAMERA)
        self._thread.start()

    def close(self) -> None:
        """Ends it after the picture that it encodes."""
        self._images.close()
        if self._thread.ident is not None:
            self._thread.join()

    def put(self, data: bytes) -> None:
        self._images.put(NAME, data)

    def show(self, frame: Frame, stamp_ns: int, *, bgr: bool = False, frame_id: str = "") -> None:
        if self._server is not None:
            view, state = self._facts()
            for first in range(0, len(state), MAX_META):  # many inputs have more than one call may bring
                self._server.state(**dict(list(state.items())[first : first + MAX_META]))
            self._server.show_policy(view._replace(frame=frame, seen=None), CAMERA, bgr=bgr)
            if view.seen is not None:  # whose blue comes last, whatever the camera's
                self._server.show_policy(view, CAMERA)
        if self._send is not None:
            self._send(frame, stamp_ns, frame_id, bgr)

    def show_rendered(self, frame: Frame, stamp_ns: int, *, bgr: bool = False) -> bool:
        """Shows a frame of a simulator, unless one was shown just before; whether it did."""
        now = time.monotonic()
        if now < self._rendered.next_at:
            return False
        self._rendered.advance(now)
        self.show(frame, stamp_ns, bgr=bgr)
        return True

    def _run(self) -> None:
        while (arrivals := self._images.next(self._pace)) is not None:
            try:
                image = self._read(arrivals[NAME].data)
                stamp_ns = image.stamp_ns or arrivals[NAME].wall_ns
                self.show(image.frame(), stamp_ns, bgr=image.is_bgr, frame_id=image.frame_id)
            except Exception as error:  # of a stranger's message, an encoder or a network
                self._statistics.error("camera_errors", error)
