"""The parts of `make gpu`, each a program of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from torchrl_gpu import configs

FAMILIES = ("packing_dqn.yaml", "packing_irregular.yaml", "navigation_iqn.yaml", "navigation_ac_iqn.yaml")
GRAPHED = ("packing_dqn.yaml", "navigation_iqn.yaml", "navigation_ac_iqn.yaml")  # those that offer graphs
_PYTHON = (sys.executable, "-m")


class Part(NamedTuple):
    """One part.

    Attributes:
        name: For files and options.
        title: For people.
        command: A program and its arguments; JSON is written to `output`, or to the standard output.
        limit_s: Seconds after which it is ended.
        output: Where it writes JSON; None where that is its standard output.
        avoid: What a user writes to do without that which failed.
        cuda_only: Whether it says nothing on a CPU.
    """

    name: str
    title: str
    command: tuple[str, ...]
    limit_s: float
    output: Path | None = None
    avoid: str = ""
    cuda_only: bool = False


def parts(device: str, quick: bool, folder: Path) -> list[Part]:
    """All of them, in the order in which they run.

    Args:
        device: Such as "cuda:0" or "cpu".
        quick: A look in minutes: small sizes, few seconds.
        folder: Where they write.
    """
    eager = "--model.env.backend=eager"
    return [
        Part("doctor", "What works here", (*_PYTHON, "torchrl_gpu.cli", "doctor", "--json", "--full"), 900),
        Part(
            "tests",
            "Tests that need a GPU",
            (*_PYTHON, "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "--tb=short", "--durations=10"),
            3600,
            avoid="the option that the failed test is named after",
            cuda_only=True,
        ),
        _module("parity", "Every backend beside the reference", device, quick, folder, 1800, avoid=eager),
        _module("timings", "Steps and kernels of the shipped runs", device, quick, folder, 1800, avoid=eager),
        Part(
            "kernels",
            "z-maps of every backend, and the ceilings above them",
            (*_PYTHON, "benchmarks.kernels", *_kernels(quick), *_to(folder, "kernels", device)),
            1800,
            folder / "kernels.json",
            eager,
        ),
        Part(
            "packing",
            "Packing steps beside the NumPy reference",
            (*_PYTHON, "torchrl_gpu.cli", "bench", "packing", *_packing(quick), *_to(folder, "packing", device)),
            1800,
            folder / "packing.json",
            eager,
        ),
        Part(
            "marine",
            "Navigation steps",
            (*_PYTHON, "benchmarks.marine", "--no-peers", *_marine(quick), *_to(folder, "marine", device)),
            1800,
            folder / "marine.json",
            "--no-compiled where torch.compile fails",
        ),
        Part(
            "frames",
            "JPEG and H.264 of frames on the device",
            (*_PYTHON, "benchmarks.frame_pipeline", *_frames(quick), *_to(folder, "frames", device)),
            900,
            folder / "frames.json",
            "GpuFramePipeline(device='cpu', h264='x264')",
        ),
        *(
            _fit(name, graphs, device, quick, folder)
            for name in FAMILIES
            for graphs in ((False, True) if name in GRAPHED else (False,))
        ),
    ]


def _module(
    name: str, title: str, device: str, quick: bool, folder: Path, limit_s: float, *words: str, avoid: str = ""
) -> Part:
    """A module of this folder."""
    path = folder / f"{name}.json"
    command = (*_PYTHON, f"benchmarks.gpu.{name}", "--device", device, "--output", str(path), *words)
    return Part(name, title, (*command, "--quick") if quick else command, limit_s, path, avoid)


def _fit(config: str, graphs: bool, device: str, quick: bool, folder: Path) -> Part:
    if config not in configs.names():
        raise ValueError(f"benchmarks.gpu: want a shipped config; got {config!r}")
    family, path = config.removesuffix(".yaml"), folder / f"fit_{config.removesuffix('.yaml')}{'_graphs' * graphs}.json"
    command = (*_PYTHON, "benchmarks.gpu.fit", config, "--device", device, "--output", str(path))
    command += ("--graphs",) * graphs + ("--quick",) * quick
    title = f"A short fit of {family}{', by graphs' if graphs else ''}"
    avoid = "--model.cuda_graphs=false --model.graph_updates=false" if graphs else "--trainer.accelerator=cpu"
    return Part(path.stem, title, command, 900, path, avoid, cuda_only=graphs)


def _to(folder: Path, name: str, device: str) -> tuple[str, ...]:
    return "--device", device, "--output", str(folder / f"{name}.json")


def _kernels(quick: bool) -> list[str]:
    if quick:
        return shlex.split(
            "--irregular_envs 2 --box_envs 8 --step_envs 4 --irregular_step_envs 1 --footprint 8 --resolution 24"
            " --visible 2 --seconds 0.05 --repetitions 2"
        )
    return shlex.split("--irregular_envs 1 64 512 --box_envs 64 1024 65536 --step_envs 1024 16384")


def _packing(quick: bool) -> list[str]:
    small = "--num_envs 4 --num_objects 3 --resolution 24 --seconds 0.1 --repetitions 2 --parity_steps 5"
    return shlex.split(small if quick else "--num_envs 64 1024 16384")


def _marine(quick: bool) -> list[str]:
    small = "--settings 1 --num_envs 4 --seconds 0.1 --repetitions 2 --no-compiled"
    return shlex.split(small if quick else "--num_envs 64 1024 16384")


def _frames(quick: bool) -> list[str]:
    return shlex.split("--seconds 0.1 --repetitions 2") if quick else []
