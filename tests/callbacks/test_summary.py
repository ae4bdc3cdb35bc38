"""The table of a run's networks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import LightningModule
from torch import nn

from tests.training import tiny_packer
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import NetworkSummary
from torchrl_gpu.callbacks.summary import network_table
from torchrl_gpu.policies import IQN, AgentSpace, PlacementQuantiles


def rows(made: nn.Module) -> dict[str, tuple[str, int, str]]:
    name, kind, size, remark = (list(column.cells) for column in network_table(made).columns)
    sizes = (int(str(each).replace(",", "")) for each in size)
    return dict(zip(map(str, name), zip(map(str, kind), sizes, map(str, remark), strict=True), strict=True))


def num_parameters(made: nn.Module) -> int:
    return sum(p.numel() for p in made.parameters())


def test_an_agent_by_its_network() -> None:
    made = module()
    (name, network), *parts = rows(made).items()
    assert (name, *network) == ("policy", "PlacementScores", num_parameters(made), "")
    assert [part for part, _ in parts] == ["  stem", "  blocks", "  advantage", "  value"]
    assert sum(size for _, (_, size, _) in parts) == num_parameters(made)


def test_targets_are_told_from_what_is_trained() -> None:
    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.agent = IQN(AgentSpace.of(module().env), network=partial(PlacementQuantiles, channels=4, blocks=1))

    found = rows(Module())
    assert (found["policy"][2], found["target"][2]) == ("", "follows, is not trained")
    assert found["policy"][1] == found["target"][1]


def test_a_packer_by_its_networks() -> None:
    made = tiny_packer.module()
    found = rows(made)
    assert {"worker", "manager", "value", "other weights"} <= found.keys()
    assert found["total"][1] == num_parameters(made)
    assert sum(size for name, (_, size, _) in found.items() if name[0] != " ") == 2 * num_parameters(made)
    assert found["other weights"][1] == 3  # the three slopes


def test_one_network_by_two_names_counts_once() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 3)
            self.b = nn.Sequential(self.a, nn.Linear(3, 1))

    assert {name: size for name, (_, size, _) in rows(Module()).items()} == {"a": 9, "b": 4, "total": 13}


def test_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet: dict[str, Any] = {"enable_model_summary": True, "enable_checkpointing": False}
    made = fit(module(), tmp_path, 2, NetworkSummary(), **quiet)
    shown = capsys.readouterr().out
    assert f"{num_parameters(made):,}" in shown
    assert "PlacementScores" in shown
    assert "FLOPs" not in shown


def test_what_has_no_weights_has_no_rows() -> None:
    assert network_table(nn.Sequential(nn.ReLU())).rows == []
