"""The thread that encodes: each frame once per codec, for any number of viewers."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from torchrl_gpu.streaming.broadcast.frames import CapturedFrame, EncodedPicture, depth_meta, encoder_stream
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.streams import Stream
from torchrl_gpu.streaming.codecs.encoder import CODECS, STILLS, Codec, Encoder, EncoderSettings
from torchrl_gpu.streaming.codecs.images import Packet

if TYPE_CHECKING:
    from torchrl_gpu.streaming.codecs.pipeline import GpuFramePipeline

_LOG = logging.getLogger(__name__)
# Seconds between pictures for instant replay that no viewer asked for.
_REPLAY_PERIOD = 0.1


class EncoderThread:
    """The thread that encodes the newest frames of a hub's streams, in turn.

    Attributes:
        error: The first error that left viewers without a picture; None while there is none. An error of H.264 is not
            one of them, as the viewers get JPEGs instead.
    """

    def __init__(self, hub: Hub, jpeg_quality: int = 80, pipeline: GpuFramePipeline | None = None) -> None:
        self.error: BaseException | None = None
        self._hub = hub
        self._settings = EncoderSettings(hub.fps, jpeg_quality, pipeline)
        self._logged: set[tuple[str, str]] = set()
        self.encoders: dict[tuple[str, Codec], Encoder] = {}
        self._thread = threading.Thread(target=self._run, name="torchrl_gpu stream encoder", daemon=True)
        # Now, while nobody watches yet: every viewer would wait for what the thread has to load or to find out.
        for codec in CODECS.values():
            codec.prepare()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread after the frame that it is encoding."""
        self._hub.pending.close()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while True:
                stream = self._hub.pending.take()
                if stream is None:
                    break
                try:
                    self._encode(stream)
                except Exception as error:
                    self._report(stream, "frame", error)
        finally:
            for encoder in self.encoders.values():
                encoder.close()

    def _encode(self, stream: Stream) -> None:
        """Encode the newest frame of a stream, in each codec that is due."""
        if stream.is_dropped:
            self._close_encoders(stream, *CODECS)
            return
        capture = self._next_capture(stream)
        if capture is None:
            return
        # This thread waits for the copy, which the producer has only queued.
        if capture.copied is not None:
            capture.copied.synchronize()
        if capture.depth is not None:
            capture.meta = capture.meta | depth_meta(capture.depth)
            capture.depth = None
        # An encoder of H.264 that nobody watches holds memory, and on a consumer card one of few sessions.
        watched = {each.codec for each in stream.subscriptions}
        self._close_encoders(stream, *(CODECS.keys() - watched))
        with encoder_stream(capture.pixels):
            for codec in self._codecs_due(stream, capture):
                picture = self._picture(stream, capture, codec)
                if picture is not None:
                    self._hub.call_in_loop(self._hub.deliver, stream, picture)

    def _next_capture(self, stream: Stream) -> CapturedFrame | None:
        """Return the frame to be encoded.

        That is a new one, or the last one again if a viewer needs it.
        """
        again, stream.again_asked = stream.again_asked, False
        capture = stream.mailbox.take()
        if capture is None and again:
            capture = stream.mailbox.current
            if capture is not None:
                # Viewers acknowledge pictures by their number, and a page's decoder tells them apart by it.
                capture.seq = self._hub.next_seq()
        return capture

    def _codecs_due(self, stream: Stream, capture: CapturedFrame) -> list[Codec]:
        """Return the codecs that are due.

        They are those that viewers wait for, and at intervals stills for instant replay.
        """
        codecs = sorted(stream.codecs_due(time.monotonic()))
        replay = stream.replay
        needs_still = replay.is_on and capture.captured - replay.newest >= _REPLAY_PERIOD
        if needs_still and codecs and STILLS not in codecs:
            codecs.append(STILLS)
        return codecs

    def _picture(self, stream: Stream, capture: CapturedFrame, codec: Codec) -> EncodedPicture | None:
        """Encode a frame in a codec.

        It is None if the codec fails, or keeps the frame for later.
        """
        begin = time.perf_counter()
        try:
            data, key = self._packet(stream, capture, codec)
        except Exception as error:
            self._give_up_codec(stream, codec, error)
            return None
        metrics = self._hub.metrics
        metrics.frames_encoded.labels(stream.label, codec).inc()
        metrics.encoded_bytes.labels(stream.label, codec).inc(len(data))
        seconds = time.perf_counter() - begin
        metrics.encode_seconds.labels(stream.label, codec).inc(seconds)
        if not data:
            return None
        height, width = capture.pixels.shape[:2]
        return EncodedPicture(stream.name, codec, data, key, capture.seq, capture.captured, width, height, capture.meta)

    def _packet(self, stream: Stream, capture: CapturedFrame, codec: Codec) -> Packet:
        """Encode a frame by the encoder of a codec, made at first use."""
        has_deltas = CODECS[codec].has_deltas
        # A codec without deltas has one encoder for all streams.
        place = (stream.name if has_deltas else "", codec)
        if place not in self.encoders:
            height, width = capture.pixels.shape[:2]
            self.encoders[place] = CODECS[codec].make(width, height, self._settings)
        encoder = self.encoders[place]
        if not has_deltas:
            return encoder.encode(capture.pixels, bgr=capture.bgr)
        # Cleared before encoding: a viewer that asks for a key frame meanwhile then gets one with the next picture.
        key, stream.key_asked = stream.key_asked, False
        packet = encoder.encode(capture.pixels, key, bgr=capture.bgr)
        if packet.key:
            stream.key_at = time.monotonic()
            self._hub.metrics.key_frames.labels(stream.label).inc()
        return packet

    def _close_encoders(self, stream: Stream, *codecs: Codec) -> None:
        for codec in codecs:
            encoder = self.encoders.pop((stream.name, codec), None)
            if encoder is not None:
                encoder.close()

    def _give_up_codec(self, stream: Stream, codec: Codec, error: Exception) -> None:
        """End the subscriptions of a codec that failed.

        So their viewers choose another. Those of stills go on: there is no other codec to choose.
        """
        self._hub.metrics.encode_errors.labels(stream.label, codec).inc()
        self._report(stream, codec, error)
        if codec != STILLS:
            self._close_encoders(stream, codec)
            self._hub.call_in_loop(self._hub.end_codec, stream, codec, " ".join(str(error).split()))

    def _report(self, stream: Stream, what: str, error: Exception) -> None:
        """Log an error, once per stream and codec.

        The first one that left viewers without a picture becomes `error`.
        """
        if (stream.label, what) not in self._logged:
            self._logged.add((stream.label, what))
            _LOG.warning("stream %r cannot be encoded as %s: %s", stream.name, what, error)
        has_replacement = what in CODECS and what != STILLS
        if not has_replacement and self.error is None:
            self.error = error
