"""What encoders of clips cost: `python benchmarks/encoders.py [--output FILE]`.

Weights, operations, and the processor's time of one thread for a clip, forward and with the backward pass: float32, in
turns, the least of each. `Simple2DCNN` stands beside the same and other layers through `torch.nn.Conv2d`; the same
layers are compared with it before anything is timed. A pass that would take longer than `--longest` is not timed. Some
minutes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchrl_gpu import machine
from torchrl_gpu.allocator import keep_freed_memory
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import ClipEncoder, Simple2DCNN
from torchrl_gpu.policies.video.clips import ClipShape, Projection
from torchrl_gpu.policies.video.costs import cost_of

SHAPES: dict[ClipShape, int] = {(4, 3, 32, 32): 256, (4, 3, 64, 64): 256, (16, 3, 112, 112): 16}
"""Clips, and the largest batch that is timed."""
ENCODERS = {
    "Simple2DCNN": ClipEncoder("simple2dcnn"),
    "Simple3DCNN": ClipEncoder("simple3dcnn"),
    "R3D18, GroupNorm": ClipEncoder("r3d18"),
    "R3D18, frozen": ClipEncoder("r3d18", norm="frozen"),
    "TimeSformer, tiny": ClipEncoder("timesformer", size="tiny"),
    "TimeSformer, small": ClipEncoder("timesformer", size="small"),
    "TimeSformer, base": ClipEncoder("timesformer", size="base"),
}
COLUMNS = {
    "encoder": "encoder",
    "clips": "clips",
    "parameters": "parameters",
    "gflop": "GFLOP a clip, forward",
    "batch": "batch",
    "forward_ms": "ms a clip, forward",
    "both_ms": "ms a clip, forward and backward",
}
LAYOUT_COLUMNS = {"encoder": "256 clips 4×3×64×64", "batch_ms": "ms a batch, forward and backward", "ratio": "× ours"}
BATCH = 256  # clips of the layouts
_SLOWEST_RATE = 2e10  # operations a second, to tell what would take too long
_UNTIMED = ""


class Convolutions(nn.Module):
    """Layers through `torch.nn.Conv2d` on frames and differences, in batches of clips that are the fastest."""

    def __init__(self, *layers: nn.Conv2d, memory_format: torch.memory_format = torch.channels_last) -> None:
        super().__init__()
        self.layers, self.memory_format = nn.ModuleList(layers), memory_format
        with torch.no_grad():
            num_features = self.maps(torch.zeros(1, 6, 64, 64)).numel()
        self.projection = Projection(3 * num_features, 64)
        self.to(memory_format=memory_format)

    def maps(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu_()
        return x

    def forward(self, clips: Tensor) -> Tensor:
        return torch.cat([self._encode(part) for part in clips.split(64)])

    def _encode(self, clips: Tensor) -> Tensor:
        pixels = clips.float().div_(255).sub_(0.5)
        x = torch.cat([pixels[:, 1:], pixels[:, 1:] - pixels[:, :-1]], 2).flatten(0, 1)
        maps = self.maps(x.contiguous(memory_format=self.memory_format))
        # As `Simple2DCNN` orders its features: frames, rows, columns, channels.
        return self.projection(maps.permute(0, 2, 3, 1).reshape(len(clips), -1))


def layouts() -> dict[str, nn.Module]:
    """`Simple2DCNN`, and what it could have been."""
    ours = Simple2DCNN((4, 3, 64, 64))
    conv, first = nn.Conv2d, torch.contiguous_format
    made: dict[str, nn.Module] = {
        "Simple2DCNN": ours,
        "the same through Conv2d, channels last": same_layers(torch.channels_last),
        "the same through Conv2d, channels first": same_layers(first),
        "3×3 kernels behind the first": Convolutions(conv(6, 16, 4, 4), conv(16, 32, 3, 2, 1), conv(32, 32, 3, 2, 1)),
        "8×8 stride 4, 4×4 stride 2, 3×3": Convolutions(
            conv(6, 16, 8, 4, 2), conv(16, 32, 4, 2, 1), conv(32, 32, 3, 1, 1)
        ),
        "5×5 and three 3×3, each of stride 2": Convolutions(
            conv(6, 16, 5, 2, 2), conv(16, 32, 3, 2, 1), conv(32, 32, 3, 2, 1), conv(32, 32, 3, 2, 1)
        ),
    }
    clips = random_clips((4, 3, 64, 64), 3)
    for name in list(made)[1:3]:
        same = {
            name.replace("layers.0", "stem").replace("layers.1", "second").replace("layers.2", "third"): value
            for name, value in made[name].state_dict().items()
        }
        ours.load_state_dict(same)
        assert (ours(clips) - made[name](clips)).abs().max() < 1e-4, "parity fails: no figure"
    return made


def same_layers(memory_format: torch.memory_format) -> Convolutions:
    layers = nn.Conv2d(6, 16, 4, 4), nn.Conv2d(16, 32, 2, 2), nn.Conv2d(32, 32, 2, 2)
    return Convolutions(*layers, memory_format=memory_format)


def random_clips(shape: ClipShape, num: int) -> Tensor:
    return torch.randint(0, 256, (num, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def passes(encoder: nn.Module, clips: Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The forward pass as a policy makes it, and both passes as an update makes them."""
    gradient = torch.full((len(clips), 64), 1e-3)
    return torch.no_grad()(lambda: encoder(clips)), lambda: encoder(clips).backward(gradient)


