"""LightningCLI over small stand-ins for the package's own modules."""

from __future__ import annotations

import os
import pickle
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelSummary, ProgressBar
from lightning.pytorch.cli import LightningCLI

from tests.cli.tiny_run import CONFIG, Run, build_with
from tests.standins import Note
from tests.test_end_to_end import ORDERS, small, write_orders
from tests.training.resuming import check_checkpoint
from torchrl_gpu import cli, configs
from torchrl_gpu.cli.lightning_cli import PackageCLI, SaveConfig, build
from torchrl_gpu.cli.loading import load_policy
from torchrl_gpu.evaluation.player import Player


def shown_by(cli: PackageCLI) -> dict[type, list[str]]:
    found = {}
    for role in (ProgressBar, ModelSummary):
        found[role] = [type(each).__name__ for each in cli.trainer.callbacks if isinstance(each, role)]
    return found


def different_trainers() -> list[str]:
    """Shipped configs, one for each set of callbacks and switches."""
    found = {}
    for name in configs.names():
        trainer = yaml.safe_load(Path(configs.find(name)).read_text(encoding="utf-8"))["trainer"]
        callbacks = tuple(str(each["class_path"]) for each in trainer.get("callbacks", ()))
        found[callbacks, *(trainer.get(key) for key in ("enable_progress_bar", "enable_model_summary"))] = name
    return sorted(found.values())


@pytest.mark.parametrize("name", different_trainers())
def test_progress_bar_and_summary_of_shipped_configs(name: str, tmp_path: Path) -> None:
    shipped = yaml.safe_load(Path(configs.find(name)).read_text())["trainer"]
    path = tmp_path / "trainer.yaml"
    path.write_text(yaml.safe_dump(CONFIG | {"trainer": shipped | {"accelerator": "cpu", "precision": "32-true"}}))
    assert shown_by(build_with(path)) == {ProgressBar: ["RunProgress"], ModelSummary: ["NetworkSummary"]}


def test_progress_bar_and_summary_can_be_switched_off(config: Path) -> None:
    on = ("--trainer.enable_progress_bar=true", "--trainer.enable_model_summary=true")
    assert shown_by(build_with(config, *on)) == {ProgressBar: ["RunProgress"], ModelSummary: ["NetworkSummary"]}
    off = build_with(config, "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")
    assert shown_by(off) == {ProgressBar: [], ModelSummary: []}


def test_another_progress_bar_takes_the_place_of_ours(config: Path) -> None:
    others = "[lightning.pytorch.callbacks.TQDMProgressBar, lightning.pytorch.callbacks.ModelSummary]"
    on = ("--trainer.enable_progress_bar=true", "--trainer.enable_model_summary=true")
    found = shown_by(build_with(config, *on, f"--trainer.callbacks={others}"))
    assert found == {ProgressBar: ["TQDMProgressBar"], ModelSummary: ["ModelSummary"]}


@pytest.mark.parametrize(
    ("capabilities", "precision"),
    [({"avx512_bf16": True}, "bf16-mixed"), ({"avx2": True}, "32-true"), ({"amx_bf16": True}, "bf16-mixed")],
)
def test_precision_auto_is_what_the_processor_multiplies(
    config: Path, monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], precision: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    made = build_with(config, "--trainer.precision=auto", "--trainer.accelerator=cpu")
    assert made.trainer.precision == precision
    # The run's saved config has it, too.
    assert made.config.fit.trainer.precision == precision
    asked = build_with(config, "--trainer.precision=32-true", "--trainer.accelerator=cpu")
    assert asked.trainer.precision == "32-true"


# Two runs share one folder.
@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_only_fit_saves_its_config(config: Path, tmp_path: Path) -> None:
    assert cli.main(["test", "--config", str(config)]) is None
    assert not (tmp_path / "run" / "config.yaml").exists()
    # A second run may take the place of the first.
    for _ in range(2):
        assert cli.main(["fit", "--config", str(config)]) is None
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert saved["model"]["init_args"]["env"]["init_args"]["num_envs"] == 8


def test_overrides_reach_nested_classes(config: Path) -> None:
    made = build_with(
        config,
        "--model.env.num_envs=256",
        "--model.env.bin_size=[4,5,6]",
        "--trainer.max_steps=50",
        "--seed_everything=3",
        "--data.sequences=orders.json",
    )
    assert made.model.env.num_envs == 256
    assert made.model.env.bin_size == (4, 5, 6)
    assert made.trainer.max_steps == 50
    assert made.config.fit.seed_everything == 3
    assert made.datamodule.sequences == "orders.json"


def test_overrides_reach_a_torchrl_environment(config: Path) -> None:
    model = ["--model=tests.standins.EnvModule", "--model.env=torchrl_gpu.envs.PackingEnv"]
    made = build_with(config, *model, "--model.env.num_envs=3", "--model.env.device=cpu")
    assert made.model.env.num_envs == 3


