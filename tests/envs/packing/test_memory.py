"""The memory of an environment: what is estimated is what a step takes; what cannot fit is refused."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.envs.packing.settings import packing
from tests.native.compilers import need_compiler
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.kernels import available_backends
from torchrl_gpu.envs.packing.memory import bytes_per_env, check_fits, free_bytes
from torchrl_gpu.envs.packing.protocols import REFERENCE_SETTINGS, make_protocol
from torchrl_gpu.live_bytes import LiveBytes

CPU = torch.device("cpu")
SMALL_SOLIDS: dict[str, Any] = {"setting": "irregular, on its corners", "stability": "none"}

CASES: dict[str, dict[str, Any]] = {
    "bpp10": {},
    "bpp10, axis, corners": {"setting": "corners"},
    "bpp10, support": {"setting": "support"},
    "bpp10, K = 5": {"visible_items": 5},
    "bpp10, support, K = 5": {"setting": "support", "visible_items": 5},
    "bpp10, masks only": {"include": ()},
    "bpp10, heights": {"include": ("z_map",)},
    "bpp10, objective": {"setting": "objective"},
    "bpp10, by volume": {"order": "volume"},
    "coarse grid, support": {"setting": "coarse grid"},
    "oblong": {"setting": "oblong"},
    "irregular": {**SMALL_SOLIDS, "visible_items": 1},
    "irregular, K = 5": {**SMALL_SOLIDS, "visible_items": 5},
    "irregular, masks only": {**SMALL_SOLIDS, "include": ()},
    "irregular, heights": {**SMALL_SOLIDS, "include": ("z_map",)},
    "irregular, tops": {**SMALL_SOLIDS, "include": ("item_top",)},
    "irregular, every cell": {**SMALL_SOLIDS, "grid_step": 1},
    "irregular, corners": {"setting": "irregular, on its corners"},
    "irregular, support": {"setting": "irregular, on its support"},
    "irregular, com": {"setting": "irregular, on its balance"},
    "irregular, com, every cell": {"setting": "irregular, on its balance", "grid_step": 1},
    "irregular, judged": {"setting": "irregular, judged"},
    "irregular, support, every cell": {"setting": "irregular, on its support", "grid_step": 1},
}
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(problem), reason=problem))
    for name, problem in available_backends(CPU).items()
    if name in ("eager", "compiled")
]


def estimate(env: PackingEnv, **changes: Any) -> int:
    given = {"visible_items": env.visible_items, "num_items": env.placements.shape[1], "include": env.include}
    given["judged"] = env.judge == "com"
    return bytes_per_env(env.bin, env.catalogue, **given | {"backend": env.kernels.backend} | changes)


def peak_of(make: Callable[[int], PackingEnv], num_envs: int) -> int:
    """Most bytes alive during four steps of the usual loop."""
    peak, step = 0, None
    with LiveBytes() as memory:
        env = make(num_envs)
        current = env.reset()
        gc.collect()  # what TorchRL leaves in cycles while it is built
        for _ in range(4):
            current.set("action", current["action_mask"].int().argmax(1))
            memory.restart_peak()
            step, current = env.step_and_maybe_reset(current)
            peak = max(peak, memory.peak)
    assert step is not None
    return peak


def measured(make: Callable[[int], PackingEnv], fewer: int = 128, more: int = 192) -> float:
    """Bytes that one more environment takes: what is the same for any number cancels."""
    return (peak_of(make, more) - peak_of(make, fewer)) / (more - fewer)


# -- estimates --


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_what_a_step_takes(case: str, backend: str) -> None:
    def make(num_envs: int) -> PackingEnv:
        return packing(num_envs=num_envs, backend=backend, **CASES[case])

    per_env = measured(make)
    assert per_env <= estimate(make(2)) <= 2 * per_env


def test_what_is_left_out_takes_nothing_while_it_is_built() -> None:
    """Specs are in reference cycles: one of maps that are left out would stay until the collector comes round."""
    changes: dict[str, Any] = {"include": ("z_map",), "visible_items": 8}

    def built(num_envs: int) -> int:
        with LiveBytes() as memory:
            packing("irregular", num_envs, **changes)
        return memory.peak

    gc.collect()
    gc.disable()
    try:
        per_env = (built(24) - built(8)) / 16
    finally:
        gc.enable()
    assert per_env <= estimate(packing("irregular", 2, **changes))


def test_a_judge_takes_the_windows_that_it_looks_at() -> None:
    need_compiler()

    def make(num_envs: int) -> PackingEnv:
        coarse = {"resolution": 50, "grid_step": 25, "orientations": "fixed", "include": ()}
        return packing("irregular, judged", num_envs, backend="compiled", **coarse)

    per_env = measured(make)
    assert estimate(make(2), judged=False) < per_env <= estimate(make(2)) <= 2 * per_env


@pytest.mark.parametrize("name", ["rs", "discrete125", "free125"])
def test_the_protocols_of_the_small_bin(name: str) -> None:
    def make(num_envs: int) -> PackingEnv:
        return make_protocol(name, num_envs, device="cpu", seed=0, backend="eager")

    per_env = measured(make)
    assert per_env <= estimate(make(2)) <= 2 * per_env


def test_by_hand() -> None:
    # bpp10 with nothing large to see and kernels that need no room: X·Y = 100, J = 2, J·Gx·Gy = 200, T = 100, and
    # items 8 + 2 · 16 = 40.
    #   observation 4 · 100 + 40 + 200                                     =   640
    #   held        3 · 640 + the heights 800 + 20 · 100 + 2 · 32 + 512    = 5 296
    #   stepping    400 + 40 + (800 + 200)                                 = 1 440
    #   restarting  640 + 40 + max(0, 800 + 200 + 400, 40 · 100)           = 4 680
    env = packing(include=(), backend="eager")
    assert estimate(env, backend="compiled") == 5_296 + 4_680


def test_backends_with_kernels_of_their_own_take_less() -> None:
    env = packing("three visible", include=(), backend="eager")  # with more to see, what is seen decides
    compiled, triton, eager = (estimate(env, backend=name) for name in ("compiled", "triton", "eager"))
    assert compiled < triton < eager


@pytest.mark.parametrize(
    "change", [{"visible_items": 2}, {"num_items": 200}, {"include": ("z_map", "item_top")}], ids=str
)
def test_more_of_anything_takes_more(change: dict[str, Any]) -> None:
    env = packing(include=("z_map",), backend="eager")
    assert estimate(env, **change) > estimate(env)


def test_nothing_but_shapes_is_looked_at() -> None:
    env = packing("irregular")
    meta = env.catalogue.to(torch.device("meta"))
    assert bytes_per_env(
        env.bin, meta, visible_items=2, num_items=8, include=env.include, backend=env.kernels.backend
    ) == estimate(env)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "eager"])
@pytest.mark.parametrize("setting", ["bpp10", "support", "irregular"])
def test_the_estimate_holds_on_a_gpu(setting: str, backend: str) -> None:
    def peak(num_envs: int) -> int:
        env = packing(setting, num_envs, device="cuda", backend=backend)
        current = env.reset()
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(4):
            current.set("action", current["action_mask"].int().argmax(1))
            _, current = env.step_and_maybe_reset(current)
        return torch.cuda.max_memory_allocated()

    per_env = (peak(2048) - peak(1024)) / 1024
    assert 0.5 * per_env <= estimate(packing(setting, device="cuda", backend=backend)) <= 2 * per_env


# -- refusals --


def test_too_many_are_refused_with_the_number_that_would_fit() -> None:
    check_fits(1000, 1024, CPU, budget=1000 * 1024)
    with pytest.raises(ValueError) as refused:
        check_fits(1001, 1024, CPU, budget=1000 * 1024)
    assert str(refused.value) == (
        "PackingEnv: want at most 1,000 environments on cpu (1000.0 KiB free, 1.0 KiB each); got 1,001"
    )


def test_the_message_reads_as_a_person_would_say_it() -> None:
    with pytest.raises(ValueError) as refused:
        check_fits(1_000_000, 47_616, torch.device("cuda:0"), budget=int(35.2 * 2**30))
    assert str(refused.value) == (
        "PackingEnv: want at most 793,760 environments on cuda:0 (35.2 GiB free, 46.5 KiB each); got 1,000,000"
    )


@pytest.mark.parametrize(("size", "said"), [(800, "800 B"), (1 << 20, "1.0 MiB"), (3 << 40, "3.0 TiB")])
def test_units(size: int, said: str) -> None:
    with pytest.raises(ValueError, match=rf"\({said} free"):
        check_fits(2, size, CPU, budget=size)


def test_a_device_that_says_nothing_is_not_checked() -> None:
    assert free_bytes(torch.device("meta")) is None
    check_fits(10**12, 10**12, torch.device("meta"))


def test_free_memory_of_a_machine(tmp_path: Path) -> None:
    account = tmp_path / "meminfo"
    account.write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    2048 kB\nSwapFree: 5 kB\n")
    assert free_bytes(CPU, account) == 2048 * 1024
    account.write_text("MemTotal:  9000 kB\n")  # kernels before 3.14
    assert free_bytes(CPU, account) is None
    assert free_bytes(CPU, tmp_path / "absent") is None


def test_free_memory_on_cuda_counts_what_torch_holds_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    assert free_bytes(torch.device("cuda:0")) == 1300


def test_reference_settings_of_a_usual_size_fit() -> None:
    # 8 GiB: 100 000 small bins, 100 large ones with 20 visible items
    for name, num_envs in (("bpp10", 100_000), ("irregular", 100)):
        arguments = REFERENCE_SETTINGS[name] | {"items": "random" if name == "bpp10" else "procedural"}
        env = PackingEnv(1, **arguments | {"device": "cpu", "seed": 0})
        check_fits(num_envs, estimate(env, backend="triton"), CPU, budget=8 << 30)


# -- the counter itself --


def test_the_counter_counts_storages_once() -> None:
    with LiveBytes() as memory:
        a = torch.zeros(10)
        b = a.view(2, 5)[1:]
        assert memory.live == 40
        del a
        assert memory.live == 40  # a view keeps all of it
        del b
        assert memory.live == 0
        assert memory.peak == 40


def test_the_counter_sees_temporaries() -> None:
    x = torch.zeros(100)
    with LiveBytes() as memory:
        y = (x + 1) * 2
        assert memory.live == 400
        assert memory.peak == 800
        assert memory.peak_operator == "aten.mul.Tensor"
        memory.restart_peak()
        y.add_(1)
        assert memory.peak == 400


def test_the_counter_leaves_out_what_was_there_before() -> None:
    x = torch.zeros(100)
    with LiveBytes() as memory:
        x.add_(1)
        y = x.view(10, 10)
        assert memory.live == 0
        del y
    assert memory.peak == 0


def test_the_counter_follows_what_grows() -> None:
    with LiveBytes() as memory:
        x = torch.empty(1)
        x.resize_(100)
        assert memory.live == 400
