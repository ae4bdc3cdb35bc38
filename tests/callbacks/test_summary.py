"""Which networks a run trains, and how large they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from tests.training import tiny_packer
from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import NetworkSummary
from torchrl_gpu.callbacks.summary import NetworkRow, network_rows
from torchrl_gpu.policies import IQN, AgentSpace, PlacementQuantiles


def tops(made: nn.Module) -> dict[str, NetworkRow]:
    return {row.name: row for row in network_rows(made) if not row.depth}


def num_parameters(made: nn.Module) -> int:
    return sum(p.numel() for p in made.parameters())


def test_an_agent_by_its_network() -> None:
    made = module()
    network, *parts = network_rows(made)
    assert (network.name, network.kind, network.size) == ("policy", "PlacementScores", num_parameters(made))
    assert [part.name for part in parts] == ["stem", "blocks", "advantage", "value"]
    assert sum(part.size for part in parts) == network.size
    assert all(row.trained for row in (network, *parts))


def test_targets_are_told_from_what_is_trained() -> None:
    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.agent = IQN(AgentSpace.of(module().env), network=partial(PlacementQuantiles, channels=4, blocks=1))

    rows = tops(Module())
    assert rows["policy"].trained
    assert not rows["target"].trained
    assert rows["policy"].size == rows["target"].size


def test_a_packer_by_its_networks() -> None:
    made = tiny_packer.module()
    rows = tops(made)
    assert {"worker", "manager", "value", "other weights"} <= rows.keys()
    assert sum(row.size for row in rows.values()) == num_parameters(made)
    assert rows["other weights"].size == 3  # the three slopes


def test_one_network_by_two_names_counts_once() -> None:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 3)
            self.b = nn.Sequential(self.a, nn.Linear(3, 1))

    assert {name: row.size for name, row in tops(Module()).items()} == {"a": 9, "b": 4}


def test_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet: dict[str, Any] = {"enable_model_summary": True, "enable_checkpointing": False}
    made = fit(module(), tmp_path, 2, NetworkSummary(), **quiet)
    shown = capsys.readouterr().out
    assert f"{num_parameters(made):,}" in shown
    assert "PlacementScores" in shown
    assert "FLOPs" not in shown


def test_nothing_is_printed_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert network_rows(nn.Sequential(nn.ReLU())) == []
    assert torch.is_grad_enabled()
    assert capsys.readouterr().out == ""