def test_an_override_of_a_class_drops_the_arguments_of_the_old_one(config: Path) -> None:
    assert build_with(config, "--model.env=tests.standins.OtherEnv", "--model.env.depth=3").model.env.depth == 3


def test_callbacks_are_appended(config: Path) -> None:
    Note.built.clear()
    build_with(config, "--trainer.callbacks+=tests.standins.Note", "--trainer.callbacks.text=second")
    assert Note.built == ["hello", "second"]


def test_short_names_of_our_classes(config: Path, tmp_path: Path) -> None:
    made = build_with(config, "--trainer.callbacks+=FinalTable", "--trainer.callbacks.num_episodes=3")
    assert [each.num_episodes for each in made.trainer.callbacks if type(each).__name__ == "FinalTable"] == [3]
    second = tmp_path / "second.yaml"
    second.write_text("trainer:\n  callbacks:\n    - class_path: Throughput  # ours\n", encoding="utf-8")
    made = build_with(config, "--config", str(second))
    assert "Throughput" in [type(each).__name__ for each in made.trainer.callbacks]


def test_callbacks_before_the_config_are_kept(config: Path) -> None:
    Note.built.clear()
    args = ["--trainer.callbacks+=tests.standins.Note", "--trainer.callbacks.text=second", "--config", str(config)]
    assert cli.main(["fit", *args, "--trainer.fast_dev_run=1"]) is None
    assert Note.built == ["hello", "second"]


@pytest.mark.parametrize("monitor", ["val_loos", "train/nothing"])
def test_a_monitor_that_nothing_logs_is_one_line(error_of: Run, monitor: str) -> None:
    stopping = ("--trainer.callbacks+=EarlyStopping", f"--trainer.callbacks.monitor={monitor}")
    assert f"`{monitor}` which is not available" in error_of(*stopping)


@pytest.mark.parametrize("name", ["EpisodeCheckpoint", "Divergence"])
def test_a_second_callback_of_one_state_is_one_line(name: str, error_of: Run) -> None:
    twice = (f"--trainer.callbacks+={name}", f"--trainer.callbacks+={name}")
    assert f"trainer.callbacks: {name} stands there twice" in error_of(*twice)


def test_print_config_builds_nothing(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Note.built.clear()
    assert cli.main(["fit", "--config", str(config), "--model.env.num_envs=-1", "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["env"]["init_args"]["num_envs"] == -1
    assert Note.built == []


def test_a_seed_is_used_by_default(config: Path) -> None:
    text = config.read_text(encoding="utf-8").replace("seed_everything: 7\n", "")
    config.write_text(text, encoding="utf-8")
    weights = [build_with(config).model.layer.weight for _ in range(2)]
    assert torch.equal(*weights)


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize(("subcommand", "form"), [("fit", "archive"), ("test", "bare pickle")])
def test_code_in_a_checkpoint_never_runs(
    error_of: Run, subcommand: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch obeys this where nobody says otherwise.
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    path = tmp_path / "malicious.ckpt"
    content = {"state_dict": {}, "pytorch-lightning_version": "2.6.6", "bad": Malicious(tmp_path / "ran")}
    if form == "archive":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    assert "malicious.ckpt: not" in error_of("--ckpt_path", str(path), subcommand=subcommand)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_names_no_classes(config: Path, checkpoint: Path, tmp_path: Path) -> None:
    content = torch.load(checkpoint, weights_only=True)
    content["hyper_parameters"] = {"_class_path": "no.such.Module", "width": 9}
    torch.save(content, tmp_path / "other.ckpt")
    assert cli.main(["test", "--config", str(config), "--ckpt_path", str(tmp_path / "other.ckpt")]) is None


@pytest.mark.parametrize("length", [0, 1000])
def test_truncated_checkpoint_is_refused(tmp_path: Path, length: int) -> None:
    torch.save({"state_dict": {"weight": torch.ones(1000)}}, tmp_path / "x.ckpt")
    (tmp_path / "x.ckpt").write_bytes((tmp_path / "x.ckpt").read_bytes()[:length])
    with pytest.raises(ValueError, match=rf"torch\.save .*: {length} bytes"):
        check_checkpoint(tmp_path / "x.ckpt")


def test_checkpoint_of_another_architecture(error_of: Run, checkpoint: Path) -> None:
    said = error_of("--ckpt_path", str(checkpoint), "--model.width=5", subcommand="test")
    assert "layer.weight must be torch.float32 (5, 2), not torch.float32 (3, 2)" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"state_dict": {}}, "no weights for weight, bias of Linear"),
        (
            {"state_dict": {"weight": torch.ones(2, 1), "bias": torch.ones(2), "gain": torch.ones(1)}},
            "gain .*Linear",
        ),
        ({"state_dict": None}, "has no state_dict"),
        ([1], "holds a list, not a dict"),
    ],
)
def test_checkpoint_that_does_not_fit_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=message):
        check_checkpoint(tmp_path / "x.ckpt", torch.nn.Linear(1, 2))


