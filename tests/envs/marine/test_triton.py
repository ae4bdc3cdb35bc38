"""A step and a restart in Triton without a GPU.

Kernels are interpreted, in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensordict import TensorDictBase

from benchmarks.gpu.launches import recorded, stack_of
from tests.envs.marine.settings import acted, marine, random_action
from tests.envs.packing.kernels.test_triton_launches import form_of
from tests.no_host_reads import NoHostReads
from torchrl_gpu import native
from torchrl_gpu.envs import MarineNavEnv
from torchrl_gpu.envs.marine import fused
from torchrl_gpu.envs.marine.triton import self_test

HERE = Path(__file__).parent
SOME = "steps_and and (most or currents) and not 17 or of_turns or random_bits"


def test_interpreted_kernels_pass(pytestconfig: pytest.Config) -> None:
    # Triton decides at import whether it interprets: not in this process, which other tests need as it is.
    tests = str(HERE / "test_triton_parity.py")
    command = [sys.executable, "-m", "pytest", tests, "-k", SOME, "-m", "not gpu", "-q", "-p", "no:cacheprovider"]
    for option in pytestconfig.getoption("pythonwarnings") or ():
        command += ["-W", option]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.run(
        command, cwd=HERE.parents[2], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert " passed" in child.stdout
    assert "skipped" not in child.stdout


def fused_env(setting: str, num_envs: int, monkeypatch: pytest.MonkeyPatch) -> tuple[MarineNavEnv, TensorDictBase]:
    """An environment that steps by kernels, as on CUDA, and its first observation."""
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    env = marine(setting, num_envs)
    seen = env.reset()
    env.is_fused = True
    return env, seen


@pytest.mark.parametrize("setting", ["v2", "v3", "v3, discrete", "v2, one robot"])
def test_a_step_and_a_restart_are_one_launch_each(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env, seen = fused_env(setting, 3, monkeypatch)
    given = acted(env, seen, random_action(env, torch.Generator().manual_seed(0)))
    with recorded() as launches:
        env.is_fused = False
        wanted, begun = env.step_and_maybe_reset(given.clone())
        assert not launches
        env.is_fused = True
        with NoHostReads():
            made, again = env.step_and_maybe_reset(given.clone())
    assert [launch.name for launch in launches] == ["marine_step_kernel", "marine_restart_kernel"]
    for ours, theirs in ((made, wanted), (again, begun)):
        assert set(ours.keys(True, True)) == set(theirs.keys(True, True))
        for key in theirs.keys(True, True):
            assert (ours[key].shape, ours[key].dtype) == (theirs[key].shape, theirs[key].dtype), key


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_another_number_of_worlds_or_objects_is_no_other_kernel(version: str) -> None:
    forms = []
    for num_envs, robots, cores, obstacles in ((3, 5, 0, 1), (16, 8, 1, 16), (1, 6, 4, 3)):
        sizes = {"robots": robots, "cores": cores, "obstacles": obstacles, "min_distance": 10.0}
        env = marine("v2", num_envs, version=version, upstream_compat=["fewer_objects"], **sizes)
        with recorded() as launches:
            env.launch_fused()
        forms.append([form_of(launch) for launch in launches])
    assert forms[1] == forms[0]
    assert forms[2] == forms[0]


def test_kernels_compile_without_a_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with recorded() as launches:
        marine("v2", 64).launch_fused()
    assert [stack_of(launch.cubin(90)) for launch in launches] == [0, 0]


@pytest.mark.parametrize("name", ["motion", "scene", "active", "observation", "key"])
def test_a_state_of_another_shape_reaches_no_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env, seen = fused_env("v2", 5, monkeypatch)
    setattr(env.state, name, getattr(env.state, name)[1:])
    with recorded() as launches:
        with pytest.raises(ValueError, match=rf"^MarineNavEnv: {name} must "):
            env.step(acted(env, seen, torch.zeros(5, 5, dtype=torch.int64)))
        assert not launches


def test_a_cpu_has_no_launches() -> None:
    assert fused.problem(torch.device("cpu")) == "no CUDA device"
    assert not marine("v2").is_fused


def test_where_triton_fails_torch_steps_and_one_line_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device = torch.device("cuda", 7)
    fused.device_problem.cache_clear()
    monkeypatch.setattr(fused, "_versions", lambda device: {})
    monkeypatch.setattr(fused.SelfTest, "failure", lambda test: "v2: step 0: reward differs")
    for _ in range(2):
        assert fused.problem(device) == "v2: step 0: reward differs"
    assert [record.message for record in caplog.records] == [
        "MarineNavEnv: Triton cannot run on cuda:7, so torch's operators will: v2: step 0: reward differs"
    ]
    fused.device_problem.cache_clear()


@pytest.mark.gpu
def test_a_gpu_agrees_with_torch() -> None:
    assert self_test.run("cuda") == ""
    env = MarineNavEnv(3, device="cuda", seed=0, pool=8)
    assert env.is_fused
