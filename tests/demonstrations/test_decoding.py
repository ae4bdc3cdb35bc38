"""Frames of files: their order, size and colours, and files that are none."""

from __future__ import annotations

import io
import logging
import os
import struct
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from tests.demonstrations import drawn
from tests.no_host_reads import NoHostReads
from torchrl_gpu.demonstrations import ClipStore, decoding
from torchrl_gpu.demonstrations.decoding import count_frames, decode, read_header, resize, torchcodec_problem


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Blocks that move, so that packets hold something that can be spoilt."""
    blocks = np.random.default_rng(0).integers(90, 160, (12, 16, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    frames = [np.roll(blocks, 5 * i, 1) for i in range(80)]
    return drawn.write_video(tmp_path_factory.mktemp("noise") / "noise.mp4", frames)


def test_frames_come_in_the_order_in_which_they_are_shown(tmp_path: Path) -> None:
    path = drawn.write_video(tmp_path / "a.mp4", [drawn.picture(1, i) for i in range(9)])
    (batch,) = decode(path, "a", (8, 8))
    assert batch.seconds == pytest.approx([i / drawn.FPS for i in range(9)])
    off = batch.frames.float().mean((2, 3)) - torch.tensor([drawn.color(1, i) for i in range(9)])
    assert off.abs().max() < 5


def test_a_small_frame_is_the_mean_of_areas(noise: Path) -> None:
    """As torch makes it of the frames in full, but for what is lost in between."""
    whole = torch.cat([batch.frames.clone() for batch in decode(noise, "noise")])
    small = torch.cat([batch.frames.clone() for batch in decode(noise, "noise", (24, 32))])
    assert small.shape == (80, 3, 24, 32)
    off = (small.int() - resize(whole, (24, 32)).int()).abs().float()
    assert off.mean() < 3, "other ways to make frames small, and half the columns of colour, are 5 and more off"
    assert off.max() < 16
    assert resize(whole, (96, 128)) is whole


def test_many_frames_come_in_batches_behind_a_header(noise: Path) -> None:
    assert read_header(noise, "noise") == (96, 128, drawn.FPS)
    assert [len(batch.seconds) for batch in decode(noise, "noise", (4, 4))] == [64, 16]


def corrupt(data: bytes) -> bytes:
    """Zeros in the middle of what the packets hold."""
    begin = data.index(b"mdat") + 2000
    return data[:begin] + bytes(500) + data[begin + 500 :]


def changed(data: bytes) -> bytes:
    """Change a dozen bytes of a picture.

    A decoder that is not told to be strict makes up what they were.
    """
    begin = data.index(b"mdat") + 1400
    return data[:begin] + bytes(range(1, 13)) + data[begin + 12 :]


def audio(data: bytes) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=48000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.rate = 48000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(lambda data: b"", "it does not begin like an MP4 file", id="empty"),
        pytest.param(
            lambda data: b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n",
            "it does not begin like an MP4 file",
            id="a playlist that names another file",
        ),
        pytest.param(
            lambda data: data[:64],
            "it cannot be read as an MP4 file with a video that decodes: Invalid data",
            id="its beginning alone",
        ),
        pytest.param(
            lambda data: data[: len(data) // 2],
            "it cannot be read as an MP4 file with a video that decodes: Invalid data",
            id="cut off",
        ),
        pytest.param(corrupt, "it cannot be read as an MP4 file with a video that decodes: Invalid data", id="corrupt"),
        pytest.param(changed, "it cannot be read as an MP4 file with a video that decodes: Invalid data", id="changed"),
        pytest.param(
            lambda data: data[:32] + np.random.default_rng(0).bytes(len(data) - 32),
            "it cannot be read as an MP4 file with a video that decodes: ",
            id="noise",
        ),
        pytest.param(audio, "it has no video stream", id="sound"),
    ],
)
def test_a_file_that_does_not_decode_is_named(
    noise: Path, tmp_path: Path, spoil: Callable[[bytes], bytes], says: str
) -> None:
    path = tmp_path / "bad.mp4"
    path.write_bytes(spoil(noise.read_bytes()))
    with pytest.raises(ValueError, match=rf"demonstrations: bad.mp4: {says}") as error:
        list(decode(path, "bad.mp4", (8, 8)))
    assert "\n" not in str(error.value)


def test_thousands_of_spoilt_bytes_end_nothing(noise: Path, tmp_path: Path) -> None:
    """Whatever is spoilt, frames come, or a ValueError does."""
    whole = noise.read_bytes()
    random = np.random.default_rng(1)
    ends = 0
    for _ in range(60):
        data = bytearray(whole)
        for place in random.integers(8, len(data), 12):
            data[place] = random.integers(256)
        path = tmp_path / "spoilt.mp4"
        path.write_bytes(bytes(data))
        try:
            for batch in decode(path, "spoilt", (8, 8)):
                assert batch.frames.shape[1:] == (3, 8, 8)
        except ValueError as error:
            ends += "\n" not in str(error)
    assert ends > 20


def test_decoding_limits_the_size_of_frames(noise: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MOST_PIXELS", 96 * 128 - 1)
    with pytest.raises(ValueError, match=r"12,287 pixels, not 96×128"):
        read_header(noise, "noise")
    monkeypatch.setattr(decoding, "MOST_PIXELS", 2**25)
    monkeypatch.setattr(decoding, "MOST_FRAMES", 79)
    with pytest.raises(ValueError, match="at most 79 frames, not 80"):
        list(decode(noise, "noise"))


def test_a_folder_or_a_pipe_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")
    for name in ("folder.mp4", "pipe.mp4"):
        with pytest.raises(ValueError, match=r"no such file"):
            read_header(tmp_path / name, name)


class DecoderByPyav:
    """A stand-in for torchcodec's `VideoDecoder`."""

    def __init__(self, source: object, device: str, num_ffmpeg_threads: int = 1) -> None:
        source = io.BytesIO(source) if isinstance(source, bytes) else source
        with av.open(source) as container:
            shown = [(frame.to_ndarray(format="rgb24"), frame.time) for frame in container.decode(video=0)]
        self.frames = torch.from_numpy(np.stack([frame for frame, _ in shown])).permute(0, 3, 1, 2)
        self.seconds = torch.tensor([time for _, time in shown])

    def __len__(self) -> int:
        return len(self.frames)

    def get_frames_in_range(self, start: int, stop: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(data=self.frames[start:stop], pts_seconds=self.seconds[start:stop])


@pytest.fixture
def torchcodec(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    module = types.ModuleType("torchcodec.decoders")
    module.VideoDecoder = DecoderByPyav  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchcodec", types.ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
    torchcodec_problem.cache_clear()
    yield module
    torchcodec_problem.cache_clear()


def test_torchcodec_gives_the_same_frames(noise: Path, torchcodec: types.ModuleType) -> None:
    ours = torch.cat([batch.frames.clone() for batch in decode(noise, "noise", decoder="pyav")])
    theirs = [batch for batch in decode(noise, "noise", decoder="torchcodec")]
    assert torch.equal(torch.cat([batch.frames for batch in theirs]), ours)
    assert theirs[1].seconds[0] == pytest.approx(6.4)


def test_torchcodec_is_not_shown_what_is_no_video(tmp_path: Path, torchcodec: types.ModuleType) -> None:
    (tmp_path / "a.mp4").write_bytes(b"#EXTM3U\n")
    with pytest.raises(ValueError, match="an MP4 file"):
        list(decode(tmp_path / "a.mp4", "a", decoder="torchcodec"))


def test_where_torchcodec_fails_pyav_decodes_and_one_line_says_why(
    noise: Path, torchcodec: types.ModuleType, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("Could not load libtorchcodec.\nFFmpeg version 8: …")

    monkeypatch.setattr(torchcodec, "VideoDecoder", broken)
    monkeypatch.setattr(decoding, "_takes_torchcodec", lambda decoder, device: not torchcodec_problem(device))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert sum(len(batch.seconds) for batch in decode(noise, "noise")) == 80
    assert [record.getMessage() for record in caplog.records] == [
        "demonstrations: videos are decoded by PyAV, as torchcodec does not work on cpu: Could not load libtorchcodec."
    ]


def test_torchcodec_by_name_is_refused_where_it_fails(noise: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    torchcodec_problem.cache_clear()
    with pytest.raises(ValueError, match=r"decoder .*torchcodec does not"):
        list(decode(noise, "noise", decoder="torchcodec"))
    torchcodec_problem.cache_clear()
    with pytest.raises(ValueError, match=r"decoder .*auto, pyav or torchcodec"):
        list(decode(noise, "noise", decoder="x"))  # type: ignore[arg-type]


def boxes(data: bytes, at: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Places and names of all boxes that hold what is said of samples."""
    while at + 8 <= end:
        length, name = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        yield at, name
        if name in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf"):
            yield from boxes(data, at + 8, at + length)
        at += length


def spoilt(path: Path, wanted: bytes, at: int, *numbers: int) -> Path:
    """A file in which some numbers of a box are others."""
    content = bytearray(path.read_bytes())
    for place, name in list(boxes(content, 0, len(content))):
        if name == wanted:
            for i, number in enumerate(numbers):
                content[place + at + 4 * i : place + at + 4 * i + 4] = number.to_bytes(4, "big")
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("number", [10**5, 10**7, 2**31 - 1])
def test_samples_that_cannot_be_in_a_file_take_no_memory(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index in memory is no larger than the file allows.

    libavformat makes one of the length that a header of two kilobytes claims: for 10^7, 350 MiB.
    """
    path = drawn.write_video(tmp_path / "a.mp4", [drawn.picture(0, i, (16, 16)) for i in range(3)])
    spoilt(path, b"stsz", 12, 1, number)
    monkeypatch.setattr(av, "open", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(ValueError, match=r"a\.mp4: .* bytes of samples"):
        read_header(path, "a.mp4")


def test_samples_of_fragments_that_cannot_be_in_a_file_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(path, "w", format="mp4", options={"movflags": "frag_keyframe+empty_moov"}) as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width = 16
        stream.height = 16
        stream.pix_fmt = "yuv420p"
        for i in range(3):
            frame = av.VideoFrame.from_ndarray(drawn.picture(0, i, (16, 16)), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert count_frames(path, "a.mp4") == 3
    with pytest.raises(ValueError, match=r"bytes of samples"):
        read_header(spoilt(path, b"trun", 8, 0, 10**8), "a.mp4")


def store_of(lengths: list[int]) -> ClipStore:
    """Every frame has its number as its only value."""
    total = sum(lengths)
    frames = torch.arange(total, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2).contiguous()
    rows = TensorDict({"action": torch.arange(total).float()[:, None]}, [total])
    return ClipStore(frames, lengths, rows, fps=10.0)


def naive_clip(lengths: list[int], number: int, length: int) -> list[int]:
    """Frame by frame, backwards from one of them."""
    begins = [sum(lengths[:i]) for i in range(len(lengths))]
    begin = max(each for each in begins if each <= number)
    clip = [number]
    while len(clip) < length:
        clip.insert(0, clip[0] - 1 if clip[0] > begin else clip[0])
    return clip


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 12), st.data())
def test_clips_are_those_of_a_loop(lengths: list[int], length: int, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, sum(lengths) - 1), min_size=1, max_size=6))
    clips = store_of(lengths).clips(torch.tensor(index), length)
    assert clips.shape == (len(index), length, 3, 2, 2)
    assert clips.dtype == torch.uint8
    assert clips[:, :, 0, 0, 0].tolist() == [naive_clip(lengths, number, length) for number in index]


def test_decoding_reads_nothing_back() -> None:
    store, index = store_of([3, 4]), torch.tensor([0, 6, 3])
    with NoHostReads():
        store.clips(index, 4)
        store.batch(index, 4)


def test_indices_beyond_the_store_are_the_nearest() -> None:
    clips = store_of([3, 4]).clips(torch.tensor([-5, 99]), 2)[:, :, 0, 0, 0]
    assert clips.tolist() == [[0, 0], [5, 6]]


def test_a_batch_has_what_belongs_to_the_last_frames() -> None:
    batch = store_of([3, 4]).batch(torch.tensor([2, 5]), 3)
    assert batch["action"].flatten().tolist() == [2.0, 5.0]
    assert batch["clip"][:, -1, 0, 0, 0].tolist() == [2, 5]


@pytest.mark.parametrize("lengths", [[], [2], [8], [7, 0]])
def test_lengths_add_up(lengths: list[int]) -> None:
    frames = torch.zeros(7, 3, 2, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"lengths must .*add up"):
        ClipStore(frames, lengths, TensorDict(batch_size=[7]), fps=10.0)


def turned(path: Path, to: Path, matrix: tuple[float, float, float, float]) -> Path:
    """A file whose first track is shown by another matrix, as a phone writes it."""
    data = path.read_bytes()
    # This is behind name, flags, times, number, duration, layer and volume.
    at = data.index(b"tkhd") + 44
    entries = [round(entry * 65536) for entry in matrix]
    a, b, c, d = entries
    entries = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    to.write_bytes(data[:at] + entries + data[at + len(entries) :])
    return to


@pytest.fixture(scope="module")
def corners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two frames 96×128 of which each quarter has a shade of its own."""
    frame = np.array([[20, 90], [160, 230]], np.uint8).repeat(48, 0).repeat(64, 1)
    return drawn.write_video(tmp_path_factory.mktemp("corners") / "corners.mp4", [frame[..., None].repeat(3, 2)] * 2)


# a, b, c and d of the matrix of a track: what is in column p and row q is shown in column a·p + c·q, row b·p + d·q.
@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        pytest.param((1, 0, 0, 1), lambda frame: frame, id="as it is"),
        pytest.param((0, 1, -1, 0), lambda frame: np.rot90(frame, -1), id="90 degrees clockwise"),
        pytest.param((-1, 0, 0, -1), lambda frame: np.rot90(frame, 2), id="180 degrees"),
        pytest.param((0, -1, 1, 0), lambda frame: np.rot90(frame, 1), id="270 degrees clockwise"),
        pytest.param((-1, 0, 0, 1), np.fliplr, id="left and right"),
        pytest.param((1, 0, 0, -1), np.flipud, id="top and bottom"),
        pytest.param((0, 1, 1, 0), lambda frame: frame.swapaxes(0, 1), id="rows and columns"),
        pytest.param((0, -1, -1, 0), lambda frame: np.rot90(frame.swapaxes(0, 1), 2), id="rows and columns, turned"),
    ],
)
@pytest.mark.parametrize("is_small", [False, True])
def test_frames_are_turned_as_they_are_to_be_shown(
    corners: Path,
    tmp_path: Path,
    matrix: tuple[int, int, int, int],
    shown: Callable[[np.ndarray], np.ndarray],
    is_small: bool,
) -> None:
    path = turned(corners, tmp_path / "phone.mp4", matrix)
    quarters = shown(np.array([[20, 90], [160, 230]], np.uint8)[..., None])
    height, width = shown(np.empty((96, 128, 1))).shape[:2]
    assert read_header(path, "phone") == (height, width, drawn.FPS)
    size = (height // 4, width // 4) if is_small else (height, width)
    (batch,) = decode(path, "phone", size if is_small else None)
    found = batch.frames.permute(0, 2, 3, 1).numpy()
    wanted = quarters.repeat(size[0] // 2, 0).repeat(size[1] // 2, 1)
    assert found.shape == (2, *size, 3)
    assert np.abs(found.astype(int) - wanted).mean() < 6


def test_a_turn_by_half_a_quarter_is_refused_in_one_line(corners: Path, tmp_path: Path) -> None:
    path = turned(corners, tmp_path / "phone.mp4", (0.7071, 0.7071, -0.7071, 0.7071))
    for read in (lambda: read_header(path, "phone.mp4"), lambda: list(decode(path, "phone.mp4", (8, 8)))):
        with pytest.raises(ValueError, match=r"phone\.mp4: .*matrix .*0\.707") as error:
            read()
        assert "\n" not in str(error.value)


def test_torchcodec_is_not_given_what_it_may_turn_itself(
    corners: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decoding, "torchcodec_problem", lambda device: "")
    monkeypatch.setattr(decoding, "_by_torchcodec", lambda *_: iter(["by torchcodec"]))
    decoding.warn_turned.cache_clear()
    assert list(decode(corners, "corners", decoder="torchcodec")) == ["by torchcodec"]
    path = turned(corners, tmp_path / "phone.mp4", (0, 1, -1, 0))
    for _ in range(2):
        (batch,) = decode(path, "phone", decoder="torchcodec")
        assert batch.frames.shape == (2, 3, 128, 96)
    assert caplog.text.count("decoded by PyAV") == 1
