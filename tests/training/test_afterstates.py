"""Learning of afterstate values.

Against a naive twin, resumed to the last bit, and as a run of Lightning's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

from tests.no_host_reads import NoHostReads
from tests.training.resuming import differences, without_replay
from torchrl_gpu import native
from torchrl_gpu.envs import MarineNavEnv, PackingEnv
from torchrl_gpu.envs.packing.items import ProceduralSolids, RandomBoxes
from torchrl_gpu.envs.packing.kernels import get_kernels
from torchrl_gpu.evaluation.packing.episodes import evaluate
from torchrl_gpu.policies import PackingPolicy, PatchTables, RefinedTables, load_policy
from torchrl_gpu.policies.packing.ntuple import refined as refined_tables
from torchrl_gpu.policies.packing.ntuple import sweep
from torchrl_gpu.policies.packing.ntuple.greedy_rollouts import GreedyRollouts
from torchrl_gpu.policies.weights import unpacked_state
from torchrl_gpu.system.archives import ENTRY
from torchrl_gpu.training import AfterstateLearning
from torchrl_gpu.training.data.episodes import StepLoader
from torchrl_gpu.training.lightning_callbacks import RunAveraging
from torchrl_gpu.training.packing.afterstates import goals

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
    pytest.mark.filterwarnings("ignore:`LightningModule.configure_optimizers` returned `None`"),
]


def environment(num_envs: int = 8, **changes: Any) -> PackingEnv:
    settings = {"items": RandomBoxes(1, 3), "bin_size": (4.0, 4.0, 4.0), "resolution": 4, "seed": 3, "device": "cpu"}
    return PackingEnv(num_envs, **settings | changes)


def module(**changes: Any) -> AfterstateLearning:
    settings = {"rollout_steps": 6, "sweeps": 2} | changes
    return AfterstateLearning(environment(), partial(PatchTables, patches=["2x2", "1x3"]), **settings)


def refined(env: PackingEnv | None = None, **changes: Any) -> AfterstateLearning:
    settings = {"rollout_steps": 6, "sweeps": 2, "batch_size": 32, "optimizer": partial(torch.optim.Adam, lr=3e-3)}
    # The seed of the first weights.
    torch.manual_seed(1)
    tables = partial(RefinedTables, patches=["2x2", "1x3"], sides=(1, 3), candidates=3, width=16)
    return AfterstateLearning(env or environment(), tables, **settings | changes)


def fit(
    made: AfterstateLearning, folder: Path, steps: int, ckpt_path: str | None = None, callbacks: Sequence[Any] = ()
) -> Trainer:
    torch.manual_seed(0)
    trainer = Trainer(
        default_root_dir=folder,
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)],
    )
    trainer.fit(made, StepLoader(steps), ckpt_path=ckpt_path, weights_only=True)
    return trainer


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_a_sweep_is_that_of_a_naive_twin(lam: float, tmp_path: Path) -> None:
    """Against a twin written from the definition.

    One step of one trajectory after the other, with returns summed forwards.
    """
    made = module(lam=lam, sweeps=1, rate=0.3)
    twin = PatchTables(made.space, ["2x2", "1x3"])
    g = torch.Generator().manual_seed(5)
    time, rows = 7, 5
    levels = torch.randint(0, 5, (rows, time, 4, 4), generator=g).to(torch.uint8)
    reward, done = torch.rand(rows, time, generator=g) / 4, torch.rand(rows, time, generator=g) < 0.3
    fit(made, tmp_path, 1)
    made.tables.load_state_dict(twin.state_dict())
    made.tables.sweep(made.tables.levels_of(levels.float()), reward, done, made.rate, made.lam)
    returns = np.zeros((rows, time + 1))
    for t in range(time - 1, -1, -1):
        now = levels[:, t]
        if t == time - 1:
            goal = torch.zeros(rows)
        else:
            ahead = twin.values(levels[:, t + 1])
            best = [returns[n, t + 1] if t + 1 < time - 1 or done[n, t + 1] else ahead[n] for n in range(rows)]
            following = (1 - lam) * ahead + lam * torch.tensor(best)
            goal = torch.where(done[:, t], 0.0, reward[:, t + 1] + following)
        returns[:, t] = goal.numpy()
        counts = done[:, t] if t == time - 1 else torch.ones(rows, dtype=torch.bool)
        twin.learn(now, goal.float() - twin.values(now), counts, 0.3)
    torch.testing.assert_close(made.tables.weight, twin.weight, rtol=1e-4, atol=1e-6)
    assert not torch.equal(twin.weight, PatchTables(made.space, ["2x2", "1x3"]).weight)


def test_afterstate_learning_learns_to_pack(tmp_path: Path) -> None:
    made = module(rollout_steps=24, sweeps=1)

    def utilization() -> float:
        return evaluate(environment(32, seed=99), made.policy_for(made.env)).utilization.mean().item()

    before = utilization()
    fit(made, tmp_path, 12)
    assert utilization() > before + 0.05


@pytest.mark.parametrize(("make", "learned"), [(module, "tables.path"), (refined, "tables.network.4.weight")])
def test_a_run_that_is_stopped_and_resumed(make: Any, learned: str, tmp_path: Path) -> None:
    fit(make(), tmp_path / "straight", 8)
    fit(make(), tmp_path / "parts", 4)
    fit(make(), tmp_path / "parts", 8, ckpt_path=str(tmp_path / "parts" / "step=4.ckpt"))
    straight = without_replay(tmp_path / "straight" / "step=8.ckpt")
    parts = without_replay(tmp_path / "parts" / "step=8.ckpt")
    assert differences(straight, parts) == []
    assert straight["state_dict"][learned].any()


def test_a_run_in_whole_calls_is_one_of_single_steps(tmp_path: Path) -> None:
    fit(module(), tmp_path / "whole", 6)
    reason = "single steps are wanted"
    single_steps = mock.patch.object(GreedyRollouts, "problem", return_value=reason)
    single_sweeps = mock.patch.object(sweep, "_cpp_problem", return_value=reason)
    with single_steps as asked, single_sweeps as asked_too:
        fit(module(), tmp_path / "single", 6)
    assert asked.called
    assert asked_too.called
    whole = without_replay(tmp_path / "whole" / "step=6.ckpt")
    single = without_replay(tmp_path / "single" / "step=6.ckpt")
    assert differences(whole, single) == []


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_goals_are_returns_summed_forwards(lam: float) -> None:
    g = torch.Generator().manual_seed(2)
    value, reward = torch.rand(2, 4, 6, generator=g)
    done = torch.rand(4, 6, generator=g) < 0.3
    for n in range(4):
        for t in range(5):
            last = t
            while last < 5 and not done[n, last]:
                last += 1
            # n-step returns by their definition, weighted by λ; the last has the rest of the weight
            gains = [reward[n, t + 1 : k + 1].sum() for k in range(t + 1, last + 1)]
            steps = [gain + (0.0 if done[n, k] else value[n, k]) for k, gain in enumerate(gains, t + 1)]
            weights = [(1 - lam) * lam**k for k in range(len(steps))]
            weights[-1:] = [lam ** (len(steps) - 1)] if steps else []
            wanted = sum((w * s for w, s in zip(weights, steps, strict=True)), torch.tensor(0.0))
            torch.testing.assert_close(goals(value, reward, done, lam)[n, t], wanted, rtol=1e-5, atol=1e-6)


def test_the_network_learns_and_the_tables_stay(tmp_path: Path) -> None:
    """The network learns from tables that know nothing.

    It finds what a bin is worth by how full it is.
    """
    made = refined(rollout_steps=24, sweeps=8)
    weight, errors = made.tables.weight.clone(), []
    for steps in (8, 240):
        fit(made, tmp_path, steps)
        with torch.no_grad():
            after = made.play(made.policy, 40)["next"]
            levels = made.tables.levels_of(after["box_heightmap"])
            value = made.tables.values(levels.flatten(0, 1)).view(levels.shape[:2])
            wanted = goals(value, after["reward"][..., 0], after["done"][..., 0], 1.0)
        errors.append(float((value[:, :-1] - wanted).square().mean()))
    assert errors[1] < errors[0] / 2
    assert torch.equal(made.tables.weight, weight)


def test_a_run_begins_with_the_tables_of_another(tmp_path: Path) -> None:
    trained = module()
    fit(trained, tmp_path, 4)
    PackingPolicy(trained.space, trained.tables).save(tmp_path / "policy.safetensors")
    made = refined(warm_start=tmp_path / "policy.safetensors", sweeps=1)
    fit(made, tmp_path / "refined", 1)
    torch.testing.assert_close(made.tables.weight, trained.tables.weight, rtol=1e-3, atol=1e-4)
    last = str(tmp_path / "refined" / "step=1.ckpt")
    # A resumed run does without the file.
    (tmp_path / "policy.safetensors").unlink()
    fit(refined(warm_start=tmp_path / "policy.safetensors", sweeps=1), tmp_path / "refined", 2, ckpt_path=last)
    with pytest.raises(ValueError, match=r"warm_start rs: .*PatchPlan\(shapes=\('2x2', '1x3'\), levels=4\)"):
        fit(refined(warm_start="rs"), tmp_path, 1)


def test_a_checkpoint_holds_what_has_learned(tmp_path: Path) -> None:
    made = module()
    fit(made, tmp_path, 4)
    path = tmp_path / "step=4.ckpt"
    state = torch.load(path, weights_only=True)["state_dict"]
    learned = int((made.tables.path > 0).sum())
    assert 0 < learned == len(state["tables.learned"]) == len(state["tables.weight"]) < made.tables.plan.entries / 4
    whole = unpacked_state("file", made, state)
    assert all(torch.equal(whole[f"tables.{name}"], each) for name, each in made.tables.state_dict().items())


def test_a_checkpoint_with_whole_tables_goes_on(tmp_path: Path) -> None:
    fit(module(), tmp_path / "straight", 8)
    made = module()
    fit(made, tmp_path / "parts", 4)
    path = tmp_path / "parts" / "step=4.ckpt"
    content = torch.load(path, weights_only=True)
    content["state_dict"] = unpacked_state("file", made, content["state_dict"])
    torch.save(content, path)
    fit(module(), tmp_path / "parts", 8, ckpt_path=str(path))
    straight = without_replay(tmp_path / "straight" / "step=8.ckpt")
    parts = without_replay(tmp_path / "parts" / "step=8.ckpt")
    assert differences(straight, parts) == []


def test_an_average_of_tables_goes_on(tmp_path: Path) -> None:
    def averaging() -> RunAveraging:
        return RunAveraging(EMAWeightAveraging(decay=0.8))

    fit(module(), tmp_path / "straight", 8, callbacks=[averaging()])
    fit(module(), tmp_path / "parts", 4, callbacks=[averaging()])
    fit(module(), tmp_path / "parts", 8, str(tmp_path / "parts" / "step=4.ckpt"), callbacks=[averaging()])
    straight = without_replay(tmp_path / "straight" / "step=8.ckpt")
    parts = without_replay(tmp_path / "parts" / "step=8.ckpt")
    assert differences(straight, parts) == []
    average, current = straight["state_dict"], straight["current_model_state"]
    assert {len(each["tables.weight"]) for each in (average, current)} == {len(current["tables.learned"])}
    assert not torch.equal(average["tables.weight"], current["tables.weight"])


@pytest.mark.parametrize("max_steps", [3, 4])
def test_max_steps_counts_sweeps_and_is_met_exactly(tmp_path: Path, max_steps: int) -> None:
    made = module()
    assert fit(made, tmp_path, max_steps).global_step == max_steps
    assert made.frames == 2 * 8 * 6


def policy_file(
    folder: Path, made: AfterstateLearning | None = None, **settings: Any
) -> tuple[Path, AfterstateLearning, dict[str, Any]]:
    made = made or module()
    settings = {"patches": ["2x2", "1x3"], **settings}
    tables = {"class_path": f"torchrl_gpu.policies.{type(made.tables).__name__}", "init_args": settings}
    made.run_config = {"model": {"init_args": {"tables": tables}}}
    fit(made, folder, 4)
    path = folder / "step=4.ckpt"
    content = torch.load(path, weights_only=True)
    content[ENTRY] = {"config": made.run_config}
    torch.save(content, path)
    return path, made, content


@pytest.mark.parametrize(
    ("make", "settings"), [(module, {}), (refined, {"sides": [1, 3], "candidates": 3, "width": 16})]
)
def test_a_checkpoint_is_a_policy_by_itself(make: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    path, made, _ = policy_file(tmp_path, make(), **settings)
    policy = load_policy(path, "cpu")
    shown = environment().reset()
    assert torch.equal(policy(shown.clone())["action"], made.policy_for(made.env)(shown.clone())["action"])


def test_a_stranger_names_entries_that_are_not_there(tmp_path: Path) -> None:
    path, _, content = policy_file(tmp_path)
    content["state_dict"]["tables.learned"][-1] = 2**31 - 1
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"^policy .*: weights: learned .*torch\.int32"):
        load_policy(path, "cpu")


def test_a_small_file_names_large_tables(tmp_path: Path) -> None:
    """No memory is taken for what it says."""
    path, made, content = policy_file(tmp_path)
    # 100 million entries, 1.2 GB.
    large = {"patches": ["2x4"], "levels": 9}
    made.run_config["model"]["init_args"]["tables"]["init_args"] = large
    content[ENTRY] = {"config": made.run_config}
    torch.save(content, path)
    with pytest.raises(ValueError, match=r"networks .*[\d,]+ bytes"):
        load_policy(path, "cpu")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            lambda: environment(reward="objective"),
            "PackingEnv of boxes with reward 'utilization', not PackingEnv",
        ),
        (lambda: environment(include=()), "include of env must have z_map"),
        (lambda: MarineNavEnv(2, version="v2", device="cpu", pool=4), "must be a PackingEnv of boxes"),
        (
            lambda: PackingEnv(2, items=ProceduralSolids(3), bin_size=(0.4, 0.4, 0.3), resolution=20, device="cpu"),
            "must be a PackingEnv of boxes",
        ),
    ],
    ids=["reward", "maps", "another environment", "solids"],
)
def test_environments_that_it_cannot_learn_in(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AfterstateLearning(env())


def test_the_training_step_reads_nothing_back(tmp_path: Path) -> None:
    """The operators that a GPU runs read nothing back.

    What is made once is made before.
    """
    made = AfterstateLearning(environment(backend="eager"), partial(PatchTables, patches=["2x2", "3x3:1"]))
    with mock.patch.object(native, "runs_on", return_value=False):
        fit(made, tmp_path, 1)
    with NoHostReads():
        after = made.play(made.policy, 3)["next"]
        levels = made.tables.levels_of(after["box_heightmap"])
        made.tables.sweep(levels, after["reward"][..., 0], after["done"][..., 0], made.rate, made.lam)


def test_afterstate_learning_refuses_rollouts_of_one_step() -> None:
    with pytest.raises(ValueError, match=r"rollout_steps .*2\b.*refined.* not 1"):
        refined(rollout_steps=1)


def test_gradients_of_the_network_read_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "runs_on", lambda tensor: False)
    made = refined(env=environment(backend="eager"))
    monkeypatch.setattr(refined_tables, "get_kernels", lambda device: get_kernels("eager", device))
    fit(made, tmp_path, 1)
    with NoHostReads():
        after = made.play(made.policy, 3)["next"]
        levels = made.tables.levels_of(after["box_heightmap"])
        value = made.tables.values(levels.flatten(0, 1)).view(levels.shape[:2])
        goal = goals(value, after["reward"][..., 0], after["done"][..., 0], 0.8)
        (value[:, :-1] - goal).square().mean().backward()
    assert made.tables.network[-1].weight.grad is not None
