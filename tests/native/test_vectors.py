"""Results of vectors of every width.

Kernels are compiled without the widest instructions of this machine.
"""

from __future__ import annotations

import ctypes
import itertools
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.envs.packing.kernels import parity
from tests.envs.packing.scenes import CELL, RULES, Scene, bin_of, scene, scene_in
from tests.native.compilers import need_compiler
from torchrl_gpu import native
from torchrl_gpu.envs.counter_rng import draw_bits
from torchrl_gpu.envs.packing.kernels import compiled
from torchrl_gpu.native import build
from torchrl_gpu.policies.exploration import random_legal

# Flags, and macros that a compiler defines for the instructions which are left.
WIDTHS = {
    "32 bytes": (("-mno-avx512f",), {"__AVX512F__": False}),
    "16 bytes": (("-mno-avx512f", "-mno-avx2", "-mno-avx"), {"__AVX512F__": False, "__AVX2__": False}),
}
UNITS = (None, CELL, CELL / 64)


@pytest.fixture(params=[pytest.param("32 bytes", marks=pytest.mark.soak), "16 bytes"], scope="module")
def narrower(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels compiled for narrower vectors, beside those of the cache."""
    need_compiler()
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("has vectors of one width")
    flags, macros = WIDTHS[request.param]
    words = [*build.compiler(), "-march=native", *flags, "-dM", "-E", "-x", "c++", "/dev/null"]
    defined = subprocess.run(words, capture_output=True, text=True, check=False)
    if defined.returncode:
        pytest.skip("the compiler has no flags for it")
    if {name: f"{name} 1" in defined.stdout for name in macros} != macros:
        pytest.skip("the compiler takes the flags and keeps the instructions, as zig does")
    return compiled_with(flags, tmp_path_factory.mktemp("cache"))


def compiled_with(flags: tuple[str, ...], folder: Path) -> ctypes.CDLL:
    """The kernels as `$CXXFLAGS` and `$TORCHRL_GPU_CACHE` have them made."""
    with pytest.MonkeyPatch.context() as patch:
        # It compiles in half the time, since vectors are written out.
        patch.setenv("CXXFLAGS", " ".join((*flags, "-O1")))
        patch.setenv("TORCHRL_GPU_CACHE", str(folder))
        return build.library.__wrapped__()


@pytest.fixture(autouse=True)
def in_use(narrower: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (native, native.operators):
        monkeypatch.setattr(module, "library", lambda: narrower)


def assert_parity(s: Scene, seed: int) -> None:
    """Maps, growth, placements and stored maps are those of the reference."""
    parity.assert_parity(compiled, s)
    parity.assert_placed(compiled, s, parity.some_placement(s, seed))
    parity.assert_kept_maps_follow(compiled, s, seed, steps=1)


@pytest.mark.parametrize("kind", parity.KINDS)
def test_small_bins(kind: str) -> None:
    for seed, stability in itertools.product(range(3), RULES):
        assert_parity(scene(seed, kind, stability=stability).counted(UNITS[seed % 3]), seed)


@pytest.mark.parametrize("kind", parity.KINDS)
@pytest.mark.parametrize("width", [7, 8, 9, 15, 16, 17, 31, 33, 65])
def test_bins_about_as_wide_as_a_vector(width: int, kind: str) -> None:
    for seed, (cells, step) in enumerate(itertools.product([(3, width), (width, 3)], (1, 2, 3))):
        bin_ = bin_of(cells, step=step, stability=RULES[seed % len(RULES)])
        rng = np.random.default_rng(seed)
        s = scene_in(bin_, rng, kind, num_envs=1, most_items=2, most_orientations=1, most_visible=2)
        for unit in UNITS if kind != "boxes" else UNITS[:1]:
            assert_parity(s.counted(unit), seed)


def test_small_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    key, counter = torch.randint(-(2**63), 2**63 - 1, (2, 1003), generator=torch.Generator().manual_seed(0))
    mask = torch.rand(67, 301, generator=torch.Generator().manual_seed(1)) < torch.linspace(0, 1, 67)[:, None]
    came = []
    for compiled_operators in (True, False):
        monkeypatch.setattr(native, "runs_on", lambda tensor, answer=compiled_operators: answer)
        torch.manual_seed(3)
        came.append((draw_bits(key, counter), random_legal(mask)))
    assert all(torch.equal(a, b) for a, b in zip(*came, strict=True))
