"""The shipped runs as a newcomer starts them.

From an empty folder, by name, from `fit` to `predict`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from tests import forks
from tests.deterministic import Deterministic
from tests.training.resuming import part_of
from torchrl_gpu import cli
from torchrl_gpu.cli import lightning_cli
from torchrl_gpu.demonstrations import memmap
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.packing.items import CutBoxes
from torchrl_gpu.evaluation.demonstrations import play_rows
from torchrl_gpu.evaluation.episodes import suite_for
from torchrl_gpu.policies import AgentSpace, ClonedChoice, PlacementScores, load_policy
from torchrl_gpu.policies.packing.heuristics import DeepestBottomLeft
from torchrl_gpu.system.archives import ENTRY

NETWORK = ["--model.agent.network.channels=4", "--model.agent.network.blocks=1"]
BC_NETWORK = ["--model.network.channels=4", "--model.network.blocks=1"]
UPDATES = ["--model.batch_size=8", "--model.replay.capacity=200", "--model.warmup_frames=32"]
UPDATES += ["--model.updates_per_step=2"]
# Options of runs without replay.
ROLLOUTS = ["--model.rollout_steps=4", "--model.epochs=1", "--model.minibatches=2"]
EPISODES = ["--data.steps_per_epoch=2", "--data.num_episodes=3", "--data.num_val_episodes=2"]
EPISODES += ["--data.batch_size=4", "--trainer.log_every_n_steps=1"]
TABLES = ["--model.tables.patches=[2x2,3x3:1]", "--model.rollout_steps=4"]
# What makes each shipped config a matter of seconds; one that is missing here is not tested, so that is an error.
SMALL = {
    "packing.yaml": [*TABLES, "--model.env.num_envs=4"],
    "packing_dqn.yaml": [*NETWORK, "--model.env.num_envs=4", "--model.env.items.pool=16"],
    "packing_irregular.yaml": [
        "--model.env.num_envs=3",
        # Cells of 40 mm.
        "--model.env.resolution=10",
        "--model.env.orientations=yaw",
        "--model.env.num_items=4",
        "--model.env.visible_items=2",
        "--model.env.items.num_objects=8",
        "--model.networks.channels=[16,8]",
        "--model.n_steps=6",
        "--model.worker_updates=1",
        # Pictures of solids take longer than the run.
        "--data.pictures=false",
    ],
    "packing_orders.yaml": [
        *NETWORK,
        "--model.env.num_envs=2",
        "--model.env.num_items=6",
        # Cells of 100 mm.
        "--model.env.resolution=[12,8]",
        "--data.sequences=orders.json",
    ],
    "packing_refined.yaml": ["--model.env.num_envs=4", "--model.rollout_steps=4", "--model.batch_size=8"],
    "packing_pallets.yaml": [
        "--model.env.num_envs=8",
        "--model.env.num_items=6",
        "--model.env.resolution=[12,8]",
        "--model.members=4",
    ],
    "ppo_packing.yaml": [
        *(f"--model.agent.actor.{size}" for size in ("channels=4", "blocks=1")),
        *(f"--model.agent.critic.{size}" for size in ("channels=4", "blocks=1")),
        "--model.env.num_envs=4",
        "--model.env.items.pool=16",
    ],
    "bc.yaml": [*BC_NETWORK, "--model.env.items.pool=16", "--data.demonstrations=demonstrations"],
    "packing_bc_to_rl.yaml": [
        *NETWORK,
        "--model.env.num_envs=4",
        "--model.env.items.pool=16",
        "--model.warm_start=bc.ckpt",
    ],
    "dishwashing_feasible.yaml": ["--model.env.num_envs=4", "--model.env.max_steps=6"],
    "dishwashing_video.yaml": [
        "--model.env.num_envs=4",
        "--model.env.max_steps=6",
        "--model.env.frame_size=[16,16]",
        "--model.encoder.num_features=8",
    ],
}
AS_ON_CUDA = ["--trainer.deterministic=true", "--model.env.backend=eager"]
# Millimetres: one order that fits with ease, and one in which a turned box is needed.
ORDERS = {
    "00100406": [(300, 200, 150), (600, 400, 300), (255, 195, 101)],
    "00100407": [(790, 1190, 500), (1200, 800, 400)],
}


def small(name: str, max_steps: int = 6) -> list[str]:
    """Command line of a shipped config in small."""
    updates = ROLLOUTS if name.startswith("ppo_") else UPDATES
    updates = [] if name in ("packing.yaml", "packing_pallets.yaml", "packing_refined.yaml") else updates
    if name == "bc.yaml":
        updates = ["--model.batch_size=8", "--model.updates_per_step=2"]
    return ["--config", name, *SMALL[name], *updates, *EPISODES, f"--trainer.max_steps={max_steps}"]


def write_orders(path: Path) -> None:
    sides = ("length/mm", "width/mm", "height/mm")
    content = {}
    for name, order in ORDERS.items():
        items = {str(i): dict(zip(sides, size, strict=True)) for i, size in enumerate(order, 1)}
        content[name] = {"item_sequence": items}
    path.write_text(json.dumps(content), encoding="utf-8")


def write_demonstrations(folder: Path) -> None:
    """Write demonstrations of a rule, and a checkpoint cloned from them.

    Configs ask for these files.
    """
    env = PackingEnv(8, items=CutBoxes(2, 5, "stack", pool=16), orientations="fixed", stability="corners", device="cpu")
    shown = play_rows(suite_for(env, 8, seed=0), DeepestBottomLeft(env), 8)
    memmap.save(shown, folder / "demonstrations")
    space = AgentSpace.of(env)
    learner = ClonedChoice(space, PlacementScores(space, 4, 1))
    state = {f"learner.{name}": value for name, value in learner.state_dict().items()}
    torch.save({"state_dict": state}, folder / "bc.ckpt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of `packing_dqn.yaml` that has just finished.

    The run was a process of its own.
    """
    path, log = tmp_path_factory.mktemp("newcomer"), tmp_path_factory.mktemp("log") / "log"
    status = forks.run(cli.main, ["fit", *small("packing_dqn.yaml")], log=log, folder=path)
    printed = log.read_text()
    assert not status, printed
    assert "Traceback" not in printed
    assert "Warning" not in printed
    return path


