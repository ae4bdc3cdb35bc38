from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from tests.recordings.reading import read
from torchrl_gpu.envs import DishwashingEnv
from torchrl_gpu.recordings import EpisodeRecorder

pytest.importorskip("mcap")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ({"action_value": torch.tensor([[9.0, 8.0, 7.0], [1.0, 2.0, 5.0]])}, 2.0),  # of the second action, not the best
        ({"action_value": torch.zeros(2, 3), "chosen_action_value": torch.tensor([[3.0], [4.0]])}, 4.0),
        ({"chosen_action_value": torch.zeros(2, 1), "state_value": torch.tensor([[6.0], [7.0]])}, 7.0),
        ({}, None),
    ],
)
def test_a_value_is_that_of_the_action_or_the_state(
    written: dict[str, Any], value: float | None, tmp_path: Path
) -> None:
    decided = TensorDict({"action": torch.tensor([0, 1]), **written}, [2])
    with EpisodeRecorder(tmp_path / "a.mcap", DishwashingEnv(2, device="cpu"), 1, begin_ns=5) as recorder:
        recorder.decide(decided, ["action"])
    found = {
        topic: [list(each.values) for _, each in all_] for topic, all_ in read(tmp_path / "a.mcap").messages.items()
    }
    assert found == {"/action": [[1.0]]} | ({} if value is None else {"/value": [[value]]})
