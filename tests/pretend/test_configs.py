"""Shipped configs in small on the pretended device.

They run through Lightning's own `accelerator=gpu`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.pretend.small import command_line, is_navigation
from tests.test_end_to_end import write_demonstrations
from torchrl_gpu import cli

PACKING = {"data__num_episodes": 1, "data__num_val_episodes": 1}
NAVIGATION = {
    "data__worlds_per_level": 1,
    "data__val_worlds_per_level": 1,
    "data__test_levels": "own",
    "data__max_steps": 6,
}
# Of each suite that predicts.
ALL_WORDS = ("packing_dqn.yaml", "navigation_sac.yaml")
# They have every kind of table.
TESTED = (*ALL_WORDS, "packing_irregular.yaml", "dishwashing_video.yaml")


def small(name: str) -> list[str]:
    more = NAVIGATION if is_navigation(name) else PACKING
    return command_line(name, data__steps_per_epoch=2, trainer__max_steps=4, **more)


# The others differ from these in an agent or an environment that has its own tests here, as graphs and alone, or train
# in `test_made_to_fail`.
NAMES = (*TESTED, "packing_pallets.yaml", "packing_refined.yaml", "packing_bc_to_rl.yaml", "bc.yaml")


@pytest.mark.parametrize("name", NAMES)
def test_it_trains_and_is_tested(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "bc" in name:
        write_demonstrations(tmp_path)
    assert cli.main(["fit", *small(name)]) is None
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    content = torch.load(checkpoint, weights_only=True)
    assert content["global_step"] == 4
    assert {value.device.type for value in content["state_dict"].values()} == {"cuda"}
    for word in ("test", "predict") if name in ALL_WORDS else ["test"] * (name in TESTED):
        assert cli.main([word, *small(name), f"--ckpt_path={checkpoint}"]) is None
    assert bool(list(tmp_path.rglob("evaluation.json"))) is (name in TESTED)
    predicted = list(tmp_path.rglob("plans.json")) + list(tmp_path.rglob("crossings.json"))
    assert bool(predicted) is (name in ALL_WORDS)
