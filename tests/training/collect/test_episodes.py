"""The meter of finished episodes, by hand."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.no_host_reads import NoHostReads
from torchrl_gpu.training.collect.rollout import EpisodeMeter

CPU = torch.device("cpu")


def steps(done: list[int], utilization: list[float]) -> TensorDict:
    columns = {"done": torch.tensor(done).bool().unsqueeze(-1), "utilization": torch.tensor(utilization).unsqueeze(-1)}
    return TensorDict(columns, batch_size=[len(done)])


def test_by_hand() -> None:
    meter = EpisodeMeter(CPU, memory=0.75)
    meter.count(steps([0, 0], [0.5, 0.9]))  # nothing finished
    assert (meter.finished.item(), meter.recent["utilization"].item()) == (0, 0.0)
    assert meter.outcomes["utilization"].isnan()  # nobody knows
    meter.count(steps([1, 0, 1], [0.2, 0.9, 0.6]))  # the first mean stands as it is: (0.2 + 0.6) / 2
    assert (meter.finished.item(), meter.recent["utilization"].item()) == (2, pytest.approx(0.4))
    assert torch.equal(meter.outcomes["utilization"], meter.recent["utilization"])
    meter.count(steps([0, 1], [0.9, 0.8]))  # 0.75 · 0.4 + 0.25 · 0.8
    assert (meter.finished.item(), meter.recent["utilization"].item()) == (3, pytest.approx(0.5))
    meter.count(steps([0], [0.1]))
    assert (meter.finished.item(), meter.recent["utilization"].item()) == (3, pytest.approx(0.5))


def worlds(done: list[list[int]], success: list[list[int]], collided: list[list[int]]) -> TensorDict:
    """Steps (N, T) of navigation, whose two names are told by yes or no."""
    columns = {"done": done, "success": success, "collided": collided}
    shaped = {name: torch.tensor(column).bool().unsqueeze(-1) for name, column in columns.items()}
    return TensorDict(shaped, batch_size=[len(done), len(done[0])])


def test_several_names_by_hand() -> None:
    meter = EpisodeMeter(CPU, ("success", "collided"), memory=0.5)
    assert list(meter.recent) == ["success", "collided"]
    # Three of four steps end an episode: one succeeds, two collide. What others tell on their way does not count.
    meter.count(worlds([[1, 0], [1, 1]], [[1, 1], [0, 0]], [[0, 1], [1, 1]]))
    assert meter.finished.item() == 3
    assert {name: value.item() for name, value in meter.recent.items()} == pytest.approx(
        {"success": 1 / 3, "collided": 2 / 3}
    )
    meter.count(worlds([[0, 0], [0, 1]], [[1, 1], [0, 1]], [[1, 1], [1, 0]]))  # halfway to 1, and to 0
    assert meter.finished.item() == 4
    assert {name: value.item() for name, value in meter.recent.items()} == pytest.approx(
        {"success": 2 / 3, "collided": 1 / 3}
    )


def test_without_names_it_counts() -> None:
    meter = EpisodeMeter(CPU, ())
    meter.count(steps([1, 0, 1], [0.1, 0.1, 0.1]))
    assert (meter.finished.item(), meter.recent) == (2, {})


NAMES = pytest.mark.parametrize("names", [("utilization",), ("utilization", "success")], ids=str)


def seen(done: list[int], utilization: list[float]) -> TensorDict:
    """Steps with both names; a success is a bin that is more than half full."""
    made = steps(done, utilization)
    return made.set("success", made["utilization"] > 0.5)


@NAMES
def test_it_goes_on_where_it_was_saved(names: tuple[str, ...]) -> None:
    saved, loaded = EpisodeMeter(CPU, names), EpisodeMeter(CPU, names)
    saved.count(seen([1, 1], [0.5, 0.75]))
    state = saved.state_dict()
    assert set(state) == {"finished", *(f"recent_{name}" for name in names)}
    loaded.load_state_dict(state)
    for meter in (saved, loaded):
        meter.count(seen([1, 1], [0.1, 0.6]))
    assert loaded.finished == saved.finished == 4
    assert loaded.recent == saved.recent
    assert loaded.recent != EpisodeMeter(CPU, names).recent


@NAMES
def test_nothing_is_read_back(names: tuple[str, ...]) -> None:
    meter, told = EpisodeMeter(CPU, names), seen([1, 0], [0.5, 0.5])
    with NoHostReads():
        meter.count(told)
