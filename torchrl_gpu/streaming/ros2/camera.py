"""The robot's camera, shown to browsers and published as JPEGs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from torchrl_gpu.streaming.broadcast import policy_view
from torchrl_gpu.streaming.broadcast.frames import MAX_META
from torchrl_gpu.streaming.broadcast.policy_view import PolicyView
from torchrl_gpu.streaming.broadcast.rate_limits import FrameSchedule
from torchrl_gpu.streaming.codecs.images import Frame
from torchrl_gpu.streaming.ros2.images import RosImage
from torchrl_gpu.streaming.ros2.inputs import NewestMessages, State, Statistics, pace_of
from torchrl_gpu.streaming.server import StreamServer

CAMERA = "camera"
SEEN = f"{CAMERA}:{policy_view.SEEN}"
NAME = "image"


class CameraOut:
    """A thread that shows the newest image, at most `rate` times a second.

    A server shows the stream "camera" and, if the policy takes images, "camera:seen".

    Args:
        read: Reads the bytes of an image.
        send: Publishes a frame with its stamp, `frame_id` and whether blue comes first; None publishes nothing.
        server: None shows nothing.
        facts: Gives the view of the policy, without the camera's frame, and the state of the page.
        rate: Images a second, at most.
        statistics: Counts errors.
    """

    def __init__(
        self,
        *,
        read: Callable[[bytes], RosImage],
        send: Callable[[Frame, int, str, bool], None] | None,
        server: StreamServer | None,
        facts: Callable[[], tuple[PolicyView, State]],
        rate: float,
        statistics: Statistics,
    ) -> None:
        self._read = read
        self._send = send
        self._server = server
        self._facts = facts
        self._statistics = statistics
        self._pace = pace_of(rate)
        self._rendered = FrameSchedule(1 / rate)
        self._images = NewestMessages([NAME])
        self._thread = threading.Thread(target=self._run, name="torchrl_gpu ros camera", daemon=True)

    def start(self) -> None:
        if self._server is not None:
            self._server.declare(CAMERA)
        self._thread.start()

    def close(self) -> None:
        """End the thread after the picture that it encodes."""
        self._images.close()
        if self._thread.ident is not None:
            self._thread.join()

    def put(self, data: bytes) -> None:
        """Take the bytes of an image."""
        self._images.put(NAME, data)

    def show(self, frame: Frame, stamp_ns: int, *, bgr: bool = False, frame_id: str = "") -> None:
        """Show a frame on the page, and publish it."""
        if self._server is not None:
            view, state = self._facts()
            # A policy of many inputs has more values than one call may bring.
            items = list(state.items())
            for first in range(0, len(items), MAX_META):
                portion = dict(items[first : first + MAX_META])
                self._server.state(**portion)
            self._server.show_policy(view._replace(frame=frame, seen=None), CAMERA, bgr=bgr)
            # Apart, as its blue comes last, whatever the camera's order.
            if view.seen is not None:
                self._server.show_policy(view, CAMERA)
        if self._send is not None:
            self._send(frame, stamp_ns, frame_id, bgr)

    def show_rendered(self, frame: Frame, stamp_ns: int, *, bgr: bool = False) -> bool:
        """Show a frame of a simulator.

        Returns:
            False for a frame that is left out, as one was shown just before.
        """
        now = time.monotonic()
        if now < self._rendered.next_at:
            return False
        self._rendered.advance(now)
        self.show(frame, stamp_ns, bgr=bgr)
        return True

    def _run(self) -> None:
        while True:
            arrivals = self._images.next(self._pace)
            if arrivals is None:
                return
            try:
                arrival = arrivals[NAME]
                image = self._read(arrival.data)
                stamp_ns = image.stamp_ns or arrival.wall_ns
                self.show(image.frame(), stamp_ns, bgr=image.is_bgr, frame_id=image.frame_id)
            except Exception as error:
                # A stranger's message, an encoder or a network may fail in any way.
                self._statistics.error("camera_errors", error)
