"""The programs `lightning` and `torchrl-gpu`: subcommands and exit statuses."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tests.cli.tiny_run import Run
from torchrl_gpu import cli, configs
from torchrl_gpu.cli import program as program_module


@pytest.mark.parametrize("subcommand", ["validate", "predict"])  # others have tests of their own
def test_each_trainer_subcommand_runs(config: Path, subcommand: str) -> None:
    assert cli.main([subcommand, "--config", str(config)]) is None


def test_help_names_subcommands_and_configs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"], "torchrl-gpu") is None
    said = capsys.readouterr().out
    assert all(name in said for name in ("fit", "validate", "test", "predict", "doctor", *configs.names()))


def test_help_of_a_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit", "--help"]) == 0
    assert "--trainer.max_steps" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) is None
    assert capsys.readouterr().out.startswith("torchrl_gpu 0.")


def test_unknown_subcommand(error_of: Run) -> None:
    names = (
        "fit, validate, test, predict, doctor, bench, pack, evaluate, encode, record, export, play, serve,"
        " serve-policy, fetch, cost, ros"
    )
    assert error_of(subcommand="fitt") == f"torchrl-gpu: want one of the subcommands {names}; got 'fitt'"
    assert error_of(subcommand="doctor", program="lightning").startswith("lightning: want one of the subcommands fit, ")


def test_other_subcommands_of_lightning_go_to_its_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    class Script:
        def load(self) -> Callable[[], int]:
            return lambda: 17

    monkeypatch.setattr(program_module, "_sdk_scripts", lambda: [Script()])
    assert cli.main(["login"], "lightning") == 17
    assert cli.main(["login"], "torchrl-gpu") == 2


def test_no_config(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit"]) == 2
    assert capfd.readouterr().err == "error: command line: want --config NAME.yaml or --model CLASS; got neither\n"


def test_programming_errors_keep_their_traceback(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, *args: object, **kwargs: object) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr("tests.standins.TinyModule.training_step", broken)
    with pytest.raises(AttributeError, match="no such thing"):
        cli.main(["fit", "--config", str(config)])


def test_debug_shows_the_traceback(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHRL_GPU_DEBUG", "1")
    with pytest.raises(ValueError):
        cli.main(["fit", "--config", str(config), "--model.env.num_envs=0"])


@pytest.mark.parametrize(("error", "status"), [(SIGTERMException, 143), (KeyboardInterrupt, 130)])
def test_the_status_tells_of_the_signal(error: Any, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*args: object) -> None:
        raise error

    monkeypatch.setattr(program_module, "_dispatch", ended)
    assert cli.main([]) == status


@pytest.mark.parametrize("program", ["lightning", "torchrl-gpu"])
def test_scripts_from_another_folder(program: str, tmp_path: Path) -> None:
    def script(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *args], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)

    assert script("--help").stdout.startswith(f"usage: {program} SUBCOMMAND")
    wrong = script("fit", "--config", "no.yaml")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: --config: want a file")
