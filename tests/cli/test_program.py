"""The programs `lightning` and `torchrl-gpu`: subcommands and exit statuses."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.utilities.exceptions import SIGTERMException

from tests.cli.test_evaluate import QUICK, SMALL
from tests.cli.tiny_run import Run
from tests.test_end_to_end import small
from torchrl_gpu import cli, configs
from torchrl_gpu.cli import parser, play
from torchrl_gpu.cli import program as program_module
from torchrl_gpu.cli.errors import is_for_user, one_line
from torchrl_gpu.cli.lightning_cli import build


# The others have tests of their own.
@pytest.mark.parametrize("subcommand", ["validate", "predict"])
def test_each_trainer_subcommand_runs(config: Path, subcommand: str) -> None:
    assert cli.main([subcommand, "--config", str(config)]) is None


def test_help_names_subcommands_and_configs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"], "torchrl-gpu") is None
    said = capsys.readouterr().out
    assert all(name in said for name in ("fit", "validate", "test", "predict", "doctor", *configs.names()))


def test_help_of_a_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit", "--help"]) == 0
    assert "--trainer.max_steps" in capsys.readouterr().out


def test_program_prints_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) is None
    assert capsys.readouterr().out.startswith("torchrl_gpu 0.")


def test_unknown_subcommand_is_refused(error_of: Run) -> None:
    names = (
        "fit, validate, test, predict, doctor, bench, pack, evaluate, encode, record, export, play, serve,"
        " serve-policy, fetch, cost, ros"
    )
    assert error_of(subcommand="fitt") == f"torchrl-gpu: 'fitt' must be one of the subcommands {names}"
    assert error_of(subcommand="doctor", program="lightning").startswith(
        "lightning: 'doctor' must be one of the subcommands fit, "
    )


def test_other_subcommands_of_lightning_go_to_its_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    class Script:
        def load(self) -> Callable[[], int]:
            return lambda: 17

    monkeypatch.setattr(program_module, "_sdk_scripts", lambda: [Script()])
    assert cli.main(["login"], "lightning") == 17
    assert cli.main(["login"], "torchrl-gpu") == 2


def test_command_without_config_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit"]) == 2
    assert capfd.readouterr().err == "error: command line: name a run with --config NAME.yaml or --model CLASS\n"


def test_programming_errors_keep_their_traceback(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, *args: object, **kwargs: object) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr("tests.standins.TinyModule.training_step", broken)
    with pytest.raises(AttributeError, match=r"such thing"):
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
    assert wrong.stderr.startswith("error: --config: ")


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps a folder that is in use")
@pytest.mark.parametrize("args", [["--help"], ["doctor"], ["fit", "--config", "packing.yaml"]])
def test_a_removed_working_folder_is_one_line(
    args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(args) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "folder" in said


@pytest.mark.parametrize("option", ["--trainer.default_root_dir", "--out ", "--output"])
def test_a_place_that_is_not_allowed_names_the_option_of_another(option: str) -> None:
    said = one_line(PermissionError(errno.EACCES, "Permission denied", "pallets"))
    assert said.startswith("pallets: ")
    assert option in said


def test_configs_are_found_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "run.yaml").touch()
    monkeypatch.setattr(configs, "_FOLDER", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    for name in ("run.yaml", "run"):
        assert parser.resolve_configs(["-c", name]) == [f"--config={tmp_path / 'shipped' / 'run.yaml'}"]
    # A path comes first.
    (tmp_path / "run.yaml").touch()
    assert parser.resolve_configs(["-c", "run.yaml"]) == ["--config=run.yaml"]


@pytest.mark.parametrize("form", [["--config", "{}"], ["--config={}"], ["-c", "{}"], ["-c{}"]])
def test_options_change_a_config_wherever_they_stand(form: list[str], tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).touch()
    first = [part.format(tmp_path / "a.yaml") for part in form]
    second = [part.format(tmp_path / "b.yaml") for part in form]
    before = ["--trainer.max_steps", "4", "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=x"]
    configs_ = [f"--config={tmp_path / name}" for name in ("a.yaml", "b.yaml")]
    assert parser.resolve_configs([*before, *first, "--data.seed=1", *second]) == [*configs_, *before, "--data.seed=1"]


@pytest.mark.parametrize("args", [["--config"], ["--config="], ["--config", "--trainer.max_steps=3"], ["-c"]])
def test_a_config_without_a_file(args: list[str]) -> None:
    with pytest.raises(ValueError, match=r"(--config|-c) .*, not by \S+$"):
        parser.resolve_configs(args)


def test_other_programs_than_the_trainer_have_no_shipped_configs() -> None:
    with pytest.raises(FileNotFoundError, match=r"--config: .*'packing\.yaml'"):
        parser.resolve_configs(["--config", "packing.yaml"], shipped=False)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("--model.env.num_envs=3", "--model.env=tests.standins.TinyEnv"),
        ("--trainer.callbacks+=tests.standins.Note", "--trainer.callbacks=[]"),
        ("--data.sequences=a.json", "--data=tests.standins.TinyData"),
    ],
)
def test_options_that_would_be_dropped_are_refused(error_of: Run, first: str, second: str) -> None:
    name = second.partition("=")[0]
    assert error_of(first, second).startswith(f"command line: {name} would replace {first.partition('=')[0]}")
    parser.check_arguments([second, first])
    parser.check_arguments([first, "--trainer.callbacks+=tests.standins.Note"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--modle.env=3"], "unknown option 'modle.env'; did you mean model?"),
        (["--weights_only=false"], "unknown option 'weights_only'"),
        (["--ckpt_path=no.ckpt"], "checkpoint no.ckpt: there is no such file"),
        (["--ckpt_path", "no.ckpt"], "checkpoint no.ckpt: there is no such file"),
    ],
)
def test_arguments_come_before_lightning(
    error_of: Run, args: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrl_gpu.cli.lightning_cli.run", pytest.fail)
    assert message in error_of(*args)


@pytest.mark.parametrize("subcommand", ["fit", "validate", "test", "predict"])
def test_the_options_that_are_known_without_lightning_are_its_own(config: Path, subcommand: str) -> None:
    actions = build(subcommand, ["--config", str(config)])._subcommand_parsers[subcommand]._actions
    known = {each.dest.partition(".")[0] for each in actions if each.option_strings}
    assert {*parser.OPTIONS} == known | {"help", "return_predictions"}


@pytest.mark.parametrize("path", ["best", "last", "hpc", "registry:model", "s3://bucket/x.ckpt", "null"])
def test_checkpoints_that_are_no_files_pass(path: str) -> None:
    parser.check_arguments(["--ckpt_path", path, "--trainer.callbacks+=x", "--print_config=skip_null", "-c", "x.yaml"])


WRONG = [
    (["--trainer.max_stepz=3"], r"unrecognized .*: --trainer.max_stepz=3; did you mean trainer.max_steps"),
    (["--model.env.num_envz=3"], r"model.env \(.*TinyEnv\): Option 'num_envz' .*; did you mean num_envs\?$"),
    (["--model.widht=3"], r"model \(.*TinyModule\): Option 'widht' .*; did you mean width\?$"),
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
    (["--trainer.num_sanity_val_steps=-5"], r"^Trainer: num_sanity_val_steps must be at least -1; got -5$"),
    (
        ["--trainer.callbacks+=EpisodeMcap", "--trainer.callbacks.choose=none"],
        r"^EpisodeMcap: choose must be one of .*; got 'none'$",
    ),
    (["--trainer.callbacks+=TrainingFilm", "--trainer.callbacks.fps=.nan"], r"^TrainingFilm: fps must be .*; got nan$"),
    (
        ["--trainer.callbacks+=torchrl_gpu.callbacks.FrameStrea"],
        r"callbacks.FrameStrea\): module 'torchrl_gpu.callbacks' has no attribute 'FrameStrea'; .* FrameStream\?$",
    ),
    (["--trainer.callbacks+=FrameStrea"], r"dot import path string: FrameStrea.*; did you mean FrameStream\?$"),
    (["--model.env=tests.cli.broken.Env"], r"name 'nothing' is not defined.* \(.*broken.py, line 5\)$"),
    (
        ["--model.env=tests.standins.UntypedEnv", "--model.env.inner=tests.standins.TinyEnv"],
        r"UntypedEnv: `inner` has no type in its constructor, .* tests.standins.TinyEnv ",
    ),
    (["--trainer.accelerator=cuda"], r"accelerator"),
    (["--config=no.yaml"], r"--config: 'no.yaml' .*packing_dqn\.yaml"),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="asking for CUDA is right here")
@pytest.mark.parametrize(("args", "message"), WRONG, ids=[args[0] for args, _ in WRONG])
def test_wrong_arguments_are_one_line(error_of: Run, args: list[str], message: str) -> None:
    assert re.search(message, error_of(*args))


def test_yaml_that_is_none(error_of: Run, config: Path) -> None:
    config.write_text("trainer: [", encoding="utf-8")
    assert error_of().startswith("--config: the file is no YAML: ")


def test_a_key_of_a_config_that_is_unknown(error_of: Run, config: Path) -> None:
    config.write_text(config.read_text(encoding="utf-8").replace("max_steps", "max_stepz"), encoding="utf-8")
    assert "did you mean trainer.max_steps?" in error_of()


def test_a_mismatch_that_only_loading_finds_is_one_line() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.nn.Linear(1, 2).load_state_dict({"weight": torch.ones(3, 1)})
    assert is_for_user(caught.value)
    said = one_line(caught.value)
    assert "\n" not in said
    assert re.search("not those of this model: .* Linear: Missing .*bias.* size mismatch for weight", said)


# What all of them begin with, then the rest and a part of the line.
REFUSED: dict[str, list[tuple[str, str]]] = {
    "bench": [
        ("packing --num_envs 0", "--num_envs must be at least 1; got 0"),
        ("packing --seconds nan", "--seconds must be a finite number above 0; got nan"),
        ("packing --device abacus", "get_device"),
        ("packing --settings bpp9", "bpp9"),
        ("unpacking", "environment must be one of packing; got 'unpacking'"),
        ("", "environment must be given"),
    ],
    "cost --config packing.yaml": [
        ("--price -1", "--price must be a finite number above 0; got -1"),
        ("--throughput 1 --seconds 3", "--seconds does nothing without a rate that is measured"),
        ("--throughput 1 --run .", "--throughput and --run exclude each other"),
        ("--run nowhere", "--run must be the folder of a run; got nowhere"),
        ("--run .", "--run must be a folder with TensorBoard logs"),
        ("--pric 1", "unknown option 'pric'; did you mean price?"),
        ("--throughput 1 --trainer.max_steps -1", "trainer.max_steps of the config is -1: give --updates"),
    ],
    "doctor": [("--jsn", "unknown options: --jsn")],
    "encode": [
        ("nobody.mp4", "torchrl-gpu encode: there is no video or folder nobody.mp4"),
        ("", "torchrl-gpu encode: VIDEO must be given"),
        ("{tmp} --output {tmp}", "torchrl-gpu encode: --output must be a folder that is not there yet"),
        ("{tmp}", "it has neither meta/info.json nor MP4 files"),
        ("{tmp} --size 0 4", "demonstrations: size must be"),
    ],
    "evaluate": [
        ("boats", "--config: 'boats' "),
        (
            "--config packing_dqn.yaml --model.env.items.pool=16 --model.agent.network.channels=4 --visible 2",
            "evaluate: --visible is for irregular packing, not for a PackingSuite",
        ),
    ],
    " ".join(["evaluate packing_irregular", *QUICK, *SMALL]): [
        ("--methods foo", "--methods must be one of random, dbl, "),
        ("--sets hardest", "--sets must be one of easy, hard; got 'hardest'"),
        ("--case=3", "unknown option 'case'; did you mean cases?"),
        ("--cases=0", "--cases must be at least 1; got 0"),
        ("--meshes nowhere", "--meshes must be a folder of mesh files; got nowhere"),
        ("--model.env.visible=3", "Option 'visible' is not accepted"),
    ],
    "evaluate bpp10 --device=cpu": [
        ("--protocol=cut3", "discrete125, free125; got 'cut3'"),
        ("", "--protocol must be given"),
        ("--protocol=rs --policy nobody", "--policy must be baselines, random, first-fit, bph"),
        ("--protocol=rs --policy orders", "rs, rs-refined or the path of a checkpoint; got 'orders'"),
        ("--protocol=rs --policy rs --depth=5", "--depth has no effect with --knows none; it needs stream"),
        (
            "--protocol=rs --policy rs --knows boxes --futures=5",
            "--futures has no effect with --knows boxes",
        ),
        (
            "--protocol=rs --policy rs --knows boxes --beam=5",
            "--beam has no effect with --knows boxes",
        ),
        (
            "--protocol=rs --policy rs --knows stream --candidates=5",
            "--candidates has no effect with --knows stream; it needs distribution or boxes",
        ),
        ("--protocol=rs --policy rs --knows stream --visible=2", "--knows need --visible=1, not 2"),
        ("--protocol=rs --policy dbl --knows stream", "--beam are for policies of afterstate values"),
        ("--protocol=rs --policy rs --visible=2 --depth=2", "with --visible=2 --depth 2 has no effect without --beam"),
        ("--protocol=rs --policy rs --visible=2 --beam=2 --depth=3", "VisibleSearch: depth must be at most 2; got 3"),
        ("--protocol=rs --policy rs --knows all", "boxes, stream; got 'all'"),
        ("--protocol=rs --sequences none.pt", "BoxSequences: none.pt: "),
    ],
    " ".join(["play", *small("packing_dqn.yaml")]): [
        ("--host 0.0.0.0", "host '0.0.0.0' lets other machines connect"),
        ("--host 0.0.0.0 --token 1234", "token needs at least 16 characters"),
        ("--speed 0", "torchrl-gpu play: --speed must be a finite number above 0; got 0"),
        ("--num_envs 0", "torchrl-gpu play: --num_envs must be at least 1; got 0"),
        ("--streams env3", "streams: 'env3' must be an environment below 1"),
    ],
    "serve-policy": [("a.ckpt --threads 0", "threads must be at least 1; got 0")],
    "record": [
        ("--config packing_dqn.yaml", "--output must be given"),
        ("--config packing_dqn.yaml --output {tmp}", "--output must be a folder that is not there yet"),
        ("--config packing_dqn.yaml --output x --episodes 0", "--episodes must be at least 1; got 0"),
        ("--config packing_dqn.yaml --output x --ckpt_path nobody.ckpt", "nobody.ckpt: there is no such file"),
    ],
    # These options have no effect.
    "record --config packing_dqn.yaml --output x": [
        ("--choose worst", "--choose has no effect with --format memmap; it needs mcap"),
        ("--most 3", "--most has no effect with --format memmap; it needs mcap"),
        ("--below 0.5 --format lerobot", "--below has no effect with --format lerobot; it needs mcap"),
        ("--size 240 320", "--size has no effect with --format memmap; it needs lerobot or mcap"),
        ("--most 3 --format mcap", "--most has no effect with --choose all; it needs worst or best or failures"),
        ("--below 1 --format mcap --choose worst", "--below has no effect with --choose worst; it needs failures"),
    ],
}
CASES: list[tuple[str, str]] = []
for begin, rows in REFUSED.items():
    CASES += [(f"{begin} {more}", message) for more, message in rows]


@pytest.mark.parametrize(("line", "message"), CASES, ids=[f"{line[:20]} … {line[-40:]}" for line, _ in CASES])
def test_wrong_options_are_one_line(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCHRL_GPU_TOKEN", raising=False)
    # Everything that `play` refuses is found before.
    monkeypatch.setattr(play, "_load", pytest.fail)
    assert cli.main(line.format(tmp=tmp_path).split(), "torchrl-gpu") == 2
    matching = [each for each in capfd.readouterr().err.splitlines() if each.startswith("error: ")]
    (said,) = matching
    assert message in said
