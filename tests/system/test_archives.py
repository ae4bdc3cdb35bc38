from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDictBase

from tests.policies import checkpoints
from torchrl_gpu.policies import load_policy
from torchrl_gpu.system.archives import read_archive
from torchrl_gpu.system.policy_messages import BadAction, BadMessage, answers, check_finite


def test_archive_is_read_as_saved_and_stays_on_disk(tmp_path: Path) -> None:
    saved = {"weights": torch.arange(6.0).view(2, 3), "frames": 7}
    torch.save(saved, tmp_path / "a.pt")
    for every_byte in (False, True):
        found = read_archive(tmp_path / "a.pt", "archive", every_byte=every_byte)
        assert found["frames"] == 7
        assert torch.equal(found["weights"], saved["weights"])


def test_a_flipped_bit_is_seen_where_every_byte_is_read(tmp_path: Path) -> None:
    torch.save({"weights": torch.full((64,), 1.5)}, tmp_path / "a.pt")
    content = bytearray((tmp_path / "a.pt").read_bytes())
    content[content.index(torch.full((64,), 1.5).numpy().tobytes()) + 17] ^= 1
    (tmp_path / "a.pt").write_bytes(content)
    assert not (read_archive(tmp_path / "a.pt", "archive")["weights"] == 1.5).all()
    with pytest.raises(ValueError, match=r"archive .*a\.pt: .*a/data/0"):
        read_archive(tmp_path / "a.pt", "archive", every_byte=True)


def test_an_archive_that_unpacks_to_more_than_itself_is_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(100_000)}, tmp_path / "a.pt")
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ValueError, match=r"declares more"):
        read_archive(packed, "archive")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"regular file"):
        read_archive(tmp_path / "pipe", "archive")
    with pytest.raises(ValueError, match="a folder"):
        read_archive(tmp_path, "archive")
    with pytest.raises(FileNotFoundError, match=r"no such file"):
        read_archive(tmp_path / "nothing", "archive")


MASK = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
NAN, INF = float("nan"), float("inf")


def discrete(**written: Any) -> Any:
    return made(lambda rows: rows.update({name: torch.tensor(each) for name, each in written.items()}), num_actions=3)


def made(policy: Callable[[TensorDictBase], TensorDictBase], **space: Any) -> Any:
    space = {"num_actions": None, "low": None, "high": None} | space
    return SimpleNamespace(policy=policy, space=SimpleNamespace(**space))


def faults(policy: Any, rows: int = 3) -> dict[int, str]:
    return answers(policy, {"x": torch.zeros(rows, 2), "action_mask": MASK[:rows]}).faults


def test_each_row_of_actions_is_judged_by_itself() -> None:
    action = torch.tensor([[0.5, 9.0], [NAN, 0.0], [0.0, -INF]])
    found = answers(made(lambda rows: rows.set("action", action), low=(-1.0, 0.0), high=(1.0, 2.0)), {"x": action})
    assert found.actions[0].tolist() == [0.5, 2.0], "within bounds"
    assert set(found.faults) == {1, 2}
    assert "[nan, 0.0]" in found.faults[1]
    assert "[0.0, -inf]" in found.faults[2]
    found.check(0, 1)
    with pytest.raises(BadAction, match=r"row 1: action .*finite"):
        found.check()


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ({"action": [0, 0, 2]}, {}),
        ({"action": [0, 0, 3]}, {2: "from 0 to 2, not 3"}),
        ({"action": [-1, 0, 2]}, {0: "from 0 to 2, not -1"}),
        ({"action": [1, 0, 2]}, {0: "action 1 is illegal"}),
        ({"action": [0, 0, 0], "action_value": [[NAN, 1, 1], [0, 0, 0], [1, NAN, INF]]}, {0: "nan"}),
        ({"action": [0, 0, 0], "action_value": [[1.0, 1, 1], [0, 0, 0], [INF, 0, 0]]}, {2: "inf"}),
        ({"action": [0, 0, 0], "action_log_prob": [-0.1, -0.2, NAN]}, {2: "nan"}),
        ({"action": [0, 0, 0], "confidence": [0.1, 1.5, NAN]}, {1: "not 1.5", 2: "not nan"}),
    ],
)
def test_a_choice_is_legal_and_worth_a_number(written: dict[str, Any], wanted: dict[int, str]) -> None:
    found = faults(discrete(**written))
    assert set(found) == set(wanted)
    assert all(wanted[row] in said for row, said in found.items())


@pytest.mark.parametrize("action", [torch.zeros(2, 2), torch.zeros(3, 1), torch.zeros(2)])
def test_another_number_of_actions_is_refused(action: torch.Tensor) -> None:
    policy = made(lambda rows: {"action": action}, low=(0.0, 0.0), high=(1.0, 1.0))  # type: ignore[arg-type,return-value]
    with pytest.raises(BadAction, match=r"2 finite .*3 rows"):
        answers(policy, {"x": torch.zeros(3, 1)})


@pytest.mark.parametrize("kind", ["DQN packs", "PPO packs"])
def test_observations_that_overflow_in_a_network_bring_no_action(kind: str, tmp_path: Any) -> None:
    """It was 0, as if that were the best of 50: `argmax` of NaN."""
    path, agent = checkpoints.saved(tmp_path, kind)
    policy, seen = load_policy(path, "cpu"), checkpoints.observations(agent, 2)
    seen["box_heightmap"][1] = 3e38
    found = answers(policy, {name: seen[name] for name in policy.in_keys})
    assert set(found.faults) == {1}
    with pytest.raises(BadAction, match=r"row 1: .*value.* nan"):
        found.check()


def test_numbers_of_observations_are_finite() -> None:
    for dtype in (np.float16, np.float32, np.float64):
        check_finite("x", np.zeros(3, dtype))
        for bad in (NAN, INF, -INF):
            with pytest.raises(BadMessage, match=rf"x\b.*{bad}"):
                check_finite("x", np.array([0, bad], dtype))
    check_finite("x", np.zeros(3, np.uint8))
