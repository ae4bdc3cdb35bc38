"""Clips of demonstration video, from a store and decoded when they are asked for:
`python benchmarks/demonstrations.py [--output FILE]`.

A video of 640×480 in H.264, with a key frame in every second frame as LeRobot's recorder sets it, which is the best
that random access can have, is decoded once into a store of 64×64; then 256 clips of 4 frames are had from the store,
and by a decoder that is kept open, seeks and decodes what is asked for. Both sides get the same indices in turns, both
warm, on one thread; a figure is the processor's time. Before they are timed, their clips are compared bit for bit. A
minute or two.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import torch
from av.video.reformatter import VideoReformatter
from torch import Tensor

from torchrl_gpu import machine
from torchrl_gpu.demonstrations import ClipStore, load_demonstrations
from torchrl_gpu.demonstrations.decoding import SMALL
from torchrl_gpu.evaluation.reports import write_json

FPS = 30


def write_video(path: Path, frames: int) -> Path:
    """Coloured blocks that move over the picture, and a file of actions beside it."""
    blocks = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    with av.open(path, "w") as container:
        stream = container.add_stream(
            "libx264", rate=FPS, options={"crf": "23", "preset": "veryfast", "g": "2", "bf": "0"}
        )
        stream.height, stream.width, stream.pix_fmt = 480, 640, "yuv420p"
        for i in range(frames):
            moved = np.roll(blocks, (i, 3 * i), (0, 1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
        container.mux(stream.encode(None))
    np.save(path.with_suffix(".npy"), np.zeros((frames, 2), np.float32))
    return path


class DecodedAtAccess:
    """Clips that are decoded when they are asked for, by a decoder that is kept open."""

    def __init__(self, path: Path, side: int) -> None:
        self.container = av.open(path)
        self.stream = self.container.streams.video[0]
        self.stream.codec_context.thread_count = 1
        self.side, self.reformatter = side, VideoReformatter()
        self.ticks = round(1 / (FPS * self.stream.time_base))  # of a frame

    def clips(self, index: Tensor, length: int) -> Tensor:
        """As those of a store."""
        return torch.stack([self._clip(number, length) for number in index.tolist()])

    def _clip(self, last: int, length: int) -> Tensor:
        first, found = max(0, last - length + 1), []
        self.container.seek(first * self.ticks, stream=self.stream)
        for frame in self.container.decode(self.stream):
            if first <= frame.pts // self.ticks:
                small = self.reformatter.reformat(frame, self.side, self.side, "rgb24", interpolation=SMALL)
                found.append(torch.from_numpy(small.to_ndarray()).permute(2, 0, 1))
            if frame.pts // self.ticks == last:
                break
        return torch.stack([found[0]] * (length - len(found)) + found)


def seconds(call: Callable[[], object]) -> float:
    """Of the processor, for a call."""
    begun = time.process_time()
    call()
    return time.process_time() - begun


def measure(folder: Path, frames: int, side: int, batch: int, length: int, turns: int) -> dict[str, float]:
    """Seconds of decoding, milliseconds of a batch on both sides, and the ratio of neighbouring turns."""
    path = write_video(folder / "demo.mp4", frames)
    store: ClipStore = load_demonstrations(path, size=(side, side), device="cpu")
    access, generator = DecodedAtAccess(path, side), torch.Generator().manual_seed(0)
    index = torch.cat([torch.arange(length), torch.randint(frames, (4 * length,), generator=generator)])
    assert torch.equal(store.clips(index, length), access.clips(index, length)), "parity fails: no figure"
    times = []
    for _ in range(turns + 1):
        index = torch.randint(frames, (batch,), generator=generator)
        times.append(
            (
                statistics.median(seconds(lambda index=index: store.clips(index, length)) for _ in range(20)),
                seconds(lambda index=index: access.clips(index, length)),
            )
        )
    times = times[1:]  # the first warms
    decoding = [seconds(lambda: load_demonstrations(path, size=(side, side), device="cpu")) for _ in range(3)]
    low, middle, high = statistics.quantiles([slow / fast for fast, slow in times], n=4)
    stored, decoded = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    return {
        "decode_s": statistics.median(decoding),
        "decoded_frames_per_s": frames / statistics.median(decoding),
        "store_ms": stored,
        "at_access_ms": decoded,
        "ratio": middle,
        "ratio_low": low,
        "ratio_high": high,
        "batches_that_pay_for_decoding": statistics.median(decoding) / (decoded - stored) * 1e3,
        "store_mb": store.frames.numel() / 1e6,
        "video_mb": path.stat().st_size / 1e6,
    }


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "demonstrations.json")
    parser.add_argument("--frames", type=int, default=1000)
    parser.add_argument("--side", type=int, default=64, help="pixels of the stored frames")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--length", type=int, default=4, help="frames of a clip")
    parser.add_argument("--turns", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder), args.frames, args.side, args.batch, args.length, args.turns)
    print(f"{args.frames} frames of 640×480 to {args.side}×{args.side}: {row['decode_s']:.2f} s")
    print(
        f"{args.batch} clips of {args.length}: from the store {row['store_ms']:.2f} ms, decoded at access"
        f" {row['at_access_ms']:.0f} ms, × {row['ratio']:.0f}"
    )
    arguments = {name: value for name, value in vars(args).items() if name != "output"}
    result = {"command": "python benchmarks/demonstrations.py", "machine": machine.describe(torch.device("cpu"))}
    write_json(args.output, result | {"arguments": arguments, "row": row})
    print(f"Written: {args.output}")


if __name__ == "__main__":
    main()