@pytest.fixture
def checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The last checkpoint of that run, seen from its folder."""
    monkeypatch.chdir(folder)
    return "runs/packing_dqn/checkpoints/last.ckpt"


def test_fit_leaves_what_it_should(folder: Path) -> None:
    run = folder / "runs" / "packing_dqn"
    assert torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 6
    assert part_of(run / "checkpoints" / "last.ckpt").is_file()
    (version,) = (run / "tensorboard").iterdir()
    assert list(version.glob("events.out.tfevents.*"))
    assert yaml.safe_load((version / "config.yaml").read_text())["model"]["init_args"]["batch_size"] == 8
    assert [path.name for path in folder.iterdir()] == ["runs"]


def test_validate_of_a_trained_run(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", *small("packing_dqn.yaml"), "--ckpt_path", checkpoint]) is None
    assert "DQN on 2 episodes: utilization 0." in capsys.readouterr().out
    assert cli.main(["validate", *small("packing_dqn.yaml")]) is None
    assert "DQN (untrained) on 2 episodes" in capsys.readouterr().out


def test_test_of_a_trained_run(checkpoint: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["test", *small("packing_dqn.yaml"), "--ckpt_path", checkpoint]) is None
    shown = capsys.readouterr().out
    run = folder / "runs" / "packing_dqn"
    rows = json.loads((run / "evaluation.json").read_text())["policies"]
    assert len(rows) >= 6
    assert all(row["policy"] in shown and row["num_episodes"] == 3 for row in rows)
    with Image.open(run / "packing.png") as picture, Image.open(run / "packing.gif") as film:
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 20
        assert film.n_frames > 1


def test_predict_of_a_trained_run(checkpoint: str, folder: Path) -> None:
    assert cli.main(["predict", *small("packing_dqn.yaml"), "--ckpt_path", checkpoint]) is None
    plans = json.loads((folder / "runs" / "packing_dqn" / "plans.json").read_text())
    assert [plan["episode"] for plan in plans] == ["0", "1", "2"]
    assert all(0 < plan["utilization"] <= 1 and plan["placements"] for plan in plans)


def test_its_policy_needs_no_config(checkpoint: str) -> None:
    policy = load_policy(checkpoint, "cpu")
    weights = torch.load(checkpoint, weights_only=True)["state_dict"]
    trained = [value for name, value in weights.items() if "target" not in name and value.is_floating_point()]
    for value in policy.parameters():
        assert any(torch.equal(value, each) for each in trained)
    assert policy.about["env"]["class_path"] == "torchrl_gpu.envs.PackingEnv"
    env = PackingEnv(8, items=CutBoxes(2, 5, "stack", pool=16), orientations="fixed", include=["z_map"], device="cpu")
    shown = env.reset()
    action = policy(shown)["action"]
    assert shown["action_mask"].gather(1, action[:, None]).all()


def test_a_run_that_was_to_go_on_does_not_begin_anew(error_of: Callable[..., str], tmp_path: Path) -> None:
    said = error_of("fit", "--ckpt_path", "last", f"--trainer.default_root_dir={tmp_path}", "--trainer.logger=false")
    assert f"ckpt_path is 'last', but {tmp_path}" in said
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_checkpoint_knows_its_configuration(checkpoint: str, tmp_path: Path) -> None:
    content = torch.load(checkpoint, weights_only=True)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(content[ENTRY]["config"]))
    made = lightning_cli.build("fit", ["--config", str(config)]).model
    # The same architecture, without the YAML of the run.
    made.load_state_dict(content["state_dict"])
    assert made.batch_size == 8
    assert made.env.num_envs == 4


def test_a_seed_decides_a_run(checkpoint: str, tmp_path: Path) -> None:
    weights = {}
    for name, seed in (("a", 0), ("b", 3)):
        root = tmp_path / name
        args = [f"--seed_everything={seed}", f"--trainer.default_root_dir={root}", "--trainer.logger=false"]
        args += ["--trainer.callbacks=[torchrl_gpu.callbacks.EpisodeCheckpoint]", "--trainer.limit_val_batches=0"]
        assert cli.main(["fit", *small("packing_dqn.yaml"), *args]) is None
        weights[name] = torch.load(root / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    # These weights are of another process.
    first = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert all(torch.equal(first[key], weights["a"][key]) for key in first)
    assert not all(torch.equal(first[key], weights["b"][key]) for key in first)


def test_irregular_items_train_and_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "packing_irregular"
    with Deterministic():
        args = [*small("packing_irregular.yaml", max_steps=2), "--data.num_episodes=2", *AS_ON_CUDA]
        assert cli.main(["fit", *args]) is None
    assert torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 2
    # The final table is printed, too.
    shown = capsys.readouterr().out
    rows = json.loads((run / "evaluation.json").read_text())["policies"]
    assert "manager + worker" in {row["policy"] for row in rows}
    assert all(row["policy"] in shown and row["num_episodes"] == 2 for row in rows)
    assert all(0 < row["utilization"] < 1 for row in rows)


# The tests above and `test_configs` run these.
ELSEWHERE = ("packing_dqn", "packing_irregular", "dishwashing")


@pytest.mark.parametrize("name", [name for name in SMALL if not name.startswith(ELSEWHERE)])
def test_every_shipped_packing_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_orders(tmp_path / "orders.json")
    if "bc" in name:
        write_demonstrations(tmp_path)
    with Deterministic():
        assert cli.main(["fit", *small(name, max_steps=2), *AS_ON_CUDA]) is None
    (last,) = (tmp_path / "runs").rglob("last.ckpt")
    if name == "bc.yaml":
        assert load_policy(last, "cpu").name == "BC"


def test_real_orders_after_small_bins(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_orders(tmp_path / "orders.json")
    args = [*small("packing_orders.yaml"), f"--data.sequences={tmp_path / 'orders.json'}", "--ckpt_path", checkpoint]
    args += ["--data.batch_size=null", f"--trainer.default_root_dir={tmp_path}"]
    assert cli.main(["test", *args]) is None
    (tested,) = (tmp_path / "tested").iterdir()
    rows = json.loads((tested / "evaluation.json").read_text())["policies"]
    assert {row["num_episodes"] for row in rows} == {2}
    assert "2 episodes" in capsys.readouterr().out
    for name, order in ORDERS.items():
        assert (tested / f"order-{name}.png").is_file()
        with Image.open(tested / f"order-{name}.gif") as film:
            assert film.n_frames >= len(order)
    best = max(rows, key=lambda row: row["utilization"])
    volumes = [sum(map(math.prod, order)) / (1200 * 800 * 1500) for order in ORDERS.values()]
    # All of it: true volumes, not whole cells.
    assert best["utilization"] == pytest.approx(sum(volumes) / 2, rel=1e-4)
    assert best["num_packed"] == 2.5


@pytest.fixture
def error_of(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line that a word of the program says of arguments that are wrong."""

    def run(word: str, *args: str) -> str:
        capfd.readouterr()
        assert cli.main([word, *small("packing_dqn.yaml"), *args]) == 2
        said = [line for line in capfd.readouterr().err.splitlines() if not line.startswith(NEWS)]
        assert len(said) == 1, said
        assert said[0].startswith("error: ")
        return said[0].removeprefix("error: ")

    return run


