"""Replay: prioritised sampling against a naive twin, and what is saved beside a checkpoint."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import TensorDictReplayBuffer

from tests.no_host_reads import NoHostReads
from torchrl_gpu.training.replay import DevicePrioritySampler, load_replay, replay_buffer, replay_file, save_replay

CPU = torch.device("cpu")


def transitions(first: int, number: int) -> TensorDict:
    """Transitions that can be told apart by `obs`."""
    obs = torch.arange(first, first + number).float().unsqueeze(-1)
    after = {"obs": obs + 0.5, "done": obs.long() % 3 == 0}
    return TensorDict({"obs": obs, "next": after}, batch_size=[number], device=CPU)


class NaiveReplay:
    """The definition: a list as a ring, sums over all of it, one item at a time."""

    def __init__(self, capacity: int, alpha: float, beta: float, eps: float = 1e-3) -> None:
        self.capacity, self.alpha, self.beta, self.eps = capacity, alpha, beta, eps
        self.priority = [0.0] * capacity
        self.cursor, self.size, self.largest = 0, 0, 1.0

    def extend(self, number: int) -> None:
        for _ in range(number):
            self.priority[self.cursor] = self.largest
            self.cursor = (self.cursor + 1) % self.capacity
            self.size = min(self.size + 1, self.capacity)

    def update(self, index: list[int], error: list[float]) -> None:
        for i, e in zip(index, error, strict=True):
            self.priority[i] = (e + self.eps) ** self.alpha
            self.largest = max(self.largest, self.priority[i])

    def sample(self, share: list[float]) -> tuple[list[int], list[float]]:
        total, index = sum(self.priority), []
        for i, u in enumerate(share):
            spot, below, chosen = (i + u) / len(share) * total, 0.0, 0
            while below + self.priority[chosen] <= spot and chosen < self.size - 1:
                below += self.priority[chosen]
                chosen += 1
            index.append(chosen)
        weight = [(self.size * self.priority[i] / total) ** -self.beta for i in index]
        return index, [w / max(weight) for w in weight]


def prioritized(capacity: int = 10, batch_size: int = 4, **changes: float) -> TensorDictReplayBuffer:
    return replay_buffer(capacity, batch_size, CPU, prioritized=True, **changes)  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    operations=st.lists(st.tuples(st.sampled_from(["extend", "sample", "update"]), st.integers(1, 9)), max_size=12),
)
def test_same_operations_as_the_naive_twin(seed: int, operations: list[tuple[str, int]]) -> None:
    ours, twin = prioritized(alpha=0.7, beta=0.5), NaiveReplay(10, alpha=0.7, beta=0.5)
    generator, added = np.random.default_rng(seed), 0
    for operation, number in [("extend", 3), *operations]:
        if operation == "extend":
            ours.extend(transitions(added, number))
            twin.extend(number)
            added += number
            continue
        torch.manual_seed(seed)
        share = torch.rand(4, dtype=torch.float64).tolist()
        torch.manual_seed(seed)
        batch = ours.sample()
        index, weight = twin.sample(share)
        assert batch["index"].tolist() == index
        assert batch["priority_weight"].tolist() == pytest.approx(weight, rel=1e-5)
        if operation == "update":
            error = {i: float(generator.random() * 3) for i in set(index)}  # one transition has one error
            ours.update_priority(batch["index"], torch.tensor([[error[i]] for i in index], dtype=torch.float64))
            twin.update(index, [error[i] for i in index])
    sampler = ours.sampler
    assert sampler.priority.tolist() == pytest.approx(twin.priority)
    assert sampler.largest.item() == pytest.approx(twin.largest)


def test_frequencies_are_the_priorities() -> None:
    torch.manual_seed(0)
    replay = prioritized(capacity=8, batch_size=32, alpha=0.6)
    replay.extend(transitions(0, 5))  # three places stay empty
    error = torch.tensor([0.1, 0.5, 1.0, 2.0, 4.0])
    replay.update_priority(torch.arange(5), error)
    wanted = (error.double() + 1e-3) ** 0.6
    drawn = torch.cat([replay.sample()["index"] for _ in range(500)])
    share = torch.bincount(drawn, minlength=8).double() / len(drawn)
    assert share[5:].sum() == 0
    assert (share[:5] - wanted / wanted.sum()).abs().max() < 0.005  # stratified: less noise than independent draws


def test_importance_weights_by_hand() -> None:
    # alpha 1, priorities 1, 1, 2 (eps = 0): chances 1/4, 1/4, 1/2. With N = 3, beta = 1 a weight is 1 / (3 · chance):
    # 4/3, 4/3, 2/3; divided by the largest: 1, 1, 1/2.
    sampler = DevicePrioritySampler(3, alpha=1.0, beta=1.0, eps=0.0)
    sampler.update_priority(torch.arange(3), torch.tensor([1.0, 1.0, 2.0]))
    index, info = sampler.sample(range(3), 400)  # type: ignore[arg-type]  # of the storage only the length is used
    assert torch.equal(info["priority_weight"], torch.where(index == 2, 0.5, 1.0))
    assert torch.bincount(index).tolist() == [100, 100, 200]  # stratified: exactly by chance


def test_new_transitions_get_the_largest_priority_so_far() -> None:
    replay = prioritized(alpha=1.0)
    replay.extend(transitions(0, 4))
    replay.update_priority(torch.tensor([1]), torch.tensor([7.0]))
    replay.update_priority(torch.tensor([1]), torch.tensor([0.0]))  # the largest so far, not the largest now
    replay.extend(transitions(4, 3))
    assert replay.sampler.priority[:7].tolist() == pytest.approx([1, 0.001, 1, 1, 7.001, 7.001, 7.001])


def test_the_ring_wraps_around() -> None:
    replay = prioritized(capacity=5, batch_size=64)
    replay.extend(transitions(0, 4))
    replay.update_priority(torch.arange(4), torch.full((4,), 9.0))
    replay.extend(transitions(4, 3))  # takes the places 4, 0 and 1
    assert len(replay) == 5
    batch = replay.sample()
    assert set(batch["obs"].flatten().tolist()) == {2.0, 3.0, 4.0, 5.0, 6.0}
    assert torch.equal(batch["obs"], batch["next", "obs"] - 0.5)


@pytest.mark.parametrize("is_prioritized", [False, True])
def test_nothing_is_read_back(is_prioritized: bool) -> None:
    replay = replay_buffer(32, 8, CPU, prioritized=is_prioritized)
    replay.extend(transitions(0, 20))  # the first write allocates
    more = [transitions(20 + 5 * i, 5) for i in range(6)]
    with NoHostReads():
        for chunk in more:
            replay.extend(chunk)
            batch = replay.sample()
            if is_prioritized:
                replay.update_priority(batch["index"], batch["obs"])


# -- beside a checkpoint --


@pytest.mark.parametrize("number", [0, 6, 10, 14])
@pytest.mark.parametrize("is_prioritized", [False, True])
def test_a_replay_goes_on_as_if_it_had_never_been_saved(tmp_path: Path, is_prioritized: bool, number: int) -> None:
    def make() -> TensorDictReplayBuffer:
        return replay_buffer(10, 4, CPU, prioritized=is_prioritized)

    def go_on(replay: TensorDictReplayBuffer) -> list[Any]:
        torch.manual_seed(5)
        out = []
        for i in range(4):
            replay.extend(transitions(100 + 3 * i, 3))
            batch = replay.sample()
            if is_prioritized:
                replay.update_priority(batch["index"], batch["obs"] / 50)
            out.append(batch)
        return out

    saved = make()
    if number:
        saved.extend(transitions(0, number // 2))
        saved.extend(transitions(number // 2, number - number // 2))
        if is_prioritized:
            saved.update_priority(torch.arange(3), torch.tensor([3.0, 0.5, 2.0]))
        save_replay(saved, tmp_path / "x.ckpt")
    loaded = make()
    assert load_replay(loaded, tmp_path / "x.ckpt") is bool(number)
    assert len(loaded) == min(number, 10)
    for ours, wanted in zip(go_on(loaded), go_on(saved), strict=True):
        assert (ours == wanted).all()


def test_only_what_is_filled_is_written(tmp_path: Path) -> None:
    replay = replay_buffer(100_000, 4, CPU)
    replay.extend(transitions(0, 10))
    save_replay(replay, tmp_path / "x.ckpt")
    assert replay_file(tmp_path / "x.ckpt").stat().st_size < 20_000


def test_it_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = replay_buffer(10, 4, CPU)
    replay.extend(transitions(0, 5))
    save_replay(replay, tmp_path / "x.ckpt")
    before = replay_file(tmp_path / "x.ckpt").read_bytes()

    def interrupted(state: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_replay(replay, tmp_path / "x.ckpt")
    assert replay_file(tmp_path / "x.ckpt").read_bytes() == before


def test_no_replay_is_no_error(tmp_path: Path) -> None:
    assert load_replay(replay_buffer(10, 4, CPU), tmp_path / "x.ckpt") is False


def test_a_uniform_replay_becomes_a_prioritized_one(tmp_path: Path) -> None:
    uniform, ours = replay_buffer(10, 4, CPU), prioritized()
    uniform.extend(transitions(0, 6))
    save_replay(uniform, tmp_path / "x.ckpt")
    load_replay(ours, tmp_path / "x.ckpt")
    assert ours.sampler.priority.tolist() == [1.0] * 6 + [0.0] * 4


class Malicious:
    """Makes a folder when it is unpickled without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["archive", "bare pickle"])
