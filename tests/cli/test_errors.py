"""What the user can mend is one line, with status 2: where, what is wanted, what came."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.cli.tiny_run import Run
from torchrl_gpu.cli.errors import is_for_user, one_line

WRONG = [
    (["--trainer.max_stepz=3"], r"unrecognized .*: --trainer.max_stepz=3; want for example trainer.max_steps"),
    (["--modle.env=3"], r"want a known option, such as model; got 'modle.env'"),
    (["--model.env.num_envz=3"], r"model.env \(.*TinyEnv\): Option 'num_envz' .*; want for example num_envs$"),
    (["--model.widht=3"], r"model \(.*TinyModule\): Option 'widht' .*; want for example width$"),
    (["--model.env.num_envs=many"], r"model.env.num_envs \(.*TinyEnv\): Expected a int. Got value: many$"),
    (["--trainer.max_steps=many"], r"^trainer.max_steps: Expected a int. Got value: many$"),
    (["--seed_everything=x"], r"^seed_everything: Expected a bool or Expected a int; Given value: x$"),
    (["--trainer.max_steps=[3"], r"^trainer.max_steps: Expected a int. Got value: \[3$"),
    (["--model.env.num_envs=0"], r"^TinyEnv: num_envs must be at least 1; got 0$"),
    (["--model=no.Module"], r"model \(no.Module\): No module named 'no'$"),
    (["--trainer.callbacks+=tests.standins.Noote"], r"has no attribute 'Noote'"),
    (["--trainer.val_check_interval=0"], r"^Trainer: val_check_interval must be above 0; got 0$"),
    (["--trainer.limit_train_batches=0"], r"^Trainer: limit_train_batches must be above 0; got 0(\.0)?$"),
    (["--trainer.check_val_every_n_epoch=0"], r"^Trainer: check_val_every_n_epoch must be at least 1; got 0$"),
    (["--trainer.log_every_n_steps=-1"], r"^Trainer: log_every_n_steps must be at least 0; got -1$"),
    (["--trainer.num_sanity_val_steps=-5"], r"^Trainer: num_sanity_val_steps must be at least -1; got -5$"),
    (
        ["--trainer.callbacks+=EpisodeMcap", "--trainer.callbacks.choose=none"],
        r"^EpisodeMcap: choose must be one of .*; got 'none'$",
    ),
    (["--trainer.callbacks+=GpuStats", "--trainer.callbacks.every_s=.nan"], r"^GpuStats: every_s must be .*; got nan$"),
    (["--trainer.callbacks+=Noote"], r"dot import path string: Noote"),
    (
        ["--trainer.callbacks+=torchrl_gpu.callbacks.FrameStrea"],
        r"callbacks.FrameStrea\): module 'torchrl_gpu.callbacks' has no attribute 'FrameStrea'; .* FrameStream$",
    ),
    (["--trainer.callbacks+=FrameStrea"], r"dot import path string: FrameStrea .*; want for example FrameStream$"),
    (["--model.env=tests.cli.broken.Env"], r"name 'nothing' is not defined.* \(.*broken.py, line 5\)$"),
    (
        ["--model.env=tests.standins.UntypedEnv", "--model.env.inner=tests.standins.TinyEnv"],
        r"UntypedEnv: want a type behind `inner` in its constructor, .*; got none, and tests.standins.TinyEnv$",
    ),
    (["--trainer.accelerator=cuda"], r"accelerator"),
    (["--ckpt_path=no.ckpt"], r"checkpoint no.ckpt: want an existing file; got none there"),
    (["--config=no.yaml"], r"--config: want a file, or a shipped config \(.*\); got 'no.yaml'"),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="asking for CUDA is right here")
@pytest.mark.parametrize(("args", "message"), WRONG, ids=[args[0] for args, _ in WRONG])
def test_wrong_arguments(error_of: Run, args: list[str], message: str) -> None:
    assert re.search(message, error_of(*args))


def test_yaml_that_is_none(error_of: Run, config: Path) -> None:
    config.write_text("trainer: [", encoding="utf-8")
    assert error_of().startswith("--config: want YAML; got")


def test_a_key_of_a_config_that_is_unknown(error_of: Run, config: Path) -> None:
    config.write_text(config.read_text(encoding="utf-8").replace("max_steps", "max_stepz"), encoding="utf-8")
    assert "want for example trainer.max_steps" in error_of()


def test_a_mismatch_that_only_loading_finds_is_one_line() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.nn.Linear(1, 2).load_state_dict({"weight": torch.ones(3, 1)})
    assert is_for_user(caught.value)
    said = one_line(caught.value)
    assert "\n" not in said
    assert re.search("want the weights of this model; got .* Linear: Missing .*bias.* size mismatch for weight", said)
