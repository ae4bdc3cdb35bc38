"""The parts of `make gpu`, each a program of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# Of most worth first: what a short loan of a GPU must tell.
FAMILIES = (
    "packing.yaml",
    "packing_dqn.yaml",
    "navigation_iqn.yaml",
    "packing_irregular.yaml",
    "navigation_ac_iqn.yaml",
)


# Of training, on a GPU.
_QUICK_SECONDS = 12.0
_WITHOUT_GRAPHS = "--model.cuda_graphs=false --model.graph_updates=false, or --trainer.accelerator=cpu"


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
    """List all parts in the order in which they run.

    For a quick look the most valuable come first.

    Args:
        device: Such as "cuda:0" or "cpu".
        quick: A look in minutes: small sizes, few seconds.
        folder: Where they write.
    """

    def part(
        name: str, title: str, module: str, words: str, limit_s: float, avoid: str, cuda_only: bool = False
    ) -> Part:
        """A program that takes `--device` and `--output`."""
        path = folder / f"{name}.json"
        command = (sys.executable, "-m", *module.split(), *words.split(), "--device", device, "--output", str(path))
        return Part(name, title, command, limit_s, path, avoid, cuda_only)

    eager, look = "--model.env.backend=eager", "--quick" if quick else ""
    kernels = "--irregular_envs 1 64 512 --box_envs 64 1024 65536 --step_envs 1024 16384"
    packing = marine = "--num_envs 64 1024 16384"
    frames = ""
    if quick:
        kernels = "--irregular_envs 2 --box_envs 8 --step_envs 4 --irregular_step_envs 1 --footprint 8 --resolution 24"
        kernels += " --visible 2 --seconds 0.05 --repetitions 2"
        packing = "--num_envs 4 --num_objects 3 --resolution 24 --seconds 0.1 --repetitions 2 --parity_steps 5"
        marine = "--settings 1 --num_envs 4 --seconds 0.1 --repetitions 2 --no-compiled"
        frames = "--seconds 0.1 --repetitions 2"
    doctor = (sys.executable, "-m", "torchrl_gpu.cli", "doctor", "--json", "--full")
    tests = (sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "--tb=short")
    failed = "the option that the failed test is named after"
    title = "z-maps of every backend, and the ceilings above them"
    found = [
        Part("doctor", "What works here", doctor, 900),
        Part("tests", "Tests that need a GPU", (*tests, "--durations=10"), 3600, avoid=failed, cuda_only=True),
    ]
    found += [
        part("parity", "Every backend beside the reference", "benchmarks.gpu.parity", look, 1800, eager),
        part("timings", "Steps and kernels of the shipped runs", "benchmarks.gpu.timings", look, 1800, eager),
    ]
    found += [
        part("kernels", title, "benchmarks.kernels", kernels, 1800, eager),
        part("packing", "Packing steps beside NumPy", "torchrl_gpu.cli bench packing", packing, 1800, eager),
        part("marine", "Navigation steps", "benchmarks.marine --no-peers", marine, 1800, "--no-compiled"),
    ]
    words = "GpuFramePipeline(device='cpu', h264='x264')"
    title = "JPEG and H.264 of frames on the device"
    found.append(part("frames", title, "benchmarks.frame_pipeline", frames, 900, words))
    fits = _fits(part, device, quick)
    doctor, *others = found
    # What a short loan of a GPU must tell comes first.
    return [doctor, *fits, *others] if quick else [*found, *fits]


def _fits(part: Callable[..., Part], device: str, quick: bool) -> list[Part]:
    """Short trainings of shipped configs by graphs and without, and one to its table."""
    look = ""
    if quick:
        look = f"--seconds {_QUICK_SECONDS:g}" if device.startswith("cuda") else "--quick"
    found = []
    for config in FAMILIES:
        name, module = f"fit_{config.removesuffix('.yaml')}", f"benchmarks.gpu.fit {config}"
        title = f"A short fit of {config.removesuffix('.yaml')}"
        found.append(part(name, title, module, look, 900, _WITHOUT_GRAPHS))
        found.append(
            part(
                f"{name}_plain",
                f"{title}, without graphs",
                f"{module} --plain",
                look,
                900,
                "--trainer.accelerator=cpu",
                True,
            )
        )
    table = part("table", "packing.yaml trained to its table", "benchmarks.fit", "", 1800, _WITHOUT_GRAPHS, True)
    return [table, *found]
