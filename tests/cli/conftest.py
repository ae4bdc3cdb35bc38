"""A config of the stand-ins, what its run leaves, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.tiny_run import CONFIG, Run
from torchrl_gpu import cli


@pytest.fixture
def config(tmp_path: Path) -> Path:
    trainer = CONFIG["trainer"] | {"default_root_dir": str(tmp_path / "run")}  # type: ignore[operator]
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(CONFIG | {"trainer": trainer}), encoding="utf-8")
    return path


@pytest.fixture
def checkpoint(config: Path, tmp_path: Path) -> Path:
    assert cli.main(["fit", "--config", str(config)]) is None
    (path,) = (tmp_path / "run" / "checkpoints").glob("*.ckpt")
    return path


@pytest.fixture
def error_of(config: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a subcommand with arguments that are wrong: the one line that it says."""

    def run(*args: str, subcommand: str = "fit", program: str = "torchrl-gpu") -> str:
        capfd.readouterr()
        assert cli.main([subcommand, "--config", str(config), *args], program) == 2
        said = capfd.readouterr().err.splitlines()
        assert len(said) == 1, said
        assert said[0].startswith("error: ")
        return said[0].removeprefix("error: ")

    return run
