"""The memory of an environment.

What is measured in a few is what many take. What cannot fit is refused.
"""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from tests.envs.packing.settings import assert_same, packing, play
from torchrl_gpu.envs import PackingEnv, memory
from torchrl_gpu.envs.memory import LiveBytes, Placement, Staging, check_fits, free_bytes, place
from torchrl_gpu.envs.packing import env as packing_env
from torchrl_gpu.envs.packing.kernels import available_backends

CPU = torch.device("cpu")
SMALL_SOLIDS: dict[str, Any] = {"setting": "irregular, on its corners", "stability": "none"}

CASES: dict[str, dict[str, object]] = {
    "bpp10": {},
    "bpp10, support, K = 5": {"setting": "support", "visible_items": 5},
    "bpp10, masks only": {"include": ()},
    "irregular, K = 5": {**SMALL_SOLIDS, "visible_items": 5},
    "irregular, com": {"setting": "irregular, on its balance"},
    "irregular, judged": {"setting": "irregular, judged"},
    "irregular, support, every cell": {"setting": "irregular, on its support", "grid_step": 1},
    "bpp10, copies": {"copy_observations": True},
}
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(problem), reason=problem))
    for name, problem in available_backends(CPU).items()
    if name in ("eager", "compiled")
]


def peak_of(make: Callable[[int], PackingEnv], num_envs: int) -> int:
    peak, step = 0, None
    gc.freeze()
    with LiveBytes() as memory:
        env = make(num_envs)
        current = env.reset()
        # Constructors of TorchRL leave tensors in reference cycles.
        gc.collect()
        for _ in range(4):
            current.set("action", current["action_mask"].int().argmax(1))
            memory.restart_peak()
            step = env.step(current)
            shown = env._step_mdp(step)
            current = env.maybe_reset(shown.set("done", torch.ones_like(shown["done"])))
            peak = max(peak, memory.peak)
    gc.unfreeze()
    assert step is not None
    return peak


def taken(make: Callable[[int], PackingEnv], fewer: int = 8, more: int = 12) -> float:
    """Return the bytes that one more environment takes among many.

    What is the same for any number cancels.
    """
    return (peak_of(make, more) - peak_of(make, fewer)) / (more - fewer)


# -- a few say how much many take --


@pytest.mark.parametrize("case", CASES)
def test_what_is_measured_in_a_few_is_what_many_take(case: str) -> None:
    def make(num_envs: int) -> PackingEnv:
        return packing(num_envs=num_envs, backend="eager" if "support" in case else "auto", **CASES[case])

    assert make(1).bytes_per_env == pytest.approx(taken(make), rel=0.1)


def test_what_is_left_out_takes_nothing_while_it_is_built() -> None:
    """Specs are in reference cycles.

    One of maps that are left out would stay until the collector runs.
    """
    changes: dict[str, object] = {"include": ("z_map",), "visible_items": 8}

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
    assert per_env <= packing("irregular", 2, **changes).bytes_per_env


def test_measuring_changes_nothing() -> None:
    env, other = packing("irregular, judged"), packing("irregular, judged")
    drawn = torch.get_rng_state()
    assert env.bytes_per_env > 0
    assert torch.equal(torch.get_rng_state(), drawn)
    for first, second in zip(play(env, 3)[0], play(other, 3)[0], strict=True):
        assert_same(first, second)


@pytest.mark.parametrize("setting", ["three visible", "irregular, on its balance"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_always_taken_is_less_and_not_much_less(setting: str, backend: str) -> None:
    env = packing(setting, backend=backend)
    assert env.least_bytes() <= env.bytes_per_env <= memory.MOST_TIMES_LEAST * env.least_bytes()


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "eager"])
@pytest.mark.parametrize("setting", ["bpp10", "support", "irregular"])
def test_what_is_measured_is_what_a_gpu_allocates(setting: str, backend: str) -> None:
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
    assert 0.5 * per_env <= packing(setting, device="cuda", backend=backend).bytes_per_env <= 2 * per_env


# -- at construction --


def test_it_is_measured_only_where_it_may_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    each = packing().bytes_per_env
    least = packing().least_bytes()
    asked: list[int] = []
    measure = packing_env.measure_bytes_per_env
    monkeypatch.setattr(packing_env, "measure_bytes_per_env", lambda *args: asked.append(1) or measure(*args))

    def with_free(free: int) -> None:
        monkeypatch.setattr(memory, "free_bytes", lambda device: free)

    with_free(8 * 20 * least)
    packing(num_envs=20)
    assert not asked
    with_free(20 * each)
    packing(num_envs=20)
    assert asked == [1]
    with_free(20 * each - 1)
    with pytest.raises(ValueError, match=r"^PackingEnv: num_envs .*19 on cpu .* 20$"):
        packing(num_envs=20)
    # This is refused without measuring.
    with_free(20 * least - 1)
    with pytest.raises(ValueError, match=r"^PackingEnv: num_envs .*19 on cpu .* 20$"):
        packing(num_envs=20)
    assert asked == [1, 1]


# -- refusals --


