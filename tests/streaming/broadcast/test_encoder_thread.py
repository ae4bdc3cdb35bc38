"""The encoder's thread: once per codec, whoever watches."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.streaming.pictures import decode_h264, decode_jpeg, psnr, scene, unit_types
from tests.streaming.viewers import counted, until
from torchrl_gpu.streaming.broadcast.encoder_thread import EncoderThread
from torchrl_gpu.streaming.broadcast.frames import CapturedFrame, EncodedPicture
from torchrl_gpu.streaming.broadcast.hub import Hub
from torchrl_gpu.streaming.broadcast.streams import Subscription, SubscriptionClosed
from torchrl_gpu.streaming.codecs import encoder as registry
from torchrl_gpu.streaming.codecs import h264, pipeline
from torchrl_gpu.streaming.codecs.encoder import Codec, EncoderSettings, StreamCodec
from torchrl_gpu.streaming.codecs.images import Packet


@contextlib.asynccontextmanager
async def encoding_hub(**arguments: Any) -> AsyncIterator[tuple[Hub, EncoderThread]]:
    """A hub whose frames are encoded."""
    hub = Hub(fps=1000.0, instant_replay_s=arguments.pop("instant_replay_s", 10.0))
    hub.attach(asyncio.get_running_loop())
    encoding = EncoderThread(hub, **arguments)
    encoding.start()
    try:
        yield hub, encoding
    finally:
        encoding.stop()
        hub.attach(None)


async def shown(hub: Hub, frame: Any, *subscriptions: Subscription, bgr: bool = False) -> list[EncodedPicture]:
    """Publishes a frame as soon as all wait for one.

    What they get.
    """
    tasks = [asyncio.create_task(each.get()) for each in subscriptions]
    # one may have got the last frame again, which the encoder came to late
    await until(lambda: all(each.is_waiting or task.done() for each, task in zip(subscriptions, tasks, strict=True)))
    await until(lambda: hub.declare("main").is_due(asyncio.get_running_loop().time()))
    hub.publish(frame, "main", {"step": 1}, bgr=bgr)
    return [await asyncio.wait_for(task, 10) for task in tasks]


def decoded(picture: EncodedPicture) -> np.ndarray:
    return decode_jpeg(picture.data) if picture.codec == "jpeg" else decode_h264([picture.data])[0]


@pytest.mark.parametrize("codec", ["jpeg", "h264"])
@pytest.mark.parametrize("bgr", [False, True])
async def test_viewer_sees_what_was_published(codec: Codec, bgr: bool) -> None:
    async with encoding_hub() as (hub, _):
        hub.declare("main")
        frame = scene()
        (picture,) = await shown(hub, frame[..., ::-1] if bgr else frame, hub.subscribe("main", codec), bgr=bgr)
        assert psnr(decoded(picture), frame) > 28
        assert (picture.codec, picture.width, picture.height, picture.key) == (codec, 160, 120, True)
        assert dict(picture.meta) == {"step": 1}


async def test_a_frame_is_encoded_once_however_many_watch() -> None:
    async with encoding_hub(instant_replay_s=0) as (hub, _):
        hub.declare("main")
        viewers = [hub.subscribe("main", codec) for codec in ("jpeg", "jpeg", "jpeg", "h264", "h264")]
        for _ in range(3):
            pictures = await shown(hub, scene(), *viewers)
            assert pictures[0] is pictures[1] is pictures[2]
            assert pictures[3] is pictures[4]
        for codec in ("jpeg", "h264"):
            assert counted(hub, "frames_encoded_total", stream="main", codec=codec) == 3


async def test_only_what_is_watched_is_encoded_but_for_a_jpeg_now_and_then() -> None:
    async with encoding_hub() as (hub, _):
        hub.declare("main")
        still = hub.subscribe("main", "jpeg")
        for _ in range(4):
            await shown(hub, scene(), still)
        assert counted(hub, "frames_encoded_total", stream="main", codec="h264") == 0
    async with encoding_hub() as (hub, _):
        stream, video = hub.declare("main"), hub.subscribe("main", "h264")
        for _ in range(4):
            await shown(hub, scene(), video)
        assert 1 <= counted(hub, "frames_encoded_total", stream="main", codec="jpeg") < 4
        assert [picture.codec for picture in stream.replay.clip()][:1] == ["jpeg"]


async def test_late_joiner_decodes_from_the_first_picture() -> None:
    async with encoding_hub() as (hub, _):
        stream = hub.declare("main")
        early = hub.subscribe("main", "h264")
        first = [(await shown(hub, scene(shift=i), early))[0] for i in range(3)]
        assert [picture.key for picture in first] == [True, False, False]
        # It was a while ago.
        stream.key_at = 0.0
        late = hub.subscribe("main", "h264")
        # The newest picture comes once more.
        joined = await asyncio.wait_for(asyncio.gather(early.get(), late.get()), 10)
        both = [joined, await shown(hub, scene(shift=3), early, late)]
        assert [picture.key for picture, _ in both] == [True, False]
        assert {7, 8, 5} <= set(unit_types(both[0][0].data))
        frames = decode_h264([picture.data for _, picture in both])
        assert [psnr(frames[i], scene(shift=2 + i)) > 28 for i in range(2)] == [True, True]
        whole = decode_h264([*(picture.data for picture in first), *(picture.data for picture, _ in both)])
        assert len(whole) == 5


@pytest.mark.parametrize("codec", ["jpeg", "h264"])
async def test_joiner_between_two_frames_sees_the_newest_at_once(codec: Codec) -> None:
    async with encoding_hub() as (hub, _):
        stream = hub.declare("main")
        # Then no frame and no tick follows.
        hub.publish(scene(), "main", {"step": 7}, bgr=False)
        await until(lambda: stream.mailbox.current is not None)
        assert counted(hub, "frames_encoded_total", stream="main", codec=codec) == 0, "nobody was there"
        pictures = []
        for _ in range(2):
            # It was a while ago.
            stream.key_at = 0.0
            viewer = hub.subscribe("main", codec)
            pictures.append(await asyncio.wait_for(viewer.get(), 10))
            assert psnr(decoded(pictures[-1]), scene()) > 28
            viewer.close()
        assert [(picture.key, dict(picture.meta)) for picture in pictures] == [(True, {"step": 7})] * 2
        assert pictures[0].seq < pictures[1].seq
        assert pictures[0].captured == pictures[1].captured
        assert len(stream.replay.clip()) == 1, "shown twice, and once in the replay"


async def test_size_of_a_stream_may_change() -> None:
    async with encoding_hub() as (hub, _):
        hub.declare("main")
        viewers = hub.subscribe("main", "jpeg"), hub.subscribe("main", "h264")
        for shape in ((48, 64), (47, 61), (3, 20, 30), (48, 64)):
            frame = np.full((*shape, 3), 90, np.uint8)
            still, video = await shown(hub, frame, *viewers)
            assert (still.height, still.width) == (video.height, video.width) == decode_jpeg(still.data).shape[:2]
            assert video.key


async def test_h264_that_fails_ends_its_viewers_and_not_those_of_jpeg(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no codec\nopens here")

    monkeypatch.setattr(h264, "H264Encoder", refuse)
    async with encoding_hub() as (hub, encoding):
        stream, still = hub.declare("main"), hub.subscribe("main", "jpeg")
        for _ in range(2):
            video = hub.subscribe("main", "h264")
            task = asyncio.create_task(video.get())
            await until(lambda video=video, task=task: video.is_waiting or task.done())
            (picture,) = await shown(hub, scene(), still)
            assert picture.codec == "jpeg"
            with pytest.raises(SubscriptionClosed, match=r"h264: no codec"):
                await task
        assert stream.subscriptions == (still,)
        assert encoding.error is None, "the viewers went on with JPEG"
    assert len(caplog.records) == 1


async def test_a_jpeg_that_fails_is_an_error_and_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def sometimes(*arguments: Any, **options: Any) -> bytes:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("out of luck")
        return b"jpeg"

    monkeypatch.setattr(registry, "encode_jpeg", sometimes)
    async with encoding_hub() as (hub, encoding):
        subscription = hub.subscribe(hub.declare("main").name, "jpeg")
        task = asyncio.create_task(subscription.get())
        while not task.done():
            await until(lambda: task.done() or hub.declare("main").is_due(asyncio.get_running_loop().time()))
            hub.publish(scene(), "main", None, bgr=False)
        assert (await task).data == b"jpeg"
        assert str(encoding.error) == "out of luck"
        assert counted(hub, "encode_errors_total", stream="main", codec="jpeg") == 1


async def test_a_pipeline_of_the_program_makes_the_jpegs() -> None:
    class Pipeline:
        def encode_jpeg(self, rgb: np.ndarray, quality: int = 80, *, bgr: bool = False) -> bytes:
            return f"{rgb.shape} {quality} {bgr} {threading.current_thread().name}".encode()

    async with encoding_hub(pipeline=Pipeline(), jpeg_quality=55) as (hub, _):
        hub.declare("main")
        (picture,) = await shown(hub, scene(4, 6), hub.subscribe("main"), bgr=True)
        assert picture.data == b"(4, 6, 3) 55 True torchrl_gpu stream encoder"


async def test_a_frame_that_cannot_be_read_is_an_error_and_the_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with encoding_hub() as (hub, encoding):
        stream = hub.declare("main")
        monkeypatch.setattr(stream.mailbox, "take", lambda: 1 / 0)
        hub.pending.add(stream)
        await until(lambda: encoding.error is not None)
        monkeypatch.undo()
        await shown(hub, scene(), hub.subscribe("main"))
        assert isinstance(encoding.error, ZeroDivisionError)


def test_the_thread_ends_with_stop_even_if_it_never_began() -> None:
    EncoderThread(Hub()).stop()
    encoding = EncoderThread(Hub())
    encoding.start()
    encoding.stop()
    encoding.stop()
    assert encoding.error is None
    assert not any(thread.name == "torchrl_gpu stream encoder" for thread in threading.enumerate())


class OnItsWay:
    """Range of depths that may be read only behind the event of its copy."""

    def __init__(self) -> None:
        self.is_there = False

    def synchronize(self) -> None:
        self.is_there = True

    def tolist(self) -> list[float]:
        assert self.is_there
        return [0.5, 4.0]


async def test_the_range_of_depth_is_read_when_the_copy_is_there() -> None:
    async with encoding_hub() as (hub, _):
        stream, depth = hub.declare("main"), OnItsWay()
        task = asyncio.create_task(hub.subscribe("main").get())
        await until(lambda: stream.is_due(asyncio.get_running_loop().time()))
        stream.mailbox.put(CapturedFrame(scene(), False, 0.0, hub.next_seq(), {"step": 1}, depth, depth))
        hub.pending.add(stream)
        picture = await asyncio.wait_for(task, 10)
        assert dict(picture.meta) == {"step": 1, "depth_near_m": 0.5, "depth_far_m": 4.0}


async def test_a_member_that_is_dropped_takes_its_encoder_along() -> None:
    async with encoding_hub() as (hub, encoding):
        hub.declare_family("env", 8)
        subscription = hub.subscribe("env3", "h264")
        task = asyncio.create_task(subscription.get())
        await until(hub.wanted_streams)
        hub.publish(scene(), "env3", None, bgr=False)
        await asyncio.wait_for(task, 10)
        encoder = encoding.encoders["env3", "h264"]
        subscription.close()
        hub.streams["env3"].idle_since = -1e9
        hub.tick()
        await until(lambda: ("env3", "h264") not in encoding.encoders)
        with pytest.raises(RuntimeError, match="is closed"):
            encoder.encode(scene())


class Numbers:
    """An encoder of a user's own codec.

    It says how many pictures came before, and whether the next ones need it.
    """

    def __init__(self, width: int, height: int, settings: EncoderSettings) -> None:
        self.number = 0

    def encode(self, rgb: Any, key_frame: bool = False, *, bgr: bool = False) -> Packet:
        self.number += 1
        return Packet(bytes([self.number]), key_frame or self.number == 1)

    def close(self) -> None:
        self.number = -1


@pytest.mark.parametrize("has_deltas", [True, False])
async def test_another_codec_is_one_line(monkeypatch: pytest.MonkeyPatch, has_deltas: bool) -> None:
    monkeypatch.setitem(registry.CODECS, "numbers", StreamCodec(Numbers, has_deltas, lambda: None))
    async with encoding_hub() as (hub, encoding):
        viewers = [hub.subscribe(hub.declare("main").name, codec) for codec in ("numbers", "jpeg")]
        pictures = [(await shown(hub, scene(), *viewers))[0] for _ in range(3)]
        assert [(picture.codec, picture.data[0]) for picture in pictures] == [("numbers", i) for i in (1, 2, 3)]
        assert [picture.key for picture in pictures] == [True, False, False]
        place = "main" if has_deltas else "", "numbers"
        made = encoding.encoders[place]
        viewers[0].close()
        await shown(hub, scene(), viewers[1])
        assert (place in encoding.encoders) is not has_deltas, "one for all streams stays"
    assert made.number == -1


def test_a_pipeline_for_frames_of_a_gpu_is_made_while_pictures_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, closed = threading.Event(), threading.Event()

    class Slow:
        """A pipeline whose making takes long, as where NVJPEG is tried for the first time."""

        def __init__(self, device: object) -> None:
            assert may_end.wait(20)

        def encode_jpeg(self, frame: Any, quality: int, *, bgr: bool) -> bytes:
            return b"by the pipeline"

        def close(self) -> None:
            closed.set()

    monkeypatch.setattr(pipeline, "GpuFramePipeline", Slow)
    encoder = registry.JpegEncoder(EncoderSettings(30.0, 80, None))
    frame = torch.from_numpy(scene())
    assert psnr(decode_jpeg(encoder.encode(frame).data), scene()) > 28
    may_end.set()
    assert encoder.own_pipeline is not None
    encoder.own_pipeline.result(20)
    assert encoder.encode(frame).data == b"by the pipeline"
    encoder.close()
    assert closed.is_set()
