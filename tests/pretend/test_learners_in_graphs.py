"""Learners that are no agents, by graphs and by operators one by one.

Both learn the same. Graphs are the default on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from tests.training import test_afterstates, test_behaviour_cloning, test_evolution, tiny, tiny_navigation
from torchrl_gpu.demonstrations import memmap
from torchrl_gpu.evaluation.demonstrations import play_rows
from torchrl_gpu.evaluation.episodes import suite_for
from torchrl_gpu.policies.packing.heuristics import DeepestBottomLeft
from torchrl_gpu.training import PlacementEvolution
from torchrl_gpu.training.data.episodes import StepLoader
from torchrl_gpu.training.run import EnvRun

GPU: dict[str, Any] = {"accelerator": "gpu", "devices": 1}
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
    "num_sanity_val_steps": 0,
    "limit_val_batches": 0,
}
# An epsilon that keeps what is only rounding from being divided by itself.
adam = partial(torch.optim.Adam, lr=1e-3, eps=1e-3)

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
    pytest.mark.filterwarnings("ignore:`LightningModule.configure_optimizers` returned `None`"),
]


def tables(**options: object) -> EnvRun:
    return test_afterstates.module(**options)


def refined(**options: object) -> EnvRun:
    return test_afterstates.refined(optimizer=adam, **options)


def evolution(**options: object) -> EnvRun:
    options.pop("graph_updates", None)
    return PlacementEvolution(test_evolution.make_env, members=4, **options)


def packer(**options: object) -> EnvRun:
    torch.manual_seed(5)
    made = tiny_navigation.hierarchical(n_steps=2, worker_updates=4, manager_period=2, **options)
    made.make_optimizer = adam
    return made


def cloning(path: Path, **options: object) -> EnvRun:
    options.pop("cuda_graphs", None)
    made = test_behaviour_cloning.choice(lr_scheduler=None, **options)
    made.make_optimizer = adam
    return made


LEARNERS: dict[str, Callable[..., EnvRun]] = {
    "plain tables": tables,
    "refined tables": refined,
    "evolution": evolution,
    "hierarchical packer": packer,
}


def in_graphs(made: Any) -> list[bool]:
    """Whether what may be in a graph is in one."""
    parts = [getattr(made, name, None) for name in ("_graphed", "_graphed_sweeps", "_graphed_updates", "_play")]
    parts.append(getattr(getattr(made, "rollout", None), "_graphed", None))
    return [part.proven for part in parts if hasattr(part, "proven")]


def assert_same_weights(ours: EnvRun, theirs: EnvRun) -> None:
    for (name, one), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", LEARNERS)
def test_it_learns_the_same(name: str, tmp_path: Path) -> None:
    ends = []
    for options in ({}, {"cuda_graphs": False, "graph_updates": False}):
        made = LEARNERS[name](**options)
        torch.manual_seed(3)
        trainer = Trainer(max_steps=10, default_root_dir=tmp_path, **QUIET, **GPU)
        trainer.fit(made, StepLoader(10))
        assert made.env.device.type == "cuda"
        ends.append(made)
    graphs = in_graphs(ends[0])
    assert graphs
    assert all(graphs)
    assert in_graphs(ends[1]) == []
    assert_same_weights(*ends)


def test_cloning_learns_the_same(tmp_path: Path) -> None:
    env = tiny.packing_env()
    rows = memmap.save(play_rows(suite_for(env, 40, seed=5), DeepestBottomLeft(env), 40), tmp_path / "rows")
    ends = []
    for options in ({}, {"graph_updates": False}):
        made = cloning(tmp_path, **options)
        trainer = Trainer(max_steps=10, default_root_dir=tmp_path, **QUIET, **GPU)
        trainer.fit(made, test_behaviour_cloning.data(rows))
        ends.append(made)
    assert in_graphs(ends[0]) == [True]
    assert in_graphs(ends[1]) == []
    assert_same_weights(*ends)
