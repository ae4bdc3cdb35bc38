"""Takes frames from the program to the server's process; those on a GPU by way of a thread that waits for them."""

from __future__ import annotations

import threading
import time
from typing import Any

from torchrl_gpu.streaming.broadcast.frames import Scalar, copy_pixels, depth_meta, event_behind, to_host_soon
from torchrl_gpu.streaming.codecs.images import FrameFormat
from torchrl_gpu.streaming.remote.lines import Speaker
from torchrl_gpu.streaming.remote.outlet import Outlet


class Ferry:
    """Lays frames into shared memory and says so.

    Args:
        speaker: What the server listens to.
    """

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._waiting: dict[Outlet, tuple[Any, Any, dict[str, Any], Any]] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def carry(
        self,
        outlet: Outlet,
        frame: Any,
        meta: dict[str, Scalar],
        *,
        bgr: bool,
        depth_range: tuple[float, float] | None = None,
    ) -> None:
        """Takes a frame over; one on a GPU is copied there, in the order of its work, and fetched by the thread."""
        layout = outlet.layout
        depth = layout.depth_of(frame, depth_range)
        about = {"meta": meta, "bgr": bgr and depth is None, "captured": time.time(), "shape": layout.shape}
        if not getattr(frame, "is_cuda", False):
            about["meta"] = meta | depth_meta(depth)
            self._lay(outlet, frame, about, depth, layout.format)
            return
        pixels, depth = copy_pixels(frame, layout.shape, None, depth, layout.format), to_host_soon(depth)
        with self._changed:
            self._waiting[outlet] = pixels, event_behind(pixels), about, depth
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="torchrl_gpu stream ferry", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopped)
                if self._stopped:
                    return
                outlet, (pixels, copied, about, depth) = self._waiting.popitem()
            copied.synchronize()
            about["meta"] = about["meta"] | depth_meta(depth)
            self._lay(outlet, pixels.cpu().numpy(), about)

    def _lay(
        self, outlet: Outlet, frame: Any, about: dict[str, Any], depth: Any = None, found: FrameFormat | None = None
    ) -> None:
        laid = outlet.lay(frame, about["shape"], depth, found)
        if laid is not None:
            file, version = laid
            self._speaker.say("frame", may_be_lost=True, stream=outlet.name, file=file, version=version, **about)
