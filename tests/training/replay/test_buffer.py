"""Replay: prioritised sampling against a naive twin.

And what is saved with a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from torchrl.data import TensorDictReplayBuffer

import torchrl_gpu.training.replay.priorities as replay_module
from tests.no_host_reads import NoHostReads
from torchrl_gpu.checkpoints.files import write_whole
from torchrl_gpu.envs.state_validation import Bounds, Entry
from torchrl_gpu.system.archives import read_archive
from torchrl_gpu.training.replay.buffer import replay_buffer
from torchrl_gpu.training.replay.files import replay_state, restore_replay
from torchrl_gpu.training.replay.priorities import DevicePrioritySampler

CPU = torch.device("cpu")


def transitions(first: int, number: int) -> TensorDict:
    obs = torch.arange(first, first + number).float().unsqueeze(-1)
    after = {"obs": obs + 0.5, "done": obs.long() % 3 == 0}
    return TensorDict({"obs": obs, "next": after}, batch_size=[number], device=CPU)


class NaiveReplay:
    """The definition: a list as a ring, sums over all of it, one item at a time."""

    def __init__(self, capacity: int, alpha: float, beta: float, eps: float = 1e-3) -> None:
        self.capacity = capacity
        self.alpha = alpha
        self.beta = beta
        self.eps = eps
        self.priority = [0.0] * capacity
        self.cursor = 0
        self.size = 0
        self.largest = 1.0

    def extend(self, number: int) -> list[int]:
        places = []
        for _ in range(number):
            places.append(self.cursor)
            self.priority[self.cursor] = self.largest
            self.cursor = (self.cursor + 1) % self.capacity
            self.size = min(self.size + 1, self.capacity)
        return places

    def leave_out(self, index: list[int], rows: list[bool]) -> None:
        for i, row in zip(index, rows, strict=True):
            if row:
                self.priority[i] = 0.0

    def empty(self) -> None:
        self.priority = [0.0] * self.capacity
        self.cursor = 0
        self.size = 0
        self.largest = 1.0

    def update(self, index: list[int], error: list[float]) -> None:
        for i, e in zip(index, error, strict=True):
            self.priority[i] = (e + self.eps) ** self.alpha
            self.largest = max(self.largest, self.priority[i])

    def sample(self, share: list[float]) -> tuple[list[int], list[float]]:
        total, index = sum(self.priority), []
        for i, u in enumerate(share):
            spot = (i + u) / len(share) * total
            below = 0.0
            chosen = 0
            while below + self.priority[chosen] <= spot and chosen < self.size - 1:
                below += self.priority[chosen]
                chosen += 1
            index.append(chosen)
        weight = [(self.size * self.priority[i] / total) ** -self.beta for i in index]
        return index, [w / max(weight) for w in weight]


def prioritized(capacity: int = 10, batch_size: int = 4, **changes: float) -> TensorDictReplayBuffer:
    return replay_buffer(capacity, batch_size, CPU, prioritized=True, **changes)  # type: ignore[arg-type]


def sampled(replay: TensorDictReplayBuffer, seed: int) -> tuple[TensorDict, list[float]]:
    """A batch, and the random numbers in [0, 1) that it came from."""
    torch.manual_seed(seed)
    share = torch.rand(4, dtype=torch.float64).tolist()
    torch.manual_seed(seed)
    return replay.sample(), share


OPERATIONS = ["extend", "leave_out", "sample", "update", "reload", "empty"]


# Ten places: four blocks, or one.
@pytest.mark.parametrize(("block", "exponents"), [(3, {"alpha": 0.7, "beta": 0.5}), (128, {"alpha": 0.0, "beta": 0.0})])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    operations=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(1, 9)), max_size=14),
)
def test_the_naive_twin(block: int, exponents: dict[str, float], seed: int, operations: list[tuple[str, int]]) -> None:
    with mock.patch.object(replay_module, "_BLOCK", block):
        ours, twin = prioritized(**exponents), NaiveReplay(10, **exponents)
    generator, added = np.random.default_rng(seed), 0
    for operation, number in [("extend", 3), *operations, ("sample", 1)]:
        if operation == "empty":
            ours.empty()
            twin.empty()
        if operation in ("extend", "empty"):
            index = ours.extend(transitions(added, number))
            assert index.tolist() == twin.extend(number)
            added += number
        elif operation == "leave_out":
            index = torch.from_numpy(generator.permutation(twin.size)[:number])
            rows = torch.from_numpy(generator.random(len(index)) < 0.5)
            others = [twin.priority[i] for i in range(twin.size) if i not in index[rows].tolist()]
            # Without others there is nothing left to draw.
            if any(others):
                ours.sampler.leave_out(index, rows)
                twin.leave_out(index.tolist(), rows.tolist())
        elif operation == "reload":
            state = {name: value.clone() for name, value in ours.sampler.state_dict().items()}
            # These priorities are of another one.
            ours.sampler.update_priority(torch.arange(10), torch.rand(10))
            ours.sampler.load_state_dict(state)
        else:
            batch, share = sampled(ours, seed)
            index, weight = twin.sample(share)
            assert batch["index"].tolist() == index
            assert batch["priority_weight"].tolist() == pytest.approx(weight, rel=1e-5)
            if operation == "update":
                # One transition has one error.
                error = {i: float(generator.random() * 3) for i in set(index)}
                ours.update_priority(batch["index"], torch.tensor([[error[i]] for i in index], dtype=torch.float64))
                twin.update(index, [error[i] for i in index])
    sampler = ours.sampler
    assert sampler.priority.tolist() == pytest.approx(twin.priority)
    assert sampler.largest.item() == pytest.approx(twin.largest)


def test_importance_weights_by_hand() -> None:
    # alpha 1, priorities 1, 1, 2 (eps = 0): chances 1/4, 1/4, 1/2. With N = 3, beta = 1 a weight is 1 / (3 · chance):
    # 4/3, 4/3, 2/3; divided by the largest: 1, 1, 1/2.
    sampler = DevicePrioritySampler(3, alpha=1.0, beta=1.0, eps=0.0)
    sampler.update_priority(torch.arange(3), torch.tensor([1.0, 1.0, 2.0]))
    index, info = sampler.sample(range(3), 400)  # type: ignore[arg-type]  # of the storage only the length is used
    assert torch.equal(info["priority_weight"], torch.where(index == 2, 0.5, 1.0))
    # Draws are stratified, so the counts are exact.
    assert torch.bincount(index).tolist() == [100, 100, 200]


def test_the_ring_wraps_around() -> None:
    replay = prioritized(capacity=5, batch_size=64)
    replay.extend(transitions(0, 4))
    replay.update_priority(torch.arange(4), torch.full((4,), 9.0))
    # They take the places 4, 0 and 1.
    replay.extend(transitions(4, 3))
    assert len(replay) == 5
    batch = replay.sample()
    assert set(batch["obs"].flatten().tolist()) == {2.0, 3.0, 4.0, 5.0, 6.0}
    assert torch.equal(batch["obs"], batch["next", "obs"] - 0.5)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("is_prioritized", [False, True])
def test_replay_reads_nothing_back(is_prioritized: bool, is_masked: bool) -> None:
    replay = replay_buffer(32, 8, CPU, prioritized=is_prioritized, masked=is_masked)
    # The first write allocates.
    replay.extend(transitions(0, 20))
    more = [transitions(20 + 5 * i, 5) for i in range(6)]
    with NoHostReads():
        for chunk in more:
            index = replay.extend(chunk)
            if is_masked:
                replay.sampler.leave_out(index, chunk["next", "done"])
            batch = replay.sample()
            if is_prioritized:
                replay.update_priority(batch["index"], batch["obs"])


BOTH = pytest.mark.parametrize("is_prioritized", [False, True], ids=["uniform", "prioritized"])


def masked(is_prioritized: bool, capacity: int = 10, batch_size: int = 64) -> TensorDictReplayBuffer:
    return replay_buffer(capacity, batch_size, CPU, prioritized=is_prioritized, masked=True)


def drawn(replay: TensorDictReplayBuffer, batches: int = 20) -> set[float]:
    return set(torch.cat([replay.sample()["obs"] for _ in range(batches)]).flatten().tolist())


@BOTH
@pytest.mark.parametrize("shape", [(6,), (6, 1)], ids=str)
def test_replay_never_draws_transitions_left_out(is_prioritized: bool, shape: tuple[int, ...]) -> None:
    replay = masked(is_prioritized)
    index = replay.extend(transitions(0, 6))
    # The first and the last row are the ends of the sums.
    rows = torch.tensor([1, 0, 0, 1, 0, 1]).bool()
    replay.sampler.leave_out(index, rows.reshape(shape))
    assert drawn(replay, 200) == {1.0, 2.0, 4.0}
    # The rows are stored, though they are not drawn.
    assert torch.equal(replay.storage[:6]["obs"], transitions(0, 6)["obs"])


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_extreme_random_numbers_draw_no_transition_left_out(monkeypatch: pytest.MonkeyPatch, number: float) -> None:
    replay = masked(False, batch_size=4)
    index = replay.extend(transitions(0, 8))
    replay.sampler.leave_out(index, torch.tensor([1, 0, 1, 0, 0, 1, 0, 1]).bool())
    monkeypatch.setattr(torch, "rand", lambda size, **kind: torch.full((size,), number, **kind))
    assert drawn(replay, 1) <= {1.0, 3.0, 4.0, 6.0}


def test_a_block_that_is_left_out_is_not_drawn_by_the_least_number(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = replay_buffer(300, 4, CPU, masked=True)
    index = replay.extend(transitions(0, 300))
    replay.sampler.leave_out(index, index < 128)
    monkeypatch.setattr(torch, "rand", lambda size, **kind: torch.zeros(size, **kind))
    assert replay.sample()["index"].min() == 128


@BOTH
def test_leaving_nothing_out_changes_no_priority(is_prioritized: bool) -> None:
    replay, other = masked(is_prioritized), masked(is_prioritized)
    index = replay.extend(transitions(0, 6))
    other.extend(transitions(0, 6))
    replay.sampler.leave_out(index, torch.zeros(6, dtype=torch.bool))
    assert (sampled(replay, 3)[0] == sampled(other, 3)[0]).all()


@BOTH
def test_a_place_that_was_left_out_is_drawn_when_it_is_written_again(is_prioritized: bool) -> None:
    replay = masked(is_prioritized, capacity=5)
    index = replay.extend(transitions(0, 5))
    replay.sampler.leave_out(index, torch.tensor([1, 1, 0, 1, 0]).bool())
    assert drawn(replay) == {2.0, 4.0}
    # They take the places 0 and 1.
    index = replay.extend(transitions(5, 2))
    assert drawn(replay) == {2.0, 4.0, 5.0, 6.0}
    replay.sampler.leave_out(index, torch.tensor([False, True]))
    assert drawn(replay) == {2.0, 4.0, 5.0}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda replay: replay.extend(transitions(8, 2)), id="extend"),
        pytest.param(lambda replay: replay.add(transitions(8, 1)[0]), id="add"),
        pytest.param(
            lambda replay: replay.sampler.leave_out(torch.tensor([4, 5]), torch.tensor([True, False])), id="leave_out"
        ),
        pytest.param(
            lambda replay: replay.update_priority(torch.tensor([1, 6]), torch.tensor([9.0, 3.0])), id="update_priority"
        ),
        pytest.param(
            lambda replay: replay.sampler.load_state_dict(
                {"priority": torch.arange(10.0).double(), "largest": torch.tensor(9.0).double()}
            ),
            id="load_state_dict",
        ),
        pytest.param(lambda replay: (replay.empty(), replay.extend(transitions(0, 4))), id="empty"),
    ],
)
def test_sums_are_those_of_the_priorities_as_they_are(change: Callable[[TensorDictReplayBuffer], object]) -> None:
    replay = masked(True, batch_size=8)
    replay.extend(transitions(0, 8))
    # The first sample makes the sums.
    sampled(replay, 0)
    change(replay)
    other = DevicePrioritySampler(10)
    other.load_state_dict(replay.sampler.state_dict())
    torch.manual_seed(7)
    ours, _ = replay.sampler.sample(replay.storage, 8)
    torch.manual_seed(7)
    assert torch.equal(ours, other.sample(replay.storage, 8)[0])


def test_sums_are_restored_as_they_were_rounded() -> None:
    """Sums are restored, not computed again.

    A sum that is made anew may be rounded otherwise, on another device above all, and draw another transition.
    """
    saved, loaded = DevicePrioritySampler(300), DevicePrioritySampler(300)
    saved.extend(torch.arange(300))
    state = {name: value.clone() for name, value in saved.state_dict().items()}
    state["sums"] = state["sums"].nextafter(torch.zeros_like(state["sums"]))
    loaded.load_state_dict(state)
    assert torch.equal(loaded.state_dict()["sums"], state["sums"])
    assert not torch.equal(loaded.state_dict()["sums"], saved.state_dict()["sums"])


def save_replay(replay: TensorDictReplayBuffer, path: Path) -> None:
    write_whole(replay_state(replay), path)


def load_replay(replay: TensorDictReplayBuffer, path: Path, entries: Any = None) -> None:
    restore_replay(replay, read_archive(path, "replay"), f"replay {path}", entries)


def test_zeros_are_saved_with_their_sign() -> None:
    replay = replay_buffer(10, 4, CPU)
    replay.extend(transitions(0, 3).set("obs", -torch.zeros(3, 1)))
    assert replay_state(replay)["transitions"]["obs"].signbit().all()


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
    save_replay(saved, tmp_path / "x.pt")
    loaded = make()
    load_replay(loaded, tmp_path / "x.pt")
    assert len(loaded) == min(number, 10)
    for ours, wanted in zip(go_on(loaded), go_on(saved), strict=True):
        assert (ours == wanted).all()


@BOTH
def test_loaded_replay_leaves_the_same_transitions_out(tmp_path: Path, is_prioritized: bool) -> None:
    saved, loaded = masked(is_prioritized), masked(is_prioritized)
    index = saved.extend(transitions(0, 7))
    saved.sampler.leave_out(index, torch.arange(7) % 2 == 0)
    save_replay(saved, tmp_path / "x.pt")
    load_replay(loaded, tmp_path / "x.pt")
    assert (sampled(loaded, 1)[0] == sampled(saved, 1)[0]).all()
    assert drawn(loaded) == {1.0, 3.0, 5.0}


def test_a_prioritized_replay_becomes_a_uniform_one_without_what_is_left_out(tmp_path: Path) -> None:
    saved, loaded = masked(True), masked(False)
    index = saved.extend(transitions(0, 6))
    saved.update_priority(index, torch.arange(6.0))
    saved.sampler.leave_out(index, torch.arange(6) == 2)
    save_replay(saved, tmp_path / "x.pt")
    load_replay(loaded, tmp_path / "x.pt")
    loaded.extend(transitions(6, 1))
    assert loaded.sampler.priority.tolist() == [1, 1, 0, 1, 1, 1, 1, 0, 0, 0]


def test_only_what_is_filled_is_written(tmp_path: Path) -> None:
    replay = replay_buffer(100_000, 4, CPU)
    replay.extend(transitions(0, 10))
    save_replay(replay, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < 20_000


def test_a_uniform_replay_becomes_a_prioritized_one(tmp_path: Path) -> None:
    uniform, ours = replay_buffer(10, 4, CPU), prioritized()
    uniform.extend(transitions(0, 6))
    save_replay(uniform, tmp_path / "x.pt")
    load_replay(ours, tmp_path / "x.pt")
    assert ours.sampler.priority.tolist() == [1.0] * 6 + [0.0] * 4


OBS = Entry(torch.float32, (1,), Bounds(0, 100))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        pytest.param({"capacity": 20}, "for 20 transitions, where this run keeps 10", id="another size"),
        pytest.param({"capacity": None}, "no capacity in it", id="no capacity"),
        pytest.param({"size": -1}, "size must be at least 0; got -1", id="a size below"),
        pytest.param({"size": 11}, "size must be at most 10; got 11", id="a size above"),
        pytest.param({"size": "5"}, "size must be a whole number, at least 0; got '5'", id="a word for a size"),
        pytest.param(
            {"capacity": torch.ones(2)},
            "capacity must be a whole number, at least 0; got Tensor",
            id="a tensor for a capacity",
        ),
        pytest.param(
            {"writer": {"_cursor": -5, "_write_count": 0}},
            "writer _cursor must be at least 0; got -5",
            id="a cursor below",
        ),
        pytest.param(
            {"writer": {"_cursor": 11, "_write_count": 0}},
            "writer _cursor must be at most 10; got 11",
            id="a cursor above",
        ),
        pytest.param({"writer": {}}, "writer must have .*_cursor.* is {}", id="no cursor"),
        pytest.param({"transitions": 3}, "mapping of names to tensors.* 3", id="no transitions"),
        pytest.param(
            {"transitions": {"obs": torch.tensor([[1.0], [2], [-3], [4], [5]])}},
            r"obs must be from 0 to 100; got -3 at \[2, 0\]",
            id="a value",
        ),
        pytest.param(
            {"transitions": {"obs": torch.ones(4, 1)}},
            r"obs must have shape \(5, 1\); got \(4, 1\)",
            id="another length",
        ),
        pytest.param(
            {"transitions": {"obs": torch.ones(5, 1), "more": torch.ones(7)}},
            "entries are not of 5 transitions: ",
            id="an entry too long",
        ),
        pytest.param({"priority": -1.0}, "priority must be from 0 to 1e.100; got -1 at", id="a priority below"),
        pytest.param({"priority": float("nan")}, "priority must be from 0 to 1e.100; got nan at", id="no number"),
    ],
)
def test_a_replay_that_no_run_could_have_written(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    replay = replay_buffer(10, 4, CPU, prioritized=True)
    replay.extend(transitions(0, 5))
    save_replay(replay, tmp_path / "x.pt")
    content = torch.load(tmp_path / "x.pt", weights_only=True)
    if "priority" in changes:
        content["sampler"]["priority"][2] = changes["priority"]
    content |= {key: value for key, value in changes.items() if key != "priority"}
    content = {key: value for key, value in content.items() if value is not None}
    torch.save(content, tmp_path / "x.pt")
    other = replay_buffer(10, 4, CPU, prioritized=True)
    with pytest.raises(ValueError, match=f"^replay .*: .*{message}"):
        load_replay(other, tmp_path / "x.pt", {"obs": OBS})
    assert len(other) == 0


@pytest.mark.gpu
def test_on_a_gpu_nothing_is_read_back_either() -> None:
    device = torch.device("cuda")
    replay = replay_buffer(32, 8, device, prioritized=True, masked=True)
    replay.extend(transitions(0, 20).to(device))
    more = [transitions(20 + 5 * i, 5).to(device) for i in range(6)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for chunk in more:
            index = replay.extend(chunk)
            replay.sampler.leave_out(index, chunk["next", "done"])
            batch = replay.sample()
            replay.update_priority(batch["index"], batch["obs"])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_where_all_is_left_out_nothing_is_learned_and_nothing_comes_back() -> None:
    sampler = DevicePrioritySampler(300)
    storage = list(range(200))
    index = torch.arange(200)
    sampler.extend(index)
    sampler.leave_out(index, torch.ones(200, dtype=torch.bool))
    drawn, about = sampler.sample(storage, 8)  # type: ignore[arg-type]
    assert about["priority_weight"].tolist() == [0.0] * 8
    sampler.update_priority(drawn, torch.full((8,), 5.0))
    assert not sampler.priority.any()
    sampler.extend(torch.tensor([7]))
    assert sampler.sample(storage, 8)[0].tolist() == [7] * 8  # type: ignore[arg-type]
