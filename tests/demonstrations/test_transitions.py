"""One form of demonstrations: rows by number, and a split.

No episode stands on both sides of the split.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from torchrl_gpu.demonstrations import Demonstrations
from torchrl_gpu.demonstrations.transitions import from_arrays

LENGTHS = [3, 1, 4, 2, 4, 3]


def shown(lengths: list[int] = LENGTHS) -> Demonstrations:
    total = sum(lengths)
    rows = {"action": torch.arange(total, dtype=torch.uint8), "state": torch.arange(2.0 * total).reshape(total, 2)}
    return Demonstrations(TensorDict(rows, [total]), torch.tensor(lengths), {"action": torch.int64})


def test_rows_are_drawn_by_number_in_their_own_type() -> None:
    batch = shown().batch(torch.tensor([16, 0, 3]))
    assert batch["action"].tolist() == [16, 0, 3]
    assert batch["action"].dtype == torch.int64
    assert batch["state"].tolist() == [[32.0, 33.0], [0.0, 1.0], [6.0, 7.0]]


def test_rows_of_episodes() -> None:
    assert shown().rows_of(torch.tensor([2, 1, 5])).tolist() == [4, 5, 6, 7, 3, 14, 15, 16]


def test_a_split_is_by_episode_and_by_seed() -> None:
    train, held = shown().split(0.34, seed=0)
    assert sorted([*train.tolist(), *held.tolist()]) == list(range(6))
    assert len(held) == 2
    assert shown().split(0.34, 0)[1].tolist() == held.tolist()
    assert len({tuple(shown().split(0.34, seed)[1].tolist()) for seed in range(20)}) > 5


def test_episodes_that_are_alike_stay_together() -> None:
    rows = shown().rows.clone()
    for name in ("action", "state"):
        # Only the first half of a longer one.
        rows[name][8:10] = rows[name][4:6]
        rows[name][10:14] = rows[name][4:8]
    whole = Demonstrations(rows, torch.tensor(LENGTHS))
    alike = whole.same_episodes()
    assert (alike[4] == alike[2]) & (len(alike.unique()) == 5)
    for seed in range(30):
        train, held = whole.split(0.3, seed)
        assert not set(alike[train].tolist()) & set(alike[held].tolist())


def test_the_order_of_rows_tells_episodes_apart() -> None:
    rows = TensorDict({"action": torch.tensor([[1.0], [2.0], [2.0], [1.0], [1.0], [2.0]])}, [6])
    alike = Demonstrations(rows, torch.tensor([2, 2, 2])).same_episodes().tolist()
    assert alike[0] == alike[2] != alike[1]


def test_too_few_different_episodes_to_split() -> None:
    rows = TensorDict({"action": torch.ones(6, 1)}, [6])
    with pytest.raises(ValueError, match=r"1 different .*3"):
        Demonstrations(rows, torch.tensor([2, 2, 2])).split(0.5, 0)


@pytest.mark.parametrize("lengths", [[], [3, 0, 14], [16], [18]])
def test_lengths_that_do_not_add_up_and_rows_without_actions(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match=r"lengths of .*17 rows"):
        Demonstrations(shown().rows, torch.tensor(lengths, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"entry action"):
        Demonstrations(shown().rows.exclude("action"), torch.tensor(LENGTHS))


def test_arrays_take_one_form() -> None:
    found = from_arrays({"action": np.array([[1], [2]]), "x": np.array([0.5, 1.5])}, [2], "a").rows
    assert found["action"].tolist() == [1, 2]
    assert found["x"].tolist() == [[0.5], [1.5]]
    assert found["x"].dtype == torch.float32
    with pytest.raises(ValueError, match=r"a: x: .*finite; row 1 "):
        from_arrays({"action": np.array([1, 2]), "x": np.array([0.5, 1e300])}, [2], "a")


def test_a_share_is_one_of_rows() -> None:
    """A share is one of rows, not of episodes.

    Nine in ten episodes are the same one, which counted once was held back with one of two seeds.
    """
    lengths = torch.tensor([4] * 90 + [4] * 10)
    number = torch.cat([torch.zeros(90), torch.arange(1, 11)])
    rows = TensorDict({"action": number.repeat_interleave(4)}, [400])
    for seed in range(10):
        train, held = Demonstrations(rows, lengths).split(0.05, seed)
        assert len(held) == 5
        assert set(range(90)) <= set(train.tolist())


def test_episodes_of_many_lengths_come_near_to_the_share() -> None:
    lengths = torch.tensor([1] * 50 + [100] * 10)
    rows = TensorDict({"action": torch.arange(int(lengths.sum()))}, [int(lengths.sum())])
    for seed in range(10):
        _, held = Demonstrations(rows, lengths).split(0.2, seed)
        assert 150 <= int(lengths[held].sum()) <= 260
