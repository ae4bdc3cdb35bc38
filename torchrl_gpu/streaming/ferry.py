"""Takes frames from the program to the server's process; those on a GPU by way of a thread that waits for them."""

from __future__ import annotations

import threading
import time
from typing import Any

from torchrl_gpu.streaming.frames import Scalar, copy_pixels, event_behind
from torchrl_gpu.streaming.lines import Speaker
from torchrl_gpu.streaming.outlet import Outlet


class Ferry:
    """Lays frames into shared memory and says so.

    Args:
        speaker: What the server listens to.
    """

    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker
        self._waiting: dict[Outlet, tuple[Any, Any, dict[str, Any]]] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def carry(self, outlet: Outlet, frame: Any, meta: dict[str, Scalar], *, bgr: bool) -> None:
        """Takes a frame over; one on a GPU is copied there, in the order of its work, and fetched by the thread."""
        about = {"meta": meta, "bgr": bgr, "captured": time.time(), "shape": outlet.layout.shape}
        if not getattr(frame, "is_cuda", False):
            self._lay(outlet, frame, about)
            return
        pixels = copy_pixels(frame, outlet.layout.shape)
        with self._changed:
            self._waiting[outlet] = pixels, event_behind(pixels), about
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
                outlet, (pixels, copied, about) = self._waiting.popitem()
            copied.synchronize()
            self._lay(outlet, pixels.cpu().numpy(), about)

    def _lay(self, outlet: Outlet, frame: Any, about: dict[str, Any]) -> None:
        laid = outlet.lay(frame, about["shape"])
        if laid is not None:
            file, version = laid
            self._speaker.say("frame", may_be_lost=True, stream=outlet.name, file=file, version=version, **about)
