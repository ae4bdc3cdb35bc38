"""Learning what a network adds to tables: returns beside a plain loop, exact resume, a run of Lightning's."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.no_host_reads import NoHostReads
from tests.training.resuming import differences, without_replay
from torchrl_gpu.envs import MarineNavEnv, PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes, RandomBoxes
from torchrl_gpu.envs.packing.protocols import make_protocol
from torchrl_gpu.evaluation.packing.episodes import evaluate
from torchrl_gpu.policies import AgentSpace, ConvValues, PackingPolicy, PatchTables, load_policy
from torchrl_gpu.training import ConvAfterstateLearning
from torchrl_gpu.training.conv_afterstates import lambda_returns, mirrored
from torchrl_gpu.training.loaders import StepLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
]


def environment(num_envs: int = 8, **changes: Any) -> PackingEnv:
    settings = {"items": RandomBoxes(1, 3), "bin_size": (4.0, 4.0, 4.0), "resolution": 4, "seed": 3, "device": "cpu"}
    return PackingEnv(num_envs, **settings | {"include": ("z_map",)} | changes)


def alone(**changes: Any) -> ConvAfterstateLearning:
    settings = {"rollout_steps": 6, "minibatches": 2} | changes
    return ConvAfterstateLearning(environment(), partial(ConvValues, patches=(), channels=8, layers=2), **settings)


def fit(made: ConvAfterstateLearning, folder: Path, steps: int, ckpt_path: str | None = None) -> Trainer:
    torch.manual_seed(0)
    trainer = Trainer(
        default_root_dir=folder,
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)],
    )
    trainer.fit(made, StepLoader(steps), ckpt_path=ckpt_path, weights_only=True)
    return trainer


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_returns_are_those_of_a_plain_loop(lam: float) -> None:
    g = torch.Generator().manual_seed(5)
    rows, time = 5, 7
    value, reward = torch.randn(rows, time, generator=g), torch.rand(rows, time, generator=g)
    done = torch.rand(rows, time, generator=g) < 0.3
    found = lambda_returns(value, reward, done, lam)
    for n in range(rows):
        for t in range(time):
            wanted, weight, k = 0.0, 1.0, t
            while not done[n, k] and k + 1 < time:  # the reward of step k + 1, and what the bin after it is worth
                wanted += weight * reward[n, k + 1].item()
                wanted += weight * (1 - lam) * value[n, k + 1].item()
                weight, k = weight * lam, k + 1
            if k == time - 1 and k > t and not done[n, k]:
                wanted += weight * value[n, k].item()  # where it was cut off
            assert found[n, t].item() == pytest.approx(wanted, abs=1e-5)


def test_the_last_bin_of_what_goes_on_does_not_count(tmp_path: Path) -> None:
    made = alone()
    fit(made, tmp_path, 1)
    steps = made.play(made.policy, 6)
    done = steps["next", "done"][..., 0]
    rows = made._targets(steps)
    counts = rows["counts"].view(done.shape)
    assert bool(counts[:, :-1].all())
    assert torch.equal(counts[:, -1], done[:, -1])
    assert not bool(done[:, -1].all())
    assert not rows["target"].view(done.shape)[done].any()  # nothing comes after an end


def test_bins_are_mirrored_each_by_itself() -> None:
    torch.manual_seed(0)
    bins = torch.arange(12, dtype=torch.uint8).view(1, 3, 4).expand(400, -1, -1)
    images = [bins[0], bins[0].flip(0), bins[0].flip(1), bins[0].flip(0, 1)]
    counts = [int((mirrored(bins) == image).all((1, 2)).sum()) for image in images]
    assert all(60 < count < 140 for count in counts)


def test_a_network_alone_learns_to_pack(tmp_path: Path) -> None:
    optimizer = partial(torch.optim.Adam, lr=3e-3)
    made = alone(rollout_steps=24, minibatches=4, optimizer=optimizer)

    def utilization() -> float:
        return evaluate(environment(64, seed=99), made.policy_for(made.env)).utilization.mean().item()

    before = utilization()
    fit(made, tmp_path, 240)
    assert utilization() > before + 0.03


def beside_tables(tmp_path: Path, foretold: int = 0, **changes: Any) -> ConvAfterstateLearning:
    """Beside tables of a policy's file, which were not learned but drawn."""
    protocol = "cut1" if foretold else "rs"
    env = make_protocol(protocol, 4, device="cpu", seed=0, include=("z_map", "packed_items"))
    tables = PatchTables(AgentSpace.of(env), ["2x2", "1x3"])
    torch.manual_seed(1)
    tables.weight.copy_(torch.randn(tables.plan.entries)[tables.plan.first_images] / 100)
    tables.path.fill_(1.0)
    PackingPolicy(AgentSpace.of(env), tables).save(tmp_path / "tables.safetensors")
    values = partial(ConvValues, patches=["2x2", "1x3"], channels=8, layers=2, candidates=4, foretold=foretold)
    settings = {"rollout_steps": 4, "minibatches": 2, "tables_of": str(tmp_path / "tables.safetensors")} | changes
    return ConvAfterstateLearning(env, values, **settings)


