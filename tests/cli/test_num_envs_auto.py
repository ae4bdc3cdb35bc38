"""`num_envs: auto` in configs.

A number that depends on the kind of device, which the run keeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.strategies import SingleDeviceStrategy

from tests.test_end_to_end import small
from torchrl_gpu import cli, configs
from torchrl_gpu.checkpoints.record import saved_option
from torchrl_gpu.checkpoints.resume import open_checkpoint
from torchrl_gpu.cli.lightning_cli import PackageCLI, build
from torchrl_gpu.cli.parser import resolve_configs
from torchrl_gpu.envs import DishwashingEnv, MarineNavEnv, PackingEnv
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.training import AfterstateLearning, BehaviourCloning
from torchrl_gpu.training.run import EnvRun

AUTO = "--model.env.num_envs=auto"
OPTION = "model.env.num_envs"
CHECKPOINT = "runs/packing/checkpoints/last.ckpt"


def options_of(name: str) -> Any:
    """The model's part of a shipped config, as its file has it."""
    return yaml.safe_load(Path(configs.find(name)).read_text(encoding="utf-8"))["model"]


def with_num_envs(name: str, num_envs: Any, folder: Path) -> str:
    """A file of the model of a shipped config with `num_envs` of another kind."""
    model = options_of(name)
    model["init_args"]["env"]["init_args"]["num_envs"] = num_envs
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({"model": model}), encoding="utf-8")
    return str(path)


def number_of(made: PackageCLI) -> Any:
    """The number of environments in the config of a run, which is saved."""
    return made.config[made.name].model.init_args.env.init_args.num_envs


def build_auto(path: str, *args: str, subcommand: str = "fit") -> PackageCLI:
    fixed = ("--trainer.devices=1", "--trainer.precision=32-true", "--trainer.accelerator=cpu")
    return build(subcommand, ["--config", path, *fixed, *args])


@pytest.fixture
def makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out environments.

    They are not asked for a number that only configs have.
    """
    for made in (EnvRun, AfterstateLearning, BehaviourCloning):
        monkeypatch.setattr(made, "make_env", lambda *given: None)


@pytest.mark.usefixtures("makes_none")
def test_num_envs_auto_is_the_number_of_a_config_or_more_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "cpu"
    monkeypatch.setattr(SingleDeviceStrategy, "root_device", property(lambda strategy: torch.device(kind)))
    for name in configs.names():
        number = options_of(name)["init_args"]["env"]["init_args"]["num_envs"]
        kind = "cpu"
        made = build_auto(configs.find(name), AUTO)
        assert number_of(made) == number, name
        # The same run, as if it were on another device.
        kind = "cuda"
        made.config.fit.model.init_args.env.init_args.num_envs = "auto"
        made.settle_num_envs()
        assert number_of(made) == max(number, made.model.num_envs_on_cuda or 0), name


def test_num_envs_on_cuda_is_more_than_on_a_cpu_for_learners_that_say_one() -> None:
    assert AfterstateLearning.num_envs_on_cuda == 1024
    assert EnvRun.num_envs_on_cuda is None


@pytest.mark.usefixtures("makes_none")
@pytest.mark.parametrize("name", ["packing_dqn.yaml", "navigation_iqn.yaml", "dishwashing_feasible.yaml"])
def test_num_envs_auto_in_a_file_is_the_default_of_the_class(name: str, tmp_path: Path) -> None:
    path = with_num_envs(name, "auto", tmp_path)
    assert number_of(build_auto(path)) == 64
    assert number_of(build_auto(path, f"--{OPTION}=32")) == 32
    shipped = options_of(name)["init_args"]["env"]["init_args"]["num_envs"]
    assert number_of(build_auto(configs.find(name), "--config", path)) == shipped


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_num_envs_auto_is_a_number_wherever_a_config_is_read(subcommand: str, tmp_path: Path) -> None:
    args = ("--model.env.items.pool=16", AUTO, f"--trainer.default_root_dir={tmp_path}", "--trainer.logger=false")
    made = build_auto(configs.find("packing.yaml"), *args, subcommand=subcommand)
    assert made.model.env.num_envs == number_of(made) == 64
    assert made.model.run_config["model"]["init_args"]["env"]["init_args"]["num_envs"] == 64


def test_num_envs_auto_plays_the_run_with_the_number_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    weights = []
    for number in ("auto", "64"):
        folder = tmp_path / number
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert cli.main(["fit", *small("packing.yaml"), f"--{OPTION}={number}", "--trainer.accelerator=cpu"]) is None
        content = open_checkpoint(CHECKPOINT)
        assert saved_option(content, OPTION) == 64
        weights.append(content["state_dict"])
        assert ("num_envs 64: the usual number, on cpu" in caplog.messages) is (number == "auto")
        caplog.clear()
    auto, written = weights
    assert auto.keys() == written.keys()
    for name, value in auto.items():
        assert torch.equal(value, written[name]), name
    saved = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("config.yaml")]
    assert [each["model"]["init_args"]["env"]["init_args"]["num_envs"] for each in saved] == [64, 64]


def test_num_envs_auto_keeps_the_number_of_the_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    on_cpu = "--trainer.accelerator=cpu"
    assert cli.main(["fit", *small("packing.yaml"), f"--{OPTION}=6", on_cpu]) is None
    more = [*resolve_configs(small("packing.yaml", 8)), AUTO, on_cpu]
    for word in ("last", CHECKPOINT):
        made = build("fit", [*more, f"--ckpt_path={word}"])
        assert made.model.env.num_envs == number_of(made) == 6
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert cli.main(["fit", *more]) is None
    assert f"num_envs 6: that of {CHECKPOINT}" in caplog.messages
    content = open_checkpoint(CHECKPOINT)
    assert content["global_step"] == 8
    assert saved_option(content, OPTION) == 6
    monkeypatch.setattr("torchrl_gpu.checkpoints.record.saved_option", lambda *given: "many")
    with pytest.raises(ValueError, match=r"last\.ckpt: model\.env\.num_envs .* 'many'"):
        build("fit", [*more, "--ckpt_path=last"])


@pytest.mark.parametrize("value", ["many", "Auto", "2.5", "[1]", "0"])
@pytest.mark.parametrize("name", ["packing.yaml", "navigation_iqn.yaml", "dishwashing_feasible.yaml"])
def test_another_word_for_num_envs_is_one_line(name: str, value: str, tmp_path: Path) -> None:
    for args in ((with_num_envs(name, yaml.safe_load(value), tmp_path),), (configs.find(name), f"--{OPTION}={value}")):
        with pytest.raises(ValueError, match="num_envs") as raised:
            build_auto(*args)
        line = str(raised.value)
        assert value.strip("[]") in line
        assert "\n" not in line
        assert "typing" not in line


@pytest.mark.parametrize("env", [PackingEnv, MarineNavEnv, DishwashingEnv])
@pytest.mark.parametrize("word", ["auto", "many"])
def test_environments_made_in_python_want_a_number(env: type[BatchedEnv], word: str) -> None:
    with pytest.raises(ValueError, match=f"{env.__name__}: num_envs .* '{word}'"):
        env(word, device="cpu")