def test_code_in_a_replay_never_runs(tmp_path: Path, form: str) -> None:
    path = replay_file(tmp_path / "x.ckpt")
    content = {"transitions": {}, "size": Malicious(tmp_path / "ran")}
    if form == "archive":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(ValueError, match=r"replay .*: want"):
        load_replay(replay_buffer(10, 4, CPU), tmp_path / "x.ckpt")
    assert not (tmp_path / "ran").exists()


def test_what_lies_around_is_not_read(tmp_path: Path) -> None:
    # TorchRL's own format is a folder whose `prefetch.pkl` its `loads` unpickles.
    replay = replay_buffer(10, 4, CPU)
    replay.extend(transitions(0, 5))
    for folder in ("x.replay", "x"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "prefetch.pkl").write_bytes(pickle.dumps(Malicious(tmp_path / "ran")))
    save_replay(replay, tmp_path / "x.ckpt")
    assert load_replay(replay_buffer(10, 4, CPU), tmp_path / "x.ckpt")
    assert not (tmp_path / "ran").exists()


def test_a_replay_of_another_size_is_refused(tmp_path: Path) -> None:
    replay = replay_buffer(10, 4, CPU)
    replay.extend(transitions(0, 5))
    save_replay(replay, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match="want one for 20 transitions, as this run keeps; got one for 10"):
        load_replay(replay_buffer(20, 4, CPU), tmp_path / "x.ckpt")


@pytest.mark.parametrize("length", [0, 50, 1000])
def test_a_truncated_replay_is_refused(tmp_path: Path, length: int) -> None:
    replay = replay_buffer(10, 4, CPU)
    replay.extend(transitions(0, 5))
    save_replay(replay, tmp_path / "x.ckpt")
    path = replay_file(tmp_path / "x.ckpt")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=f"replay .*: want a complete archive.*got {length} bytes"):
        load_replay(replay_buffer(10, 4, CPU), tmp_path / "x.ckpt")


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, replay_file(tmp_path / "x.ckpt"))
    with pytest.raises(ValueError, match="want what save_replay writes; got no capacity in it"):
        load_replay(replay_buffer(10, 4, CPU), tmp_path / "x.ckpt")


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_read_back_either() -> None:
    device = torch.device("cuda")
    replay = replay_buffer(32, 8, device, prioritized=True)
    replay.extend(transitions(0, 20).to(device))
    more = [transitions(20 + 5 * i, 5).to(device) for i in range(6)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for chunk in more:
            replay.extend(chunk)
            batch = replay.sample()
            replay.update_priority(batch["index"], batch["obs"])
    finally:
        torch.cuda.set_sync_debug_mode("default")