NEWS = ("Seed set to", "GPU available", "INFO: ", "Restor")


# One of each place that looks at an argument; the tests of that place have the others.
WRONG = [
    (["--model.agent.gama=0.9"], "'gama' is not"),
    (["--model.replay.capacity=4"], "OffPolicy: replay must hold a batch and a rollout, 16 transitions; got 4"),
    (["--data.sequences=no.json"], "BoxSequences: no.json: "),
]


@pytest.mark.parametrize(("args", "message"), WRONG, ids=[args[0] for args, _ in WRONG])
def test_commands_refuse_wrong_arguments(error_of: Callable[..., str], args: list[str], message: str) -> None:
    assert message in error_of("fit", *args)


def poisoned(checkpoint: str, folder: Path, where: str) -> list[str]:
    """Arguments of `fit` that resume from a spoiled copy of a run.

    The copy has other numbers in its environment or its replay.
    """
    copy, beside = folder / "copy.ckpt", part_of(Path(checkpoint))
    content = torch.load(checkpoint, weights_only=True)
    kept = torch.load(beside, weights_only=True)
    if where == "environment":
        content["rollout"]["env"]["num_packed"] -= 10**12
    else:
        kept["replay"]["transitions"]["item_id"] += 10**9
    torch.save(content, copy)
    torch.save(kept, folder / beside.name)
    args = ["--ckpt_path", str(copy), f"--trainer.default_root_dir={folder}", "--trainer.logger=false"]
    return [*args, "--trainer.max_steps=8"]


def test_a_poisoned_replay(error_of: Callable[..., str], checkpoint: str, tmp_path: Path) -> None:
    said = error_of("fit", *poisoned(checkpoint, tmp_path, "replay"))
    assert "copy.ckpt: item_id must be from -1 to" in said


def test_a_poisoned_environment_kills_no_process(checkpoint: str, folder: Path, tmp_path: Path) -> None:
    args = ["fit", *small("packing_dqn.yaml"), *poisoned(checkpoint, tmp_path, "environment")]
    assert forks.run(cli.main, args, log=tmp_path / "log", folder=folder) == 2
    said = (tmp_path / "log").read_text()
    assert "num_packed must be from 0 to" in said
    assert "Traceback" not in said