def least(calls: list[Callable[[], Any]], turns: int) -> list[float]:
    """Milliseconds of the processor that calls take at least, in turns, the first of which does not count."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(1 + turns):
        for call, found in zip(calls, times, strict=True):
            begun = time.process_time()
            call()
            found.append(1e3 * (time.process_time() - begun))
    return [min(found[1:]) for found in times]


def rows(turns: int, longest: float) -> Iterator[dict[str, Any]]:
    """An encoder for clips of a shape each."""
    for shape, most in SHAPES.items():
        for name, settings in ENCODERS.items():
            with torch.device("meta"):
                cost = cost_of(settings.make(shape))
            batch = min(most, int(longest * _SLOWEST_RATE / (3 * cost.flops)))
            row = {
                "encoder": name,
                "clips": "×".join(map(str, shape)),
                "parameters": cost.num_parameters,
                "gflop": cost.flops / 1e9,
            } | dict.fromkeys(("batch", "forward_ms", "both_ms"), _UNTIMED)
            if batch:
                calls = passes(settings.make(shape), random_clips(shape, batch))
                forward, both = least(list(calls), turns)
                row |= {"batch": batch, "forward_ms": forward / batch, "both_ms": both / batch}
            print(*row.values(), sep=" | ", flush=True)
            yield row


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "encoders.json")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--longest", type=float, default=12.0, help="seconds of a pass at most, by its operations")
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as training does
    torch.manual_seed(0)
    made, clips = layouts(), random_clips((4, 3, 64, 64), BATCH)
    times = least([passes(encoder, clips)[1] for encoder in made.values()], 3 * args.turns)
    compared = [
        {"encoder": name, "batch_ms": each, "ratio": each / times[0]} for name, each in zip(made, times, strict=True)
    ]
    print(*(f"{row['encoder']}: {row['batch_ms']:.0f} ms" for row in compared), sep="\n", flush=True)
    sections = [
        {"title": "layouts", "columns": LAYOUT_COLUMNS, "rows": compared},
        {"title": "costs", "columns": COLUMNS, "rows": list(rows(args.turns, args.longest))},
    ]
    result = {"command": "python benchmarks/encoders.py", "machine": machine.describe(torch.device("cpu"))}
    write_json(args.output, result | {"sections": sections})
    print(f"Written: {args.output}")


if __name__ == "__main__":
    main()