def test_a_config_is_dumped_as_by_lightning(config: Path) -> None:
    made = build("fit", ["--config", str(config), "--trainer.max_epochs=3"])
    made._dump_config()
    ours = made.__dict__.pop("config_dump")
    LightningCLI._dump_config(made)
    assert made.config_dump == ours
    assert None in ours["trainer"].values()


def test_tokens_are_not_saved_with_the_configuration(config: Path) -> None:
    secret = "a-token-of-a-stream"
    stream = ["--trainer.callbacks+=torchrl_gpu.callbacks.FrameStream", f"--trainer.callbacks.token={secret}"]
    made = build("fit", ["--config", str(config), *stream])
    matching = [each for each in made.trainer.callbacks if isinstance(each, SaveConfig)]
    (saver,) = matching
    saved = saver.parser.dump(saver.config, skip_none=False)
    assert "token: null" in saved
    assert secret not in saved
    # The callback was made from it.
    assert secret in str(made.config)


def test_loggers_go_with_the_folder_of_the_run(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "trainer: {default_root_dir: runs/mine, logger: [{class_path: lightning.pytorch.loggers.CSVLogger, init_args:"
        " {save_dir: runs/mine/curves}}, {class_path: lightning.pytorch.loggers.CSVLogger, init_args: {save_dir:"
        " elsewhere}}]}\nmodel: {class_path: lightning.pytorch.demos.boring_classes.BoringModel}\n"
    )
    moved = f"--trainer.default_root_dir={tmp_path}/other"
    for more, expected in ([], ["runs/mine/curves", "elsewhere"]), ([moved], [f"{tmp_path}/other/curves", "elsewhere"]):
        made = build("fit", ["--config", str(config), *more])
        assert [logger.save_dir for logger in made.trainer.loggers] == expected


@pytest.fixture(scope="module")
def trained_dqn(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    args = [f"--trainer.default_root_dir={folder}", "--trainer.logger=false", "--trainer.enable_progress_bar=false"]
    args += ["--trainer.callbacks=[torchrl_gpu.callbacks.EpisodeCheckpoint]"]
    assert cli.main(["fit", *small("packing_dqn.yaml"), *args]) is None
    return str(folder / "checkpoints" / "last.ckpt")


def test_the_last_policy_of_a_run_plays_the_episodes_of_the_test(trained_dqn: str) -> None:
    folder = f"--trainer.default_root_dir={Path(trained_dqn).parents[1]}"
    made = load_policy([*small("packing_dqn.yaml"), folder], "last", None, num_envs=2)
    assert (made.name, made.version, made.env.num_envs) == ("DQN", 6, 2)
    # The seed is that of the data module, not of the run.
    assert made.env.seed == 1_000_003
    saved = torch.load(trained_dqn, weights_only=True)["state_dict"]
    weights = dict(made.policy.named_parameters())  # type: ignore[attr-defined]
    pairs = product(weights.values(), saved.values())
    assert any(torch.equal(value, kept) for value, kept in pairs)
    player = Player(made.env, made.policy)
    while not player.step().any():
        pass
    assert int(made.env.num_packed.max()) > 0  # type: ignore[attr-defined]


def test_another_one_by_name(trained_dqn: str) -> None:
    made = load_policy(small("packing_dqn.yaml"), trained_dqn, "random legal", num_envs=1)
    assert (made.name, made.version) == ("random legal", None)


def test_irregular_items_without_a_checkpoint() -> None:
    made = load_policy(small("packing_irregular.yaml"), None, None, num_envs=1)
    assert made.name == "pile values"


def test_orders_on_the_pallet_without_a_checkpoint() -> None:
    made = load_policy(["--config", "packing_orders.yaml", "--data.num_episodes=2"], None, None, num_envs=1)
    assert (made.name, made.version) == ("pretrained", None)


def test_real_orders_one_after_the_other(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders.json")
    args = [each for each in small("packing_orders.yaml") if "sequences" not in each]
    made = load_policy([*args, f"--data.sequences={tmp_path / 'orders.json'}"], None, None, num_envs=1)
    player, packed = Player(made.env, made.policy), []
    while len(packed) < 3:
        if bool(player.step()):
            packed.append(int(made.env.num_packed[0]))  # type: ignore[attr-defined]
    lengths = [len(order) for order in ORDERS.values()]
    assert packed == [*lengths, lengths[0]]


def test_an_untrained_policy_has_no_name() -> None:
    with pytest.raises(ValueError, match=r"--policy .*random, pretrained, random legal, .*; got 'DQN'"):
        load_policy(small("packing_dqn.yaml"), None, "DQN", num_envs=1)


def test_worlds_begin_with_the_hardest_and_with_a_random_navigator() -> None:
    made = load_policy(["--config", "navigation_dqn.yaml", "--data.worlds_per_level=2"], None, None, num_envs=2)
    assert (made.name, made.version, made.is_stopgap) == ("random", None, True)
    player = Player(made.env, made.policy)
    player.step()
    assert made.env.state.level.tolist() == [4, 3]  # type: ignore[attr-defined]
