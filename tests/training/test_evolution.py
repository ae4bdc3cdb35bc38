"""Evolution of placement weights.

The strategy on known functions, the run, its resume and its policy.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import RandomBoxes
from torchrl_gpu.policies import load_policy
from torchrl_gpu.training import PlacementEvolution
from torchrl_gpu.training.data.episodes import StepLoader
from torchrl_gpu.training.packing.cma_es import Population

pytestmark = [
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
    pytest.mark.filterwarnings("ignore:`LightningModule.configure_optimizers` returned `None`"),
]

ENV: dict[str, Any] = {"items": RandomBoxes(2, 5), "stability": "support", "include": ("z_map",), "seed": 0}
make_env = partial(PackingEnv, 12, **ENV)


def ellipsoid(x: Tensor) -> Tensor:
    return -(x.square() * torch.logspace(0, 4, x.shape[-1], dtype=torch.float64)).sum(-1)


def rosenbrock(x: Tensor) -> Tensor:
    return -(100 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1 - x[..., :-1]) ** 2).sum(-1)


@pytest.mark.parametrize(("function", "generations"), [(ellipsoid, 250), (rosenbrock, 400)])
def test_the_strategy_finds_the_optimum_of_bent_and_stretched_functions(function: Any, generations: int) -> None:
    # Both are out of reach of a strategy that adapts no covariance, in as many generations.
    population = Population(torch.full((6,), 3.0, dtype=torch.float64), 0.5, 12)
    for _ in range(generations):
        population.learn(function(population.draw(0)))
    assert function(population.mean) > -1e-8


def test_a_generation_depends_on_seed_and_number_alone() -> None:
    first = Population(torch.zeros(3, dtype=torch.float64), 1.0, 6)
    second = Population(torch.zeros(3, dtype=torch.float64), 1.0, 6)
    assert torch.equal(first.draw(1), second.draw(1))
    assert not torch.equal(first.draw(1), second.draw(2))
    first.learn(first.draw(1)[:, 0])
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.draw(1), second.draw(1))


def fit(folder: Path, generations: int, **more: Any) -> PlacementEvolution:
    run = PlacementEvolution(make_env, members=4)
    trainer = Trainer(
        max_steps=generations, default_root_dir=folder, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_checkpointing=False, num_sanity_val_steps=0,
    )  # fmt: skip
    run.run_config = {"model": {"init_args": {"members": 4, "candidates": 40}}}
    trainer.fit(run, StepLoader(generations), **more)
    trainer.save_checkpoint(folder / f"{generations}.ckpt")
    return run


def test_a_run_goes_on_exactly_and_its_checkpoint_is_a_policy(tmp_path: Path) -> None:
    whole = fit(tmp_path, 4)
    fit(tmp_path, 2)
    resumed = fit(tmp_path, 4, ckpt_path=tmp_path / "2.ckpt")
    for (name, ours), theirs in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name
    assert whole.frames == resumed.frames
    assert int(whole.population.generation) == 4
    # The weight has moved.
    assert not torch.equal(whole.values.weight, PlacementEvolution(make_env(), members=4).values.weight)
    policy = load_policy(tmp_path / "4.ckpt", "cpu")
    env = make_env()
    seen = env.reset()
    again = policy(seen.clone())["action"]
    assert torch.equal(again, whole.policy_for(env)(seen.clone())["action"])


def test_members_pack_the_same_sequences(tmp_path: Path) -> None:
    run = fit(tmp_path, 1)
    keys = run.env.state.key.view(4, 3)
    assert (keys == keys[0]).all()
    assert len(keys[0].unique()) == 3


def test_environments_are_a_multiple_of_the_members_in_training_alone() -> None:
    # It is evaluated in any number of environments.
    made = PlacementEvolution(make_env(device="cpu"), members=5)
    with pytest.raises(ValueError, match=r"PlacementEvolution: num_envs .*\b5 members.* 12"):
        made.check_fit()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"begin": "rs"}, "PlacementEvolution: begin must be a policy of placement weights, which 'rs' is not"),
        ({"members": 3}, "PlacementEvolution: members must be at least 4; got 3"),
        ({"step": 0}, "PlacementEvolution: step must be above 0; got 0"),
        ({"env": PackingEnv(4, device="cpu", include=())}, "must be a PackingEnv of boxes that includes z_map"),
    ],
)
def test_bad_arguments_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlacementEvolution(**{"env": make_env(device="cpu"), "members": 4} | changes)
