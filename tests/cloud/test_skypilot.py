"""The job for SkyPilot: its schema, and a script that resumes.

It goes on from a checkpoint where there is one.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from torchrl_gpu import configs

JOB = ROOT / "cloud" / "skypilot.yaml"
# Of the schema of a task in skypilot 0.14.1, as far as the job uses it: key, type.
SCHEMA: dict[str, Any] = {"name": str, "workdir": str, "resources": dict, "envs": dict, "setup": str, "run": str}
RESOURCES: dict[str, Any] = {"accelerators": dict, "use_spot": bool, "disk_size": int, "job_recovery": dict}


@pytest.fixture
def job() -> dict[str, Any]:
    return yaml.safe_load(JOB.read_text(encoding="utf-8"))


def test_its_keys_are_those_of_the_schema(job: dict[str, Any]) -> None:
    assert {key: type(value) for key, value in job.items()} == SCHEMA
    assert {key: type(value) for key, value in job["resources"].items()} == RESOURCES
    assert set(job["resources"]["job_recovery"]) <= {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}


def test_skypilot_itself_takes_it(job: dict[str, Any]) -> None:
    sky = pytest.importorskip("sky", reason="skypilot is installed by hand, in an environment of its own")
    from sky.utils import schemas

    pytest.importorskip("jsonschema").validate(job, schemas.get_task_schema())
    task = sky.Task.from_yaml_config(job, env_overrides=[("CHECKPOINTS", "s3://bucket/run")])
    assert task.envs["CHECKPOINTS"] == "s3://bucket/run"


def test_the_folder_is_that_of_the_config(job: dict[str, Any]) -> None:
    config = yaml.safe_load(Path(configs.find(job["envs"]["CONFIG"])).read_text(encoding="utf-8"))
    assert job["envs"]["RUN"] == config["trainer"]["default_root_dir"]


def run(job: dict[str, Any], home: Path, found: int) -> tuple[int, str]:
    """Run the script with programs that only note their calls.

    Returns the exit status and the calls.
    """
    programs, calls = home / "venv" / "bin", home / "calls"
    programs.mkdir(parents=True)
    for name, status in (("torchrl-gpu", found), ("lightning", 0)):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {calls}\nexit {status}\n')
        (programs / name).chmod(0o755)
    given = {key: value or "s3://bucket/run" for key, value in job["envs"].items() if key != "OPTIONS"}
    environment = os.environ | given | {"HOME": str(home), "OPTIONS": "--trainer.max_steps 8"}
    made = subprocess.run(["bash", "-c", job["run"]], env=environment, check=False, timeout=600)
    return made.returncode, calls.read_text()


@pytest.mark.parametrize(("found", "resumes"), [(0, True), (3, False)])
def test_skypilot_job_resumes_where_there_is_a_checkpoint(
    job: dict[str, Any], tmp_path: Path, found: int, resumes: bool
) -> None:
    status, calls = run(job, tmp_path, found)
    fetch, fit = calls.splitlines()
    assert status == 0
    assert fetch == "torchrl-gpu fetch s3://bucket/run runs/packing_dqn/checkpoints"
    assert fit.startswith("lightning fit --config packing_dqn.yaml --trainer.callbacks+=")
    assert "--trainer.callbacks.url=s3://bucket/run" in fit
    assert ("--ckpt_path last" in fit) == resumes
    assert fit.endswith("--trainer.max_steps 8")


def test_storage_that_cannot_be_read_begins_no_new_run(job: dict[str, Any], tmp_path: Path) -> None:
    status, calls = run(job, tmp_path, 2)
    assert status == 1
    assert "lightning" not in calls
