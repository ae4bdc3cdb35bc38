"""The table of backends, and which of them is chosen where."""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Iterator

import pytest
import torch

from tests.native.compilers import need_compiler
from tests.records import values_by_name
from torchrl_gpu import native
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing import kernels
from torchrl_gpu.envs.packing.items import ProceduralSolids
from torchrl_gpu.envs.packing.kernels import BACKENDS, available_backends, compiled, get_kernels
from torchrl_gpu.envs.packing.types import STABILITY_RULES

NO_COMPILER = "no C++ compiler: none of c++, g++, clang++ is on the PATH"


@pytest.fixture(autouse=True)
def chosen_anew() -> Iterator[None]:
    """The choice of "auto" is remembered for a process: each test makes its own."""
    kernels.forget_choices()
    yield
    kernels.forget_choices()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "problem", lambda: NO_COMPILER)


def test_every_backend_that_runs_here_has_every_job() -> None:
    for name, problem in available_backends().items():
        if problem:
            continue
        jobs, module = get_kernels(name), importlib.import_module(BACKENDS[name])
        assert jobs.backend == name
        names = values_by_name(jobs).keys() - {"backend"}
        for job in names:
            # What a user calls is the kernel behind the check of its arguments.
            assert getattr(jobs, job).__wrapped__ is getattr(module, job)


def test_torch_and_numpy_run_everywhere() -> None:
    for device in ("cpu", "cuda", "meta"):
        there = available_backends(torch.device(device))
        assert list(there) == list(BACKENDS)
        assert there["eager"] == there["reference"] == ""


def test_what_cannot_run_says_why_in_one_line() -> None:
    on_cuda, on_cpu = available_backends(torch.device("cuda")), available_backends()
    assert on_cuda["compiled"] == "runs on a CPU only"
    assert on_cpu["triton"]
    assert all("\n" not in problem for problem in (*on_cuda.values(), *on_cpu.values()))


def test_a_missing_package_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, BACKENDS["triton"], raising=False)
    assert "triton" in available_backends()["triton"]


def test_on_a_cpu_with_a_compiler_the_compiled_one_is_chosen(caplog: pytest.LogCaptureFixture) -> None:
    need_compiler()
    with caplog.at_level(logging.WARNING):
        assert get_kernels() == get_kernels("auto") == get_kernels("compiled")
        assert PackingEnv(2, device="cpu").kernels.backend == "compiled"
    # Other lines may say that a self-test takes long.
    assert not [line for line in caplog.messages if not line.startswith("self-test of")]


def test_without_a_compiler_torch_is_chosen_and_said_once(no_compiler: None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert get_kernels() == get_kernels("eager")
        assert get_kernels().backend == "eager"
        assert PackingEnv(2, device="cpu").kernels.backend == "eager"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert NO_COMPILER in record.getMessage()
    assert "\n" not in record.getMessage()


def test_without_a_compiler_the_compiled_one_is_refused_by_name(no_compiler: None) -> None:
    assert available_backends()["compiled"] == NO_COMPILER
    message = f"'compiled'.* cpu: {re.escape(NO_COMPILER)}$"
    for refused in (get_kernels, lambda backend: PackingEnv(2, device="cpu", backend=backend)):
        with pytest.raises(ValueError, match=message):
            refused("compiled")


def test_a_backend_of_another_device_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'compiled'.* cuda: .*CPU only$"):
        get_kernels("compiled", torch.device("cuda"))


def test_a_device_that_no_backend_was_made_for_runs_torch() -> None:
    assert get_kernels("auto", torch.device("meta")).backend == "eager"


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ValueError, match=r"backend .*auto, compiled, triton, eager, reference.*'cobol'"):
        get_kernels("cobol")


@pytest.mark.parametrize("boxes", [True, False])
@pytest.mark.parametrize("backend", ["reference", "eager", "compiled"])
def test_a_stability_rule_that_is_named_but_not_implemented_is_refused(backend: str, boxes: bool) -> None:
    if problem := available_backends()[backend]:
        pytest.skip(problem)
    items = "random" if boxes else ProceduralSolids(3, seed=0)
    bin_ = {} if boxes else {"bin_size": (0.4, 0.4, 0.3)}
    env = PackingEnv(2, items=items, stability="support", backend=backend, device="cpu", seed=0, **bin_)
    env.reset()
    object.__setattr__(env.bin, "stability", "tilt")
    s = env.state
    with pytest.raises(ValueError, match=r"stability.*tilt"):
        env.kernels.drop_map(s.heightmap, s.item_id, env.catalogue, env.bin)
    with pytest.raises(ValueError, match=r"stability.*tilt"):
        env.kernels.restart(s, s.stable, s.key, s.item_id, env.catalogue, env.bin)


def test_fast_forms_of_compiled_backends_are_of_rules_that_are_known() -> None:
    assert {*compiled.DROP_RULES, *compiled.BEARING_RULES} <= set(STABILITY_RULES)
    bearing = pytest.importorskip("torchrl_gpu.envs.packing.kernels.triton.bearing", exc_type=ImportError)
    stability = pytest.importorskip("torchrl_gpu.envs.packing.kernels.triton.stability", exc_type=ImportError)
    assert {*stability.DROP_RULES, *bearing.BEARING_RULES} <= set(STABILITY_RULES)
