"""Self-tests of kernel backends.

The tests are about their comparisons, and the fallback from a backend that fails.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.envs.packing.kernels.broken import OWN_CELLS
from tests.native.compilers import need_compiler
from tests.records import with_values
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing import kernels
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.envs.packing.kernels import eager, get_kernels
from torchrl_gpu.envs.packing.kernels import self_tests as tests_of_kernels
from torchrl_gpu.envs.packing.types import STABILITY_RULES, Bin
from torchrl_gpu.system import self_tests
from torchrl_gpu.system.self_tests import SelfTest

BROKEN = "tests.envs.packing.kernels.broken"
CPU = torch.device("cpu")
WAYS = {
    "compilation fails": "drop_map of boxes, rule none: RuntimeError: PTX assembly aborted ptxas: unknown architecture",
    "drops solids by com wrong": "drop_map of solids, rule com: ",
    "places nothing": "place of boxes, rule none: ",
    "grows by no number": "pile_growth of boxes, rule none: ",
    "miscounts": "advance of boxes, rule none: 5 of 5 numbers of num_packed are not those of eager",
}


@pytest.fixture(autouse=True)
def nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which nothing has been tried, with a "triton" that can be broken."""
    (tmp_path / "cache").mkdir(mode=0o700)
    # It compiles in the usual cache: a second time would take long.
    need_compiler()
    monkeypatch.setenv("TORCHRL_GPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(self_tests, "KNOWN_FAILURES", {})
    monkeypatch.setattr(tests_of_kernels, "_LAUNCHED", {})
    monkeypatch.setitem(kernels.BACKENDS, "triton", BROKEN)
    monkeypatch.setitem(kernels.PREFERRED, "cpu", ("triton", "eager"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    kernels.forget_choices()
    yield
    kernels.forget_choices()


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Self-tests that run in this process, to save time.

    The list names those that ran.
    """
    tried = []

    def here(test: SelfTest) -> str:
        tried.append(test.name)
        return self_tests.run_here(lambda: self_tests.function_of(test.function)(*test.arguments))

    monkeypatch.setattr(self_tests, "_run_in_subprocess", here)
    monkeypatch.setattr(tests_of_kernels, "STABILITY_RULES", ("none", "com"))
    return tried


def boxes_env(**changes: object) -> PackingEnv:
    arguments = {"bin_size": (6.0, 5.0, 5.0), "resolution": OWN_CELLS, "items": RandomBoxes(1, 3), "seed": 3}
    return PackingEnv(4, device="cpu", **arguments | changes)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [line for line in said if not line.startswith("self-test of")]


# -- what is compared -------------------------------------------------------------------------------------------------


def test_a_backend_that_is_right_passes() -> None:
    assert tests_of_kernels.run_every_kind(kernels.BACKENDS["compiled"], "cpu") == ""


@pytest.mark.parametrize("way", WAYS)
def test_what_is_wrong_is_found_and_named(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", way)
    assert tests_of_kernels.run_every_kind(BROKEN, "cpu").startswith(WAYS[way])


@pytest.mark.parametrize("job", tests_of_kernels.JOBS)
def test_every_job_is_tried_on_every_kind_by_every_rule(job: str) -> None:
    jobs = {name: getattr(eager, name) for name in tests_of_kernels.JOBS}

    def fails(*_: object) -> None:
        raise RuntimeError("it was called")

    rules = {"drop_map": list(STABILITY_RULES), "upheld": ["load_bearing"], "bear": ["load_bearing"]}
    for rule in rules.get(job, ["none", "corners"]):
        for setting in tests_of_kernels.settings(rule, CPU):
            found = tests_of_kernels.difference(jobs | {job: fails}, setting)
            assert found == f"{job} of {setting.name}: RuntimeError: it was called"


def test_the_packings_have_legal_placements_and_others_and_grow() -> None:
    seen: list[tuple[float, float]] = []

    def drop_map(*arguments: object) -> object:
        z_map, legal = eager.drop_map(*arguments)  # type: ignore[arg-type]
        seen.append((float(legal.float().mean()), float(z_map[legal].max())))
        return z_map, legal

    jobs = {name: getattr(eager, name) for name in tests_of_kernels.JOBS} | {"drop_map": drop_map}
    for rule in STABILITY_RULES:
        for setting in tests_of_kernels.settings(rule, CPU):
            seen.clear()
            assert tests_of_kernels.difference(jobs, setting) == ""
            assert all(0.02 < share < 0.98 for share, _ in seen), setting.name
            # Something stands on something.
            assert max(highest for _, highest in seen) > 0, setting.name


def test_a_setting_survives_its_file(tmp_path: Path) -> None:
    for setting in tests_of_kernels.settings("com", CPU):
        tests_of_kernels.save(setting, str(tmp_path / "setting.pt"))
        again = tests_of_kernels.load(str(tmp_path / "setting.pt"), CPU)
        assert (again.bin, again.name, again.visible_items) == (setting.bin, setting.name, setting.visible_items)
        assert tests_of_kernels.constants_of(again) == tests_of_kernels.constants_of(setting)
        assert tests_of_kernels.difference({job: getattr(eager, job) for job in tests_of_kernels.JOBS}, again) == ""


def test_of_a_large_catalogue_some_items_are_kept(tmp_path: Path) -> None:
    bin_ = Bin((6.0, 5.0, 5.0), OWN_CELLS)
    catalogue, _ = RandomBoxes(1, 5).build(bin_, "yaw", 10, 1)
    assert catalogue.num_items > tests_of_kernels.MOST_ITEMS
    setting = tests_of_kernels.Setting("many", bin_, catalogue, 2, 3)
    tests_of_kernels.save(setting, str(tmp_path / "setting.pt"))
    again = tests_of_kernels.load(str(tmp_path / "setting.pt"), CPU).catalogue
    assert again.num_items == tests_of_kernels.MOST_ITEMS
    assert (again.bounds, again.least) == (catalogue.bounds, catalogue.least)
    assert torch.equal(again.extent[[0, -1]], catalogue.extent[[0, -1]])


def test_the_stability_of_a_few_placements_of_own_items_may_differ() -> None:
    def turned(number: int) -> Callable[..., object]:
        def drop_map(*arguments: object) -> object:
            z_map, legal = eager.drop_map(*arguments)  # type: ignore[arg-type]
            legal.view(-1)[:number] ^= True
            return z_map, legal

        return drop_map

    setting = next(iter(tests_of_kernels.settings("none", CPU)))
    jobs = {name: getattr(eager, name) for name in tests_of_kernels.JOBS}
    most = int(5 * 2 * 2 * 9 * 8 * 0.01)
    for number, allowed, found in ((1, 0.0, False), (most, 0.01, True), (most + 1, 0.01, False)):
        came = tests_of_kernels.difference(
            jobs | {"drop_map": turned(number)}, with_values(setting, most_wrong=allowed)
        )
        assert (came == "") is found


# -- what follows from it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["compilation fails", "drops solids by com wrong"])
def test_a_backend_that_fails_is_not_taken_which_is_said_once(
    way: str, apart: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BROKEN", way)
    envs = [boxes_env() for _ in range(2)]
    assert {env.kernels.backend for env in envs} == {get_kernels().backend} == {"eager"}
    (line,) = lines(caplog)
    assert line.startswith(f"packing kernels: triton cannot run on cpu, so a slower one will: {WAYS[way]}")
    assert apart == ["the packing kernels 'triton' on cpu"]


def test_the_next_process_knows(apart: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "miscounts")
    for _ in range(3):
        assert get_kernels().backend == "eager"
        self_tests.KNOWN_FAILURES.clear()
        kernels.forget_choices()
    assert len(apart) == 1
    monkeypatch.delenv("BROKEN")
    assert kernels.tested_backends(CPU)["triton"].startswith(WAYS["miscounts"])
    # It is not read again when this test is over.
    monkeypatch.setattr(self_tests, "reads_disk", True)
    self_tests.forget_results()
    assert kernels.tested_backends(CPU)["triton"] == ""
    assert get_kernels().backend == "triton"


def test_a_crash_ends_no_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("BROKEN", "crashes")
    env = boxes_env()
    env.rollout(3)
    assert env.kernels.backend == "eager"
    (line,) = lines(caplog)
    assert "died of SIGABRT" in line


def test_each_device_is_tried_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def failure(name: str, device: torch.device, module: str) -> str:
        asked.append(f"{name} on {device}")
        return "unknown chip" if str(device) == "cuda:1" and name == "triton" else ""

    monkeypatch.setattr(tests_of_kernels, "device_failure", failure)
    taken = [get_kernels("auto", torch.device("cuda", index)).backend for index in (0, 1, 0, 1)]
    assert taken == ["triton", "eager", "triton", "eager"]
    assert asked == ["triton on cuda:0", "triton on cuda:1", "eager on cuda:1"]


# -- in a user's own bin ----------------------------------------------------------------------------------------------


def test_one_that_fails_in_the_users_own_bin_is_not_taken_there(
    apart: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BROKEN", "fails in one bin")
    for _ in range(2):
        env = boxes_env()
        env.rollout(3)
        assert env.kernels.backend == "eager"
    assert boxes_env(bin_size=(5.0, 5.0, 5.0), resolution=5).kernels.backend == "triton"
    (line,) = lines(caplog)
    assert line.endswith("drop_map of a bin of (6, 5) cells: RuntimeError: out of resource: shared memory")
    assert len(apart) == 3


def test_one_that_fails_in_the_process_of_the_run_is_not_taken(
    apart: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert boxes_env().kernels.backend == "triton"
    monkeypatch.setenv("BROKEN", "fails in the process of the run")
    monkeypatch.setenv("RUN", str(os.getpid()))
    # What ran once is not run again.
    assert boxes_env().kernels.backend == "triton"
    monkeypatch.setattr(tests_of_kernels, "_LAUNCHED", {})
    env = boxes_env()
    env.rollout(3)
    assert env.kernels.backend == "eager"
    assert lines(caplog)[0].endswith("RuntimeError: no space left on device")


def test_a_backend_that_was_named_is_refused_where_the_environment_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "fails in one bin")
    message = r"'triton'.* cpu: RuntimeError: out of resource: shared memory$"
    with pytest.raises(ValueError, match=message):
        boxes_env(backend="triton")


def test_a_device_that_is_lost_is_told_and_remembered(apart: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    setting = next(iter(tests_of_kernels.settings("none", CPU)))
    monkeypatch.setenv("BROKEN", "compilation fails")
    working = torch.ones

    def lost(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "ones", lost)
    with pytest.raises(RuntimeError, match=r"'triton' .*cpu.*backend='eager'"):
        tests_of_kernels.launch_failure("triton", setting, BROKEN)
    monkeypatch.setattr(torch, "ones", working)
    monkeypatch.delenv("BROKEN")
    self_tests.KNOWN_FAILURES.clear()
    # This is the next process.
    assert "unknown architecture" in tests_of_kernels.setting_failure("triton", setting, BROKEN)
    assert apart == []


def test_memory_that_is_full_is_no_fault_of_the_kernels(apart: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(importlib.import_module(BROKEN), "drop_map", full)
    setting = next(iter(tests_of_kernels.settings("none", CPU)))
    with pytest.raises(torch.OutOfMemoryError):
        tests_of_kernels.launch_failure("triton", setting, BROKEN)
    with pytest.raises(self_tests.Unavailable, match=r"memory .*full"):
        tests_of_kernels.run_every_kind(BROKEN, "cpu")


def test_results_depend_on_what_kernels_are_compiled_for() -> None:
    settings: list[tests_of_kernels.Setting] = []
    for rule in STABILITY_RULES:
        settings += tests_of_kernels.settings(rule, CPU)
    first = settings[0]
    changed = [with_values(first, visible_items=3), with_values(first, num_envs=16), *settings]
    assert len({tests_of_kernels.constants_of(setting) for setting in changed}) == len(changed)


def test_no_random_number_is_drawn(apart: list[str]) -> None:
    before = torch.get_rng_state()
    boxes_env()
    assert torch.equal(torch.get_rng_state(), before)
