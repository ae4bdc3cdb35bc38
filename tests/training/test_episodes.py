"""The meter of finished episodes, by hand."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.no_host_reads import NoHostReads
from torchrl_gpu.training.episodes import EpisodeMeter

CPU = torch.device("cpu")


def steps(done: list[int], utilization: list[float]) -> TensorDict:
    columns = {"done": torch.tensor(done).bool().unsqueeze(-1), "utilization": torch.tensor(utilization).unsqueeze(-1)}
    return TensorDict(columns, batch_size=[len(done)])


def test_by_hand() -> None:
    meter = EpisodeMeter(CPU, memory=0.75)
    meter.count(steps([0, 0], [0.5, 0.9]))  # nothing finished
    assert (meter.finished.item(), meter.recent_score.item()) == (0, 0.0)
    meter.count(steps([1, 0, 1], [0.2, 0.9, 0.6]))  # the first mean stands as it is: (0.2 + 0.6) / 2
    assert (meter.finished.item(), meter.recent_score.item()) == (2, pytest.approx(0.4))
    meter.count(steps([0, 1], [0.9, 0.8]))  # 0.75 · 0.4 + 0.25 · 0.8
    assert (meter.finished.item(), meter.recent_score.item()) == (3, pytest.approx(0.5))
    meter.count(steps([0], [0.1]))
    assert (meter.finished.item(), meter.recent_score.item()) == (3, pytest.approx(0.5))


def test_it_goes_on_where_it_was_saved() -> None:
    saved, loaded = EpisodeMeter(CPU), EpisodeMeter(CPU)
    saved.count(steps([1], [0.5]))
    loaded.load_state_dict(saved.state_dict())
    for meter in (saved, loaded):
        meter.count(steps([1, 1], [0.1, 0.2]))
    assert loaded.finished == saved.finished == 3
    assert loaded.recent_score == saved.recent_score


def test_nothing_is_read_back() -> None:
    meter, seen = EpisodeMeter(CPU), steps([1, 0], [0.5, 0.5])
    with NoHostReads():
        meter.count(seen)
