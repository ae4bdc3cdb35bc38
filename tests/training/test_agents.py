"""Every agent that learns from replay: it trains, is evaluated, waits for no device, and resumes to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor

from tests.no_host_reads import NoHostReads
from tests.training import tiny, tiny_navigation
from tests.training.resuming import differences, everything, last
from tests.training.test_packing_agents import AGENTS as PACKERS
from tests.training.test_packing_agents import module as packer
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.policies import PeriodicTargets
from torchrl_gpu.training import OffPolicy

CASES: dict[str, Callable[..., OffPolicy]] = {f"{name} packs": partial(packer, name) for name in PACKERS}
CASES |= {name: partial(tiny_navigation.navigation, name) for name in tiny_navigation.AGENTS}
every = pytest.mark.parametrize("case", CASES)


def trained(
    case: str, module: OffPolicy, folder: Path, max_steps: int = 6, *more: Callback, **changes: Any
) -> OffPolicy:
    data: Any = tiny.data() if case.endswith("packs") else tiny_navigation.worlds()
    return tiny.fit(module, folder, max_steps, *more, data_module=data, **changes)


def weights(module: OffPolicy) -> list[Tensor]:
    return [weight.detach().clone() for weight in module.agent.parameters_to_train]


@every
def test_it_trains_and_is_evaluated(tmp_path: Path, case: str) -> None:
    module = CASES[case](prioritized="Rainbow" in case)
    before = weights(module)
    runner = trained(case, module, tmp_path).trainer
    metrics, groups = runner.callback_metrics, module.agent.parameter_groups
    moved = [not torch.equal(a, b) for a, b in zip(before, weights(module), strict=True)]
    assert sum(moved) > len(moved) / 2
    assert runner.global_step == 6
    assert "train/loss" in runner.progress_bar_metrics
    score = "utilization" if case.endswith("packs") else "success"
    assert [name for name in runner.progress_bar_metrics if name.startswith("val/")] == [f"val/{score}"]
    wanted = {"train/loss", "train/frames", f"train/{score}", f"val/{score}"}
    wanted |= {f"val/{name}" for name in ("num_packed", "compactness", "pyramidality")} if score != "success" else set()
    wanted |= set() if case.endswith("packs") else {"train/collided", "val/arrived", "val/collision_rate", "val/return"}
    wanted |= {"train/epsilon"} if module.agent.exploration is not None else set()
    wanted |= {f"train/{group}_loss" for group in groups} if len(groups) > 1 else set()
    assert wanted <= set(metrics)
    assert all(value.isfinite() for value in metrics.values())
    assert module.policy_name == module.learner_name == module.agent.name


@every
def test_playing_and_updating_read_nothing_back(tmp_path: Path, case: str) -> None:
    module = trained(case, CASES[case](prioritized="Rainbow" in case or case == "SAC"), tmp_path, 2)
    with NoHostReads():
        module._play()
        batch = module.replay.sample()
        for part in (batch, batch["next"]):
            module.env.restore(part)
        torch.stack(list(module.agent.losses(batch).values())).sum().backward()
        module.agent.update_targets(7)
        module.replay.update_priority(batch["index"], batch["td_error"])
    optimizer: Any = module.optimizers()
    assert all(group["capturable"] is False for group in optimizer.param_groups)  # no GPU here


RESUMED: list[tuple[str, dict[str, Any]]] = [
    ("DQN packs", {}),
    ("DQN packs", {"prioritized": True}),
    ("DQN packs", {"agent": {"targets": PeriodicTargets(4)}}),
    ("IQN packs", {}),
    ("Rainbow", {"prioritized": True, "beta_updates": 20}),
    ("SAC", {}),
]


@pytest.fixture(scope="module", params=RESUMED, ids=str)
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Any]:
    case, changes = request.param
    schedule = partial(torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.1, total_iters=10)
    make, folder = partial(CASES[case], lr_scheduler=schedule, **changes), tmp_path_factory.mktemp("whole")
    trained(case, make(), folder, 12, EpisodeCheckpoint())
    return case, make, everything(last(folder))


@pytest.mark.parametrize("stop", [4, 6])  # in the middle of an epoch of 3 training steps, and at its end
def test_a_run_that_is_stopped_and_resumed(tmp_path: Path, uninterrupted: tuple[str, Any, Any], stop: int) -> None:
    case, make, whole = uninterrupted
    trained(case, make(), tmp_path / "half", stop, EpisodeCheckpoint())
    other = make(env={"seed": 11})  # as a new process would: another generator, another first episode
    trained(case, other, tmp_path / "rest", 12, EpisodeCheckpoint(), ckpt_path=last(tmp_path / "half"), seed=5)
    assert {"state_dict", "optimizer_states", "lr_schedulers", "rollout", "meter", "random", "replay"} <= set(whole)
    assert differences(whole, everything(last(tmp_path / "rest"))) == []
    assert differences(whole, everything(last(tmp_path / "half"))) != []
