"""The one thread that encodes: each frame once per codec that somebody waits for, however many do."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np

from torchrl_gpu.streaming.broadcast.frames import Capture, Codec, Encoded, depth_meta
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.streams import Stream
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.h264 import H264Encoder
from torchrl_gpu.streaming.codecs.jpeg import compress

_LOG = logging.getLogger(__name__)
_REPLAY_PERIOD = 0.1  # seconds between pictures for instant replay that no viewer asked for


class Encoding:
    """Takes the newest frame of each stream in turn and hands its pictures to the hub.

    Args:
        hub: Where frames come from and pictures go.
        jpeg_quality: 1 to 100.
        pipeline: A `GpuFramePipeline` that makes the JPEGs; None to use OpenCV, and a pipeline of its own for frames on
            a GPU.
    """

    def __init__(self, hub: Hub, jpeg_quality: int = 80, pipeline: Any = None) -> None:
        self.error: BaseException | None = None
        self._hub = hub
        self._quality = jpeg_quality
        self._pipeline = pipeline
        self._own_pipeline: Any = None
        self._failed: set[tuple[str, str]] = set()
        self._h264: dict[str, H264Encoder] = {}
        self._todo: dict[str, Stream] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="torchrl_gpu stream encoder", daemon=True)
        hub.wake_encoder = self.wake
        for module in ("cv2", "av"):  # now, and not in the way of the first picture
            load(module)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def wake(self, stream: Stream) -> None:
        """Says that a stream has something to encode. Any thread may."""
        with self._changed:
            self._todo[stream.name] = stream
            self._changed.notify()

    def stop(self, timeout: float = 5.0) -> None:
        """Ends the thread after the frame that it is encoding."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while (stream := self._next()) is not None:
                try:
                    self._encode(stream)
                except Exception as error:
                    self._note(stream, "frame", error)
        finally:
            for encoder in self._h264.values():
                encoder.close()
            if self._own_pipeline is not None:
                self._own_pipeline.close()

    def _next(self) -> Stream | None:
        """The stream that has waited longest; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._todo or self._stopped)
            return None if self._stopped else self._todo.pop(next(iter(self._todo)))

    def _encode(self, stream: Stream) -> None:
        if stream.is_dropped:
            encoder = self._h264.pop(stream.name, None)
            if encoder is not None:
                encoder.close()
            return
        again, stream.again_asked = stream.again_asked, False
        capture = stream.box.take() or (self._once_more(stream) if again else None)
        if capture is None:
            return
        if capture.copied is not None:
            capture.copied.synchronize()
        if capture.depth is not None:
            capture.meta, capture.depth = capture.meta | depth_meta(capture.depth), None
        if not stream.has_viewers_of("h264"):
            self._h264.pop(stream.name, None)
        for codec in self._codecs(stream, capture):
            picture = self._picture(stream, capture, codec)
            if picture is not None:
                self._hub.call(self._hub.deliver, stream, picture)

    def _once_more(self, stream: Stream) -> Capture | None:
        """The last frame, under a new number."""
        if stream.box.current is not None:
            stream.box.current.seq = self._hub.next_seq()
        return stream.box.current

    def _codecs(self, stream: Stream, capture: Capture) -> list[Codec]:
        """What viewers wait for; and behind it, now and then, a JPEG for instant replay."""
        codecs = sorted(stream.codecs_due(time.monotonic()))
        is_short = stream.replay.is_on and capture.captured - stream.replay.newest >= _REPLAY_PERIOD
        return [*codecs, "jpeg"] if is_short and codecs == ["h264"] else codecs

    def _picture(self, stream: Stream, capture: Capture, codec: Codec) -> Encoded | None:
        """A frame in a codec; None if the codec fails, or keeps it for later."""
        begin = time.perf_counter()
        try:
            data, key = self._jpeg(capture) if codec == "jpeg" else self._video(stream, capture)
        except Exception as error:
            self._fail(stream, codec, error)
            return None
        self._count(stream, codec, len(data), time.perf_counter() - begin)
        if not data:
            return None
        return Encoded(
            stream=stream.name,
            codec=codec,
            data=data,
            key=key,
            seq=capture.seq,
            captured=capture.captured,
            width=capture.width,
            height=capture.height,
            meta=capture.meta,
        )

    def _jpeg(self, capture: Capture) -> tuple[bytes, bool]:
        if self._pipeline is None and isinstance(capture.pixels, np.ndarray):
            return compress(capture.pixels, self._quality, bgr=capture.bgr), True
        if self._pipeline is None:
            from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

            self._pipeline = self._own_pipeline = GpuFramePipeline(capture.pixels.device)
        return self._pipeline.encode_jpeg(capture.pixels, self._quality, bgr=capture.bgr), True

    def _video(self, stream: Stream, capture: Capture) -> tuple[bytes, bool]:
        encoder = self._h264.get(stream.name)
        if encoder is None:
            encoder = self._h264[stream.name] = H264Encoder(capture.width, capture.height, self._hub.fps)
        key, stream.key_asked = stream.key_asked, False
        packet = encoder.encode(capture.pixels, key, bgr=capture.bgr)
        if packet.key:
            stream.key_at = time.monotonic()
            self._hub.metrics.add("key_frames_total", stream=stream.label)
        return packet.data, packet.key

    def _count(self, stream: Stream, codec: Codec, size: int, seconds: float) -> None:
        for name, amount in (("frames_encoded", 1), ("encoded_bytes", size), ("encode_seconds", seconds)):
            self._hub.metrics.add(f"{name}_total", amount, stream=stream.label, codec=codec)

    def _fail(self, stream: Stream, codec: Codec, error: Exception) -> None:
        """Ends the subscriptions of the codec, so that their viewers choose another; JPEG has none beside it."""
        self._hub.metrics.add("encode_errors_total", stream=stream.label, codec=codec)
        self._note(stream, codec, error)
        if codec == "h264":
            self._h264.pop(stream.name, None)
            self._hub.call(self._hub.refuse, stream, codec, " ".join(str(error).split()))

    def _note(self, stream: Stream, what: str, error: Exception) -> None:
        """Logs what went wrong, once per stream, and keeps the first error that viewers were not helped over."""
        if (stream.label, what) not in self._failed:
            self._failed.add((stream.label, what))
            _LOG.warning("stream %r cannot be encoded as %s: %s", stream.name, what, error)
        if what != "h264" and self.error is None:
            self.error = error