@pytest.mark.parametrize(
    ("number", "each", "device", "free", "message"),
    [
        (1001, 1024, "cpu", 1000 << 10, "1,000 on cpu (1000.0 KiB free, 1.0 KiB each), not 1,001"),
        (10**6, 47_616, "cuda:0", int(35.2 * 2**30), "793,760 on cuda:0 (35.2 GiB free, 46.5 KiB each)"),
        (2, 800, "cpu", 800, "1 on cpu (800 B free"),
        (2, 3 << 40, "cpu", 3 << 40, "1 on cpu (3.0 TiB free"),
    ],
)
def test_too_many_are_refused_with_the_number_that_would_fit(
    number: int, each: int, device: str, free: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    check_fits(free // each, each, torch.device(device))
    with pytest.raises(ValueError, match=f"^PackingEnv: num_envs .*at most {re.escape(message)}"):
        check_fits(number, each, torch.device(device))


def test_a_device_that_says_nothing_is_not_checked() -> None:
    assert free_bytes(torch.device("meta")) is None
    check_fits(10**12, 10**12, torch.device("meta"))


def test_free_memory_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "meminfo"
    monkeypatch.setattr(memory, "_MEMINFO", account)
    assert free_bytes(CPU) is None
    account.write_text("MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    2048 kB\nSwapFree: 5 kB\n")
    assert free_bytes(CPU) == 2048 * 1024
    # Kernels before 3.14 have no MemAvailable.
    account.write_text("MemTotal:  9000 kB\n")
    assert free_bytes(CPU) is None


def test_free_memory_on_cuda_counts_what_torch_holds_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200)
    assert free_bytes(torch.device("cuda:0")) == 1300


@pytest.mark.parametrize(
    ("wanted", "free", "home"),
    [
        ("auto", 126, "cuda:0"),
        ("auto", 124, "cpu"),
        ("auto", None, "cuda:0"),
        ("device", 1, "cuda:0"),
        ("host", 10**6, "cpu"),
    ],
)
def test_a_store_goes_where_it_fits(
    wanted: Placement, free: int | None, home: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: free)
    with caplog.at_level(logging.WARNING):
        assert place("ClipReplay", "frames", 100, torch.device("cuda:0"), wanted) == torch.device(home)
    said = "ClipReplay: its frames take 100 B and cuda:0 has 124 B free: they are kept in host memory and staged"
    assert [record.getMessage() for record in caplog.records] == ([said] if free == 124 else [])
    # There is no other place.
    assert place("ClipReplay", "frames", 100, CPU, "auto") == CPU


# -- the counter of live bytes, by hand -------------------------------------------------------------------------------


def test_bytes_by_hand() -> None:
    with LiveBytes() as counter:
        kept = torch.zeros(10)
        for _ in range(3):
            gone = kept + 1
        # The next sum is made before the last one is freed.
        assert (counter.live, counter.peak) == (80, 120)
        del gone
        assert counter.live == 40
        counter.restart_peak()
        view = kept[:5]
        assert counter.peak == 40
    assert len(view) == 5


def test_what_was_there_before_is_not_counted() -> None:
    before = torch.zeros(100)
    with LiveBytes() as counter:
        before.add_(1)
        view = before[:2]
        assert (counter.live, counter.peak) == (0, 0)
    assert len(view) == 2


def test_the_counter_counts_storages_once() -> None:
    with LiveBytes() as counter:
        a = torch.zeros(10)
        b = a.view(2, 5)[1:]
        assert counter.live == 40
        del a
        # A view keeps all of it.
        assert counter.live == 40
        del b
        assert (counter.live, counter.peak) == (0, 40)

    with LiveBytes() as counter:
        torch.empty(1).resize_(100)
        assert counter.peak == 400


# -- copies from host memory ------------------------------------------------------------------------------------------

CUDA = torch.device("cuda", 0)


class Copies:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, can_pin: bool) -> None:
        self.made: list[object] = []

        def pin(tensor: Any, *args: object) -> Any:
            self.made.append("pin")
            if not can_pin:
                raise RuntimeError("no more memory can be pinned")
            return tensor

        def to(tensor: Any, device: object, *, non_blocking: bool) -> Any:
            self.made.append((device, non_blocking))
            return tensor

        for kind in (Tensor, TensorDict):
            monkeypatch.setattr(kind, "pin_memory", pin)
            monkeypatch.setattr(kind, "to", to)


@pytest.mark.parametrize("held", [torch.arange(3), TensorDict({"a": torch.arange(3)}, [3])], ids=["tensor", "tensors"])
def test_what_can_be_pinned_does_not_wait(held: object, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(monkeypatch, can_pin=True)
    assert Staging("X", "clips", CUDA)(held) is held
    assert copies.made == ["pin", (CUDA, True)]


def test_what_cannot_be_pinned_is_copied_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copies, staging = Copies(monkeypatch, can_pin=False), Staging("ClipReplay", "clips", CUDA)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert torch.equal(staging(torch.arange(3)), torch.arange(3))
    assert copies.made == ["pin", (CUDA, False), (CUDA, False), (CUDA, False)]
    assert [record.getMessage() for record in caplog.records] == [
        "ClipReplay: clips are copied from pageable memory, as pinning failed: no more memory can be pinned"
    ]


def test_nothing_is_pinned_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(monkeypatch, can_pin=True)
    Staging("X", "clips", torch.device("cpu"))(torch.arange(3))
    assert copies.made == [(torch.device("cpu"), False)]
