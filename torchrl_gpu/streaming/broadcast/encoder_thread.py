"""The one thread that encodes: each frame once per codec that somebody waits for, however many do."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from torchrl_gpu.streaming.broadcast.frames import CapturedFrame, Codec, EncodedPicture, beside, depth_meta
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.streams import Stream
from torchrl_gpu.streaming.codecs.extras import load
from torchrl_gpu.streaming.codecs.h264 import H264Encoder
from torchrl_gpu.streaming.codecs.jpeg import compress

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

_LOG = logging.getLogger(__name__)
_REPLAY_PERIOD = 0.1  # seconds between pictures for instant replay that no viewer asked for


class EncoderThread:
    """Takes the newest frame of each stream in turn and hands its pictures to the hub.

    Args:
        hub: Where frames come from and pictures go.
        jpeg_quality: 1 to 100.
        pipeline: A `GpuFramePipeline` that makes the JPEGs; None to use OpenCV, and a pipeline of its own for frames on
            a GPU.
    """

    def __init__(self, hub: Hub, jpeg_quality: int = 80, pipeline: GpuFramePipeline | None = None) -> None:
        self.error: BaseException | None = None
        self._hub = hub
        self._quality = jpeg_quality
        self._pipeline = pipeline
        self._own_pipeline: GpuFramePipeline | None = None
        self._failed: set[tuple[str, str]] = set()
        self._h264: dict[str, H264Encoder] = {}
        self._thread = threading.Thread(target=self._run, name="torchrl_gpu stream encoder", daemon=True)
        for module in ("cv2", "av"):  # now, and not in the way of the first picture
            load(module)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Ends the thread after the frame that it is encoding."""
        self._hub.pending.close()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while (stream := self._hub.pending.take()) is not None:
                try:
                    self._encode(stream)
                except Exception as error:
                    self._note(stream, "frame", error)
        finally:
            for encoder in self._h264.values():
                encoder.close()
            if self._own_pipeline is not None:
                self._own_pipeline.close()

    def _encode(self, stream: Stream) -> None:
        if stream.is_dropped:
            encoder = self._h264.pop(stream.name, None)
            if encoder is not None:
                encoder.close()
            return
        again, stream.again_asked = stream.again_asked, False
        capture = stream.mailbox.take() or (self._once_more(stream) if again else None)
        if capture is None:
            return
        if capture.copied is not None:
            capture.copied.synchronize()
        if capture.depth is not None:
            capture.meta, capture.depth = capture.meta | depth_meta(capture.depth), None
        if not stream.has_viewers_of("h264"):
            self._h264.pop(stream.name, None)
        with beside(capture.pixels):
            for codec in self._codecs(stream, capture):
                picture = self._picture(stream, capture, codec)
                if picture is not None:
                    self._hub.call_in_loop(self._hub.deliver, stream, picture)

    def _once_more(self, stream: Stream) -> CapturedFrame | None:
        """The last frame, under a new number."""
        if stream.mailbox.current is not None:
            stream.mailbox.current.seq = self._hub.next_seq()
        return stream.mailbox.current

    def _codecs(self, stream: Stream, capture: CapturedFrame) -> list[Codec]:
        """Codecs that viewers wait for, and at intervals JPEG for instant replay."""
        codecs = sorted(stream.codecs_due(time.monotonic()))
        needs_jpeg = stream.replay.is_on and capture.captured - stream.replay.newest >= _REPLAY_PERIOD
        return [*codecs, "jpeg"] if needs_jpeg and codecs == ["h264"] else codecs

    def _picture(self, stream: Stream, capture: CapturedFrame, codec: Codec) -> EncodedPicture | None:
        """A frame in a codec; None if the codec fails, or keeps it for later."""
        begin = time.perf_counter()
        try:
            data, key = self._jpeg(capture) if codec == "jpeg" else self._video(stream, capture)
        except Exception as error:
            self._fail(stream, codec, error)
            return None
        metrics = self._hub.metrics
        metrics.frames_encoded.labels(stream.label, codec).inc()
        metrics.encoded_bytes.labels(stream.label, codec).inc(len(data))
        metrics.encode_seconds.labels(stream.label, codec).inc(time.perf_counter() - begin)
        if not data:
            return None
        return EncodedPicture(
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

    def _jpeg(self, capture: CapturedFrame) -> tuple[bytes, bool]:
        if self._pipeline is None and isinstance(capture.pixels, np.ndarray):
            return compress(capture.pixels, self._quality, bgr=capture.bgr), True
        if self._pipeline is None:
            from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

            self._pipeline = self._own_pipeline = GpuFramePipeline(capture.pixels.device)
        return self._pipeline.encode_jpeg(capture.pixels, self._quality, bgr=capture.bgr), True

    def _video(self, stream: Stream, capture: CapturedFrame) -> tuple[bytes, bool]:
        encoder = self._h264.get(stream.name)
        if encoder is None:
            encoder = self._h264[stream.name] = H264Encoder(capture.width, capture.height, self._hub.fps)
        key, stream.key_asked = stream.key_asked, False
        packet = encoder.encode(capture.pixels, key, bgr=capture.bgr)
        if packet.key:
            stream.key_at = time.monotonic()
            self._hub.metrics.key_frames.labels(stream.label).inc()
        return packet.data, packet.key

    def _fail(self, stream: Stream, codec: Codec, error: Exception) -> None:
        """Ends the subscriptions of the codec, so that their viewers choose another; JPEG has none beside it."""
        self._hub.metrics.encode_errors.labels(stream.label, codec).inc()
        self._note(stream, codec, error)
        if codec == "h264":
            self._h264.pop(stream.name, None)
            self._hub.call_in_loop(self._hub.end_codec, stream, codec, " ".join(str(error).split()))

    def _note(self, stream: Stream, what: str, error: Exception) -> None:
        """Logs what went wrong, once per stream, and keeps the first error that viewers were not helped over."""
        if (stream.label, what) not in self._failed:
            self._failed.add((stream.label, what))
            _LOG.warning("stream %r cannot be encoded as %s: %s", stream.name, what, error)
        if what != "h264" and self.error is None:
            self.error = error