@pytest.mark.parametrize("foretold", [0, 64])
def test_a_run_that_is_stopped_and_resumed(foretold: int, tmp_path: Path) -> None:
    fit(beside_tables(tmp_path, foretold), tmp_path / "straight", 8)
    fit(beside_tables(tmp_path, foretold), tmp_path / "parts", 4)
    resumed = beside_tables(tmp_path, foretold, tables_of=str(tmp_path / "gone.safetensors"))  # is in the checkpoint
    fit(resumed, tmp_path / "parts", 8, ckpt_path=str(tmp_path / "parts" / "step=4.ckpt"))
    straight, parts = (without_replay(tmp_path / name / "step=8.ckpt") for name in ("straight", "parts"))
    assert differences(straight, parts) == []
    assert straight["state_dict"]["values.network.out.weight"].any()
    assert straight["state_dict"]["values.tables.weight"].any()


@pytest.mark.parametrize("max_steps", [3, 4])
def test_max_steps_counts_updates_and_is_met_exactly(tmp_path: Path, max_steps: int) -> None:
    made = alone()
    assert fit(made, tmp_path, max_steps).global_step == max_steps
    assert made.frames == 2 * 8 * 6


def test_a_checkpoint_is_a_policy_by_itself(tmp_path: Path) -> None:
    made = beside_tables(tmp_path)
    settings = {"patches": ["2x2", "1x3"], "channels": 8, "layers": 2, "candidates": 4}
    values = {"class_path": "torchrl_gpu.policies.ConvValues", "init_args": settings}
    fit(made, tmp_path, 4)
    from torchrl_gpu.archives import ENTRY

    path = tmp_path / "step=4.ckpt"
    content = torch.load(path, weights_only=True)
    content[ENTRY] = {"config": {"model": {"init_args": {"values": values}}}}
    torch.save(content, path)
    policy = load_policy(path, "cpu")
    shown = made.env.reset()
    assert torch.equal(policy(shown.clone())["action"], made.policy_for(made.env)(shown.clone())["action"])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda: environment(reward="objective"), "want a PackingEnv of boxes with reward 'utilization'"),
        (lambda: environment(include=()), "want an env that includes z_map"),
        (lambda: MarineNavEnv(2, version="v2", device="cpu", pool=4), "want a PackingEnv of boxes"),
    ],
)
def test_environments_that_it_cannot_learn_in(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConvAfterstateLearning(env())


def test_what_values_need_is_included() -> None:
    env = environment(items=CutBoxes(1, 3, pool=None), orientations="fixed")
    with pytest.raises(ValueError, match="want an env that includes packed_items"):
        ConvAfterstateLearning(env, partial(ConvValues, foretold=27))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tables_of": None}, "tables_of wants a policy where values have patches"),
        ({"tables_of": "rs"}, "tables_of must be a policy with tables of"),
        ({"tables_of": "nowhere.safetensors"}, "want one of"),
    ],
)
def test_tables_that_cannot_be_taken(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        fit(beside_tables(tmp_path, **changes), tmp_path, 1)


def test_items_that_nothing_foretells_are_refused(tmp_path: Path) -> None:
    env = environment(items=CutBoxes(1, 3, pool=None), orientations="fixed", include=("z_map", "packed_items"))
    made = ConvAfterstateLearning(env, partial(ConvValues, patches=(), foretold=27), minibatches=2)
    with pytest.raises(ValueError, match="want an env of 27 items that the package foretells"):
        fit(made, tmp_path, 1)


@pytest.mark.parametrize("wrong", [{"lam": 1.5}, {"minibatches": 0}, {"minibatches": 5}, {"rollout_steps": 0}])
def test_numbers_that_cannot_work(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"ConvAfterstateLearning: {next(iter(wrong))} must"):
        alone(**wrong)


def test_the_training_step_reads_nothing_back(tmp_path: Path) -> None:
    """All but the optimizer's own step, which counts on the host where weights are on a CPU."""
    env = environment(backend="eager")
    made = ConvAfterstateLearning(env, partial(ConvValues, patches=(), channels=8), rollout_steps=4, minibatches=2)
    fit(made, tmp_path, 2)
    made.__dict__["descend"] = lambda loss, *_: loss.backward()
    with NoHostReads():
        rows = made._targets(made.play(made.policy, 4))
        for batch in made._batches(rows):
            made._learn(batch)
