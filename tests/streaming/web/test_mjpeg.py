"""MJPEG: both framings, rates, and viewers that go."""

from __future__ import annotations

import json
import socket

import cv2
import pytest

from tests.streaming.pictures import decode_jpeg, psnr, scene
from tests.streaming.viewers import address, counted, hub_of, producing, session, until
from torchrl_gpu.streaming.server import StreamServer


async def test_the_head_of_the_next_part_comes_with_the_picture(stream_server: StreamServer) -> None:
    """A part's picture comes with the head of the next part.

    A browser shows a part when it has seen that head, which must not wait for the next picture.
    """
    stream_server.declare("main")
    async with session() as client, client.get(address(stream_server, "stream.mjpg")) as answer:
        assert answer.headers["Content-Type"] == "multipart/x-mixed-replace; boundary=frame"
        head = b"--frame\r\nContent-Type: image/jpeg\r\n\r\n"
        assert await answer.content.readexactly(len(head)) == head
        for shift in range(3):
            await until(stream_server.wanted)
            stream_server.publish(scene(shift=shift))
            part = await answer.content.readuntil(head)
            assert part.endswith(b"\r\n" + head)
            assert psnr(decode_jpeg(part[: -len(head) - 2]), scene(shift=shift)) > 28


async def test_the_usual_framing_tells_length_and_header(stream_server: StreamServer) -> None:
    stream_server.declare("main")
    async with session() as client, client.get(address(stream_server, "stream.mjpg?compat=1")) as answer:
        for step in range(3):
            await until(stream_server.wanted)
            stream_server.publish(scene(), meta={"step": step})
            assert await answer.content.readline() == b"--frame\r\n"
            head = (await answer.content.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
            fields = dict(line.split(": ", 1) for line in head)
            payload = await answer.content.readexactly(int(fields["Content-Length"]) + 2)
            assert psnr(decode_jpeg(payload[:-2]), scene()) > 28
            assert json.loads(fields["X-Frame"])["meta"] == {"step": step}
            assert fields["Content-Type"] == "image/jpeg"


@pytest.mark.server(heartbeat_s=0.05)
async def test_a_picture_that_is_sent_again_is_not_counted_again(stream_server: StreamServer) -> None:
    stream_server.declare("main")
    async with session() as client, client.get(address(stream_server, "stream.mjpg")) as answer:
        head = b"--frame\r\nContent-Type: image/jpeg\r\n\r\n"
        await answer.content.readuntil(head)
        await until(stream_server.wanted)
        stream_server.publish(scene())
        parts = [await answer.content.readuntil(head) for _ in range(3)]
        assert len(set(parts)) == 1
        assert counted(hub_of(stream_server), "frames_sent_total", codec="jpeg", transport="mjpeg") == 1


def test_opencv_reads_it(stream_server: StreamServer) -> None:
    stream_server.declare("main")
    with producing(stream_server):
        capture = cv2.VideoCapture(address(stream_server, "stream.mjpg?compat=1"), cv2.CAP_FFMPEG)
        try:
            if not capture.isOpened():
                pytest.skip("this OpenCV has no FFmpeg")
            done, picture = capture.read()
        finally:
            capture.release()
    assert done
    assert psnr(picture[..., ::-1], scene()) > 25


@pytest.mark.server(heartbeat_s=0.05)
@pytest.mark.parametrize(
    ("query", "status"),
    [("?stream=other", 404), ("?fps=0", 400), ("?fps=many", 400), ("?fps=5", 200), ("?fps=1e9", 400)],
)
async def test_mjpeg_takes_these_parameters(stream_server: StreamServer, query: str, status: int) -> None:
    stream_server.declare("main")
    async with session() as client, client.get(address(stream_server, "stream.mjpg", query)) as answer:
        assert answer.status == status
        if status == 200:
            await until(lambda: stream_server.watchers() == 1)
            (subscription,) = hub_of(stream_server).streams["main"].subscriptions
            assert subscription.schedule.interval == 0.2
    await until(lambda: stream_server.watchers() == 0)


@pytest.mark.server(heartbeat_s=0.1)
async def test_viewers_that_leave_or_do_not_read_are_found(stream_server: StreamServer) -> None:
    stream_server.declare("main")
    frame = scene(800, 1200)
    gone, stuck = ask(stream_server), ask(stream_server)
    with stuck, producing(stream_server, frame=frame):
        await until(lambda: counted(hub_of(stream_server), "frames_sent_total", codec="jpeg", transport="mjpeg") > 1)
        gone.close()
        await until(lambda: stream_server.watchers() == 0)
    assert counted(hub_of(stream_server), "clients", transport="mjpeg") == 0


@pytest.mark.server(heartbeat_s=0.05)
async def test_a_still_source_does_not_hide_who_left(stream_server: StreamServer) -> None:
    stream_server.declare("main")
    gone = ask(stream_server)
    await until(stream_server.wanted)
    stream_server.publish(scene())
    gone.recv(100)
    gone.close()
    await until(lambda: stream_server.watchers() == 0)


def ask(stream_server: StreamServer) -> socket.socket:
    """A socket that has asked for MJPEG and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", stream_server.port))
    connection.sendall(b"GET /stream.mjpg HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection
