"""Replay on the pretended device.

It is extended, drawn and weighted without a wait, saved there and loaded here, and staged through pinned memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.pretend_cuda import waits
from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.envs.memory import Placement
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.training import ClipReplay, Rollout
from torchrl_gpu.training.replay.buffer import DeviceReplay
from torchrl_gpu.training.replay.files import replay_state, restore_replay

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
KINDS: dict[str, dict[str, object]] = {
    "uniform": {},
    "masked": {"masked": True},
    "prioritized": {"prioritized": True, "beta_updates": 10},
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def replay(kind: str, device: torch.device = CUDA, capacity: int = 300, **changes: object) -> DeviceReplay:
    return DeviceReplay(8, device, **{"capacity": capacity, **KINDS[kind], **changes})


def transitions(first: int, number: int, device: torch.device = CUDA) -> TensorDict:
    obs = torch.arange(first, first + number, device=device).float().unsqueeze(-1)
    after = {"obs": obs + 0.5, "done": obs.long() % 3 == 0}
    return TensorDict({"obs": obs, "next": after}, batch_size=[number], device=device)


def used(buffer: DeviceReplay, device: torch.device = CUDA, turns: int = 6) -> TensorDict:
    """Take some turns of a run, and return the last sample."""
    for turn in range(turns):
        index = buffer.extend(transitions(70 * turn, 70, device))
        if hasattr(buffer.sampler, "leave_out"):
            buffer.leave_out(index, index % 7 == 0)
        buffer.set_updates(turn)
        batch = buffer.sample()
        if "index" in batch.keys():  # noqa: SIM118  # of a tensordict
            buffer.update_priority(batch["index"], batch["obs"] % 5)
    return batch


def test_nothing_waits(kind: str) -> None:
    buffer = replay(kind)
    # This asks for the free memory, and makes the storage.
    used(buffer, turns=1)
    with waits() as counted:
        batch = used(buffer)
    assert counted.total == 0, counted.report()
    assert all(value.is_cuda for value in batch.values(True, True))
    assert torch.equal(batch["next", "obs"], batch["obs"] + 0.5)
    assert torch.equal(batch["next", "done"], batch["obs"].long() % 3 == 0)
    assert len(buffer) == 300


@pytest.mark.parametrize(("first", "second"), [(CUDA, CPU), (CPU, CUDA), (CUDA, CUDA)], ids=str)
@pytest.mark.parametrize("map_location", [None, "cpu"])
def test_it_goes_on_on_either_device(
    kind: str, first: torch.device, second: torch.device, map_location: Any, tmp_path: Path
) -> None:
    buffer, again = replay(kind, first), replay(kind, second)
    used(buffer, first)
    torch.save(replay_state(buffer), tmp_path / "replay")
    restore_replay(again, torch.load(tmp_path / "replay", weights_only=True, map_location=map_location))
    torch.testing.assert_close(again.storage[:].cpu(), buffer.storage[:].cpu())
    assert again.storage[:].device == second
    if kind != "uniform":
        assert again.sampler.priority.device == second
        assert torch.equal(again.sampler.priority.cpu(), buffer.sampler.priority.cpu())
    used(again, second, turns=2)


@pytest.mark.parametrize("storage", ["auto", "host"])
def test_what_does_not_fit_is_staged_through_pinned_memory(
    kind: str, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (1_000, 80 << 30))
    buffer = replay(kind, storage=storage)
    used(buffer, turns=5)
    with waits() as counted:
        batch = buffer.sample()
    assert batch.device == CUDA
    # Not for the rows, but for their indices; of prioritised ones TorchRL takes indices and weights to the storage's
    # device and back.
    assert counted.total == (1 if kind == "uniform" else 5), counted.report()
    assert torch.equal(batch["next", "obs"], batch["obs"] + 0.5)
    assert len(buffer) == 300
    assert buffer.storage[:].device == CPU


@pytest.mark.parametrize("storage", ["device", "host"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_clips_are_kept_and_drawn(storage: Placement, prioritized: bool) -> None:
    env = DishwashingEnv(4, observe_as="video", device=CUDA, seed=0, clip_length=3)
    buffer = ClipReplay(8, CUDA, capacity=24, prioritized=prioritized, storage=storage)
    rollout = Rollout(env, env.stored_keys, 1, 0.9, store=buffer.codec_for(env))
    for _ in range(5):
        index = buffer.extend(rollout.collect(RandomActions(env), 2)[0])
        batch = buffer.sample()
        if prioritized:
            buffer.update_priority(batch["index"], torch.ones(8, device=CUDA))
    assert len(index) == 8
    assert len(buffer) == 24
    seen = env.restore(batch, buffer)["clip"]
    assert seen.device == CUDA
    assert seen.shape[:2] == (8, 3)
