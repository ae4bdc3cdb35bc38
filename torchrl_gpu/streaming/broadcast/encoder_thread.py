"""The thread that encodes: each frame once per codec, for any number of viewers."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from torchrl_gpu.streaming.broadcast.frames import CapturedFrame, EncodedPicture, beside, depth_meta
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.streams import Stream
from torchrl_gpu.streaming.codecs.encoder import CODECS, STILLS, Codec, Encoder, EncoderSettings
from torchrl_gpu.streaming.codecs.images import Packet

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

_LOG = logging.getLogger(__name__)
_REPLAY_PERIOD = 0.1  # seconds between pictures for instant replay that no viewer asked for


class EncoderThread:
    """Takes the newest frame of each stream of a hub in turn and hands its pictures to the hub.

    Attributes:
        error: The first that viewers were not helped over.
    """

    def __init__(self, hub: Hub, jpeg_quality: int = 80, pipeline: GpuFramePipeline | None = None) -> None:
        self.error: BaseException | None = None
        self._hub = hub
        self._settings = EncoderSettings(hub.fps, jpeg_quality, pipeline)
        self._failed: set[tuple[str, str]] = set()
        self._encoders: dict[tuple[str, Codec], Encoder] = {}
        self._thread = threading.Thread(target=self._run, name="torchrl_gpu stream encoder", daemon=True)
        # Now, where nobody watches yet: what the thread has to load or to find out, every viewer waits for.
        for codec in CODECS.values():
            codec.prepare()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Ends it after the frame that it is encoding."""
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
            for encoder in self._encoders.values():
                encoder.close()

    def _encode(self, stream: Stream) -> None:
        if stream.is_dropped:
            self._let_go(stream, *CODECS)
            return
        again, stream.again_asked = stream.again_asked, False
        capture = stream.mailbox.take()
        if capture is None and again and (capture := stream.mailbox.current) is not None:
            capture.seq = self._hub.next_seq()
        if capture is None:
            return
        if capture.copied is not None:
            capture.copied.synchronize()
        if capture.depth is not None:
            capture.meta, capture.depth = capture.meta | depth_meta(capture.depth), None
        self._let_go(stream, *(CODECS.keys() - {each.codec for each in stream.subscriptions}))
        with beside(capture.pixels):
            for codec in self._codecs(stream, capture):
                picture = self._picture(stream, capture, codec)
                if picture is not None:
                    self._hub.call_in_loop(self._hub.deliver, stream, picture)

    def _codecs(self, stream: Stream, capture: CapturedFrame) -> list[Codec]:
        """Codecs that viewers wait for, and at intervals stills for instant replay."""
        codecs = sorted(stream.codecs_due(time.monotonic()))
        needs_still = stream.replay.is_on and capture.captured - stream.replay.newest >= _REPLAY_PERIOD
        return [*codecs, STILLS] if needs_still and codecs and STILLS not in codecs else codecs

    def _picture(self, stream: Stream, capture: CapturedFrame, codec: Codec) -> EncodedPicture | None:
        """A frame in a codec; None if the codec fails, or keeps it for later."""
        begin = time.perf_counter()
        try:
            data, key = self._packet(stream, capture, codec)
        except Exception as error:
            self._fail(stream, codec, error)
            return None
        metrics = self._hub.metrics
        metrics.frames_encoded.labels(stream.label, codec).inc()
        metrics.encoded_bytes.labels(stream.label, codec).inc(len(data))
        metrics.encode_seconds.labels(stream.label, codec).inc(time.perf_counter() - begin)
        if not data:
            return None
        height, width = capture.pixels.shape[:2]
        return EncodedPicture(stream.name, codec, data, key, capture.seq, capture.captured, width, height, capture.meta)

    def _packet(self, stream: Stream, capture: CapturedFrame, codec: Codec) -> Packet:
        has_deltas = CODECS[codec].has_deltas
        place = stream.name if has_deltas else "", codec
        if place not in self._encoders:
            height, width = capture.pixels.shape[:2]
            self._encoders[place] = CODECS[codec].make(width, height, self._settings)
        if not has_deltas:
            return self._encoders[place].encode(capture.pixels, bgr=capture.bgr)
        key, stream.key_asked = stream.key_asked, False
        packet = self._encoders[place].encode(capture.pixels, key, bgr=capture.bgr)
        if packet.key:
            stream.key_at = time.monotonic()
            self._hub.metrics.key_frames.labels(stream.label).inc()
        return packet

    def _let_go(self, stream: Stream, *codecs: Codec) -> None:
        for codec in codecs:
            encoder = self._encoders.pop((stream.name, codec), None)
            if encoder is not None:
                encoder.close()

    def _fail(self, stream: Stream, codec: Codec, error: Exception) -> None:
        """Ends the subscriptions of the codec, so that their viewers choose another; stills have none beside them."""
        self._hub.metrics.encode_errors.labels(stream.label, codec).inc()
        self._note(stream, codec, error)
        if codec != STILLS:
            self._let_go(stream, codec)
            self._hub.call_in_loop(self._hub.end_codec, stream, codec, " ".join(str(error).split()))

    def _note(self, stream: Stream, what: str, error: Exception) -> None:
        """Logs an error, once per stream and codec, and keeps the first that viewers were not helped over."""
        if (stream.label, what) not in self._failed:
            self._failed.add((stream.label, what))
            _LOG.warning("stream %r cannot be encoded as %s: %s", stream.name, what, error)
        if (what == STILLS or what not in CODECS) and self.error is None:
            self.error = error
