"""Options that are checked before lightning is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.tiny_run import Run
from torchrl_gpu import configs
from torchrl_gpu.cli import parser
from torchrl_gpu.cli.lightning_cli import build


@pytest.mark.parametrize("form", [["--config", "{}"], ["--config={}"], ["-c", "{}"]])
def test_configs_are_found_by_name(form: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "run.yaml").touch()
    monkeypatch.setattr(configs, "_FOLDER", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    for name in ("run.yaml", "run"):
        (found,) = parser.resolve_configs([part.format(name) for part in form])[-1:]
        assert found.removeprefix("--config=") == str(tmp_path / "shipped" / "run.yaml")
    (tmp_path / "run.yaml").touch()  # a path comes first
    (found,) = parser.resolve_configs([part.format("run.yaml") for part in form])[-1:]
    assert found.removeprefix("--config=") == "run.yaml"


@pytest.mark.parametrize("form", [["--config", "{}"], ["--config={}"], ["-c", "{}"], ["-c{}"]])
def test_options_change_a_config_wherever_they_stand(form: list[str], tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).touch()
    first, second = ([part.format(tmp_path / name) for part in form] for name in ("a.yaml", "b.yaml"))
    before = ["--trainer.max_steps", "4", "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=x"]
    configs_ = [f"--config={tmp_path / name}" for name in ("a.yaml", "b.yaml")]
    assert parser.resolve_configs([*before, *first, "--data.seed=1", *second]) == [*configs_, *before, "--data.seed=1"]


@pytest.mark.parametrize("args", [["--config"], ["--config="], ["--config", "--trainer.max_steps=3"], ["-c"]])
def test_a_config_without_a_file(args: list[str]) -> None:
    with pytest.raises(ValueError, match=r"command line: want a file behind (--config|-c); got "):
        parser.resolve_configs(args)


def test_other_programs_than_the_trainer_have_no_shipped_configs() -> None:
    with pytest.raises(FileNotFoundError, match=r"--config: want an existing file; got 'packing\.yaml'"):
        parser.resolve_configs(["--config", "packing.yaml"], shipped=False)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("--model.env.num_envs=3", "--model.env=tests.standins.TinyEnv"),
        ("--trainer.callbacks+=tests.standins.Note", "--trainer.callbacks=[]"),
        ("--data.sequences=a.json", "--data=tests.standins.TinyData"),
    ],
)
def test_what_would_be_dropped_is_refused(error_of: Run, first: str, second: str) -> None:
    name = second.partition("=")[0]
    assert error_of(first, second).startswith(f"command line: want {name} before {first.partition('=')[0]}")
    parser.check_arguments([second, first])
    parser.check_arguments([first, "--trainer.callbacks+=tests.standins.Note"])


@pytest.mark.parametrize(
    "args", [["--modle.env=3"], ["--weights_only=false"], ["--ckpt_path=no.ckpt"], ["--ckpt_path", "no.ckpt"]]
)
def test_arguments_come_before_lightning(error_of: Run, args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrl_gpu.cli.lightning_cli.run", pytest.fail)
    assert "; got " in error_of(*args)


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_the_options_that_are_known_without_lightning_are_its_own(config: Path, subcommand: str) -> None:
    actions = build(subcommand, ["--config", str(config)])._subcommand_parsers[subcommand]._actions
    known = {each.dest.partition(".")[0] for each in actions if each.option_strings}
    assert {*parser.OPTIONS} == known | {"help", "return_predictions"}


@pytest.mark.parametrize("path", ["best", "last", "hpc", "registry:model", "s3://bucket/x.ckpt", "null"])
def test_checkpoints_that_are_no_files_pass(path: str) -> None:
    parser.check_arguments(["--ckpt_path", path, "--trainer.callbacks+=x", "--print_config=skip_null", "-c", "x.yaml"])
