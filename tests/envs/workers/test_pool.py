"""Workers play what one process plays, and outlive each other."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import forks
from tests.envs.test_base import Countdown
from tests.envs.workers.throwers import Global, Neighbours, Thrower, Walk
from tests.training.resuming import differences
from tests.training.tiny import packing_env
from torchrl_gpu.envs import BatchedEnv, DishwashingEnv, FromPixels, MarineNavEnv
from torchrl_gpu.envs.workers import shard
from torchrl_gpu.envs.workers.pool import WorkerPool
from torchrl_gpu.envs.workers.shard import SplitTensors, WorkerFailed, axes, one_line, shares
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.training import Rollout


@pytest.fixture(autouse=True)
def workers_start_in_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_env_workers.py` starts them as runs do, which takes seconds each."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: forks.CONTEXT)


def kill(pool: WorkerPool, number: int) -> None:
    found = re.search(r"process (\d+)", pool.names[number])
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)


class KillsAt(RandomActions):
    def __init__(self, env: BatchedEnv, pool: WorkerPool | None, at: dict[int, int]) -> None:
        super().__init__(env)
        self.pool = pool
        self.at = at
        self.steps = 0

    def forward(self, tensordict: Any) -> Any:
        if self.pool is not None and self.steps in self.at:
            kill(self.pool, self.at[self.steps])
        self.steps += 1
        return super().forward(tensordict)


def played(
    env: BatchedEnv, num_workers: int, *, at: dict[int, int] | None = None, rollouts: int = 4, **more: object
) -> Any:
    torch.manual_seed(0)
    group = ("robots",) if isinstance(env, MarineNavEnv) else ()
    rollout = Rollout(env, list(env.stored_keys), 1, 1.0, group=group)
    pool = WorkerPool(env, num_workers, **more) if num_workers else None
    rollout.workers, made = pool, []
    policy = KillsAt(env, pool, at or {})
    for i in range(rollouts):
        rollout.set_frames(100 * i)
        made.append(rollout.play(policy, 5)[1].to_dict())
    if pool is not None:
        pool.close()
        pool.close()
    return made, rollout.state_dict()


def test_workers_play_the_same_bits_whoever_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    # Step 12 is the third of its rollout: the new worker plays two of its steps once more.
    with caplog.at_level(logging.WARNING):
        by_workers = played(packing_env(9), 2, at={12: 1})
    assert differences(played(packing_env(9), 0), by_workers) == []
    # Restarts are among them.
    assert sum(int(steps["next"]["done"].sum()) for steps in by_workers[0]) > 8
    lines = [record.getMessage() for record in caplog.records if "EnvWorkers" in record.getMessage()]
    assert len(lines) == 1
    assert re.match(r"EnvWorkers: worker 1 \(environments 4 to 8, process \d+\) was killed by SIGKILL; ", lines[0])
    assert multiprocessing.active_children() == []


def sea(num_envs: int = 6) -> MarineNavEnv:
    rows = [(0, 2, 2, 1, 20.0), (300, 3, 1, 2, 20.0)]
    return MarineNavEnv(num_envs, curriculum=rows, max_steps=9, pool=16, device="cpu", seed=1)


def test_groups_and_curricula_go_to_workers() -> None:
    assert differences(played(sea(), 0, rollouts=5), played(sea(), 2, rollouts=5)) == []


@pytest.mark.parametrize("own", [True, False], ids=["of the environment", "FromPixels"])
def test_clips_go_to_workers_whoever_is_killed(own: bool) -> None:
    def dishes() -> BatchedEnv:
        settings = {"num_envs": 6, "max_steps": 7, "device": "cpu", "seed": 1}
        if own:
            return DishwashingEnv(observe_as="video", clip_length=3, frame_size=(16, 16), **settings)
        return FromPixels(DishwashingEnv(**settings), clip_length=3, frame_size=(16, 16))

    alone = played(dishes(), 0)
    assert differences(alone, played(dishes(), 2, at={12: 1})) == []
    frames = alone[0][-1]["next"]["frame_at"]
    # Rows of the whole batch.
    assert frames[:, 0, 0].tolist() == list(range(6))
    assert sum(int(steps["next"]["done"].sum()) for steps in alone[0]) >= 6


def test_a_worker_that_dies_again_and_again_ends_the_run() -> None:
    pool = WorkerPool(Walk(), 1)
    pool.begin()
    kill(pool, 0)
    pool.deaths = [pool.most_deaths - 1]
    with pytest.raises(WorkerFailed, match=r"worker 0 .* killed by SIGKILL, 3 times"):
        pool.end()
    pool.close()


def test_what_raises_is_named_with_its_worker() -> None:
    wanted = (
        r"^EnvWorkers: worker 1 \(environments 3 to 5, process \d+\) .*RuntimeError: the simulator lost its licence$"
    )
    with pytest.raises(WorkerFailed, match=wanted):
        WorkerPool(Thrower(6), 2)
    assert multiprocessing.active_children() == []


def test_a_worker_prints_where_an_error_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    for error, printed in ((RuntimeError("no\nlicence"), True), (ValueError("no licence"), False)):
        assert one_line(error) == f"{type(error).__name__}: no licence"
        assert (type(error).__name__ in capsys.readouterr().err) is printed


def test_rows_that_look_at_each_other_are_refused() -> None:
    env = Neighbours(6)
    before = env.state_dict()
    with pytest.raises(ValueError, match="EnvWorkers: Neighbours "):
        WorkerPool(env, 2)
    assert differences(before, env.state_dict()) == []
    assert multiprocessing.active_children() == []


def test_what_cannot_be_split_or_sent_is_told_before_anything_starts() -> None:
    with pytest.raises(ValueError, match=r"EnvWorkers: .*weather .*\(3,\)"):
        WorkerPool(Global(6), 2)
    unsent = Walk(6)
    unsent.stride = lambda: 1.0
    with pytest.raises(ValueError, match=r"EnvWorkers: Walk .*pickle"):
        WorkerPool(unsent, 2)
    with pytest.raises(ValueError, match=r"Countdown: .*`like`"):
        WorkerPool(Countdown(2, device="cpu"), 2)


@pytest.mark.soak
def test_the_same_on_ray(caplog: pytest.LogCaptureFixture) -> None:
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    try:
        with caplog.at_level(logging.WARNING):
            on_ray = played(packing_env(9), 2, at={12: 0}, transport="ray")
    finally:
        ray.shutdown()
    assert differences(played(packing_env(9), 0), on_ray) == []
    lines = [record.getMessage() for record in caplog.records if "EnvWorkers" in record.getMessage()]
    assert len(lines) == 1
    assert re.match(
        r"EnvWorkers: worker 0 \(environments 0 to 3, process \d+ on .+\) is gone \(.+\); another", lines[0]
    )


# -- which environments belong to which worker ---------------------------------------------------------------------


def test_shares_are_alike_and_whole() -> None:
    assert shares(7, 3) == [(0, 2), (2, 2), (4, 3)]
    assert shares(128, 3) == [(0, 32), (32, 48), (80, 48)]
    assert shares(40, 2) == [(0, 16), (16, 24)]
    assert shares(5, 1) == [(0, 5)]


def test_the_axis_of_environments_is_where_sizes_differ() -> None:
    whole = {"height": torch.zeros(6, 4), "motion": torch.zeros(5, 6)}
    part = {"height": torch.zeros(2, 4), "motion": torch.zeros(5, 2)}
    assert axes(whole, part, 6, 2) == {"height": 0, "motion": 1}


@pytest.mark.parametrize(("whole", "part"), [((3,), (3,)), ((6, 6), (2, 2)), ((6, 1), (2,)), ((12,), (4,))])
def test_a_state_without_one_axis_of_environments_is_refused(whole: tuple[int, ...], part: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"EnvWorkers: .*split x .*axis"):
        axes({"x": torch.zeros(whole)}, {"x": torch.zeros(part)}, 6, 2)


def test_parts_are_views() -> None:
    split = SplitTensors({"x": torch.zeros(2, 5)}, {"x": 1}, [(0, 2), (2, 3)], shared=True)
    split.put({"x": torch.arange(10).float().reshape(2, 5)})
    assert split.parts[1]["x"].tolist() == [[2, 3, 4], [7, 8, 9]]
    split.parts[0]["x"].fill_(-1)
    copy = split.copy(torch.device("cpu"))["x"]
    assert copy.tolist() == [[-1, -1, 2, 3, 4], [-1, -1, 7, 8, 9]]
    assert copy.data_ptr() != split.whole["x"].data_ptr()
    assert split.whole["x"].is_shared()


def test_too_little_shared_memory_is_told_before_it_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shard, "_SHARED", tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shard.shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    with pytest.raises(ValueError, match=r"2\.0 MiB .*shared memory.*1\.0 MiB free.*--shm-size"):
        SplitTensors({"x": torch.zeros(2, 2**18)}, {}, [(0, 1), (1, 1)], shared=True)


def test_shared_memory_that_torch_cannot_have_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: torch.Tensor) -> None:
        raise RuntimeError("unable to write to file </torch_1>: No space left on device (28)\nframe #0")

    monkeypatch.setattr(torch.Tensor, "share_memory_", fail)
    with pytest.raises(ValueError, match=r"shared memory.*No space .*device \(28\)\)$"):
        SplitTensors({"x": torch.zeros(2, 5)}, {}, [(0, 1), (1, 1)], shared=True)
