"""The programs `lightning` and `torchrl-gpu`, over small stand-ins for the package's own modules."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import ModelSummary, ProgressBar

from tests.standins import Note
from torchrl_gpu import cli, configs
from torchrl_gpu.lightning_cli import PackageCLI, SaveConfig, build
from torchrl_gpu.training.checkpoint import check_checkpoint

CONFIG = {
    "seed_everything": 7,
    "trainer": {
        "accelerator": "cpu",
        "max_steps": 8,  # one epoch
        "log_every_n_steps": 1,
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [{"class_path": "tests.standins.Note"}],
    },
    "model": {
        "class_path": "tests.standins.TinyModule",
        "init_args": {"env": {"class_path": "tests.standins.TinyEnv", "init_args": {"num_envs": 8}}},
    },
    "data": {"class_path": "tests.standins.TinyData"},
}

Run = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config of the stand-ins that writes below a temporary folder."""
    trainer = CONFIG["trainer"] | {"default_root_dir": str(tmp_path / "run")}  # type: ignore[operator]
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(CONFIG | {"trainer": trainer}), encoding="utf-8")
    return path


@pytest.fixture
def checkpoint(config: Path, tmp_path: Path) -> Path:
    """What a short run leaves."""
    assert cli.main(["fit", "--config", str(config)]) is None
    (path,) = (tmp_path / "run" / "checkpoints").glob("*.ckpt")
    return path


@pytest.fixture
def error_of(config: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a word with arguments that are wrong: the one line that it says."""

    def run(*args: str, word: str = "fit", program: str = "torchrl-gpu") -> str:
        capfd.readouterr()
        assert cli.main([word, "--config", str(config), *args], program) == 2
        said = capfd.readouterr().err.splitlines()
        assert len(said) == 1, said
        assert said[0].startswith("error: ")
        return said[0].removeprefix("error: ")

    return run


def build_with(config: Path, *args: str) -> PackageCLI:
    return build("fit", ["--config", str(config), *args])


# -- what the terminal shows --


def shown_by(cli: PackageCLI) -> dict[type, list[str]]:
    """Names of the callbacks that show a run, by their role."""
    return {
        role: [type(each).__name__ for each in cli.trainer.callbacks if isinstance(each, role)]
        for role in (ProgressBar, ModelSummary)
    }


@pytest.mark.parametrize("name", configs.names())
def test_progress_bar_and_summary_of_shipped_configs(name: str, tmp_path: Path) -> None:
    shipped = yaml.safe_load(Path(configs.find(name)).read_text())["trainer"]
    path = tmp_path / "trainer.yaml"
    path.write_text(yaml.safe_dump(CONFIG | {"trainer": shipped | {"accelerator": "cpu", "precision": "32-true"}}))
    assert shown_by(build_with(path)) == {ProgressBar: ["RunProgress"], ModelSummary: ["NetworkSummary"]}
    off = build_with(path, "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")
    assert shown_by(off) == {ProgressBar: [], ModelSummary: []}


def test_another_progress_bar_takes_the_place_of_ours(config: Path) -> None:
    others = "[lightning.pytorch.callbacks.TQDMProgressBar, lightning.pytorch.callbacks.ModelSummary]"
    on = ("--trainer.enable_progress_bar=true", "--trainer.enable_model_summary=true")
    found = shown_by(build_with(config, *on, f"--trainer.callbacks={others}"))
    assert found == {ProgressBar: ["TQDMProgressBar"], ModelSummary: ["ModelSummary"]}


# -- words --


@pytest.mark.parametrize("word", ["fit", "validate", "test", "predict"])
def test_each_trainer_word_runs(config: Path, word: str) -> None:
    assert cli.main([word, "--config", str(config)]) is None


@pytest.mark.filterwarnings("ignore:Checkpoint directory")  # two runs, one folder
def test_a_run_resumes(config: Path, checkpoint: Path, tmp_path: Path) -> None:
    args = ["fit", "--config", str(config), "--ckpt_path", str(checkpoint), "--trainer.max_steps", "12"]
    assert cli.main(args) is None
    steps = [torch.load(path, weights_only=True)["global_step"] for path in checkpoint.parent.glob("*.ckpt")]
    assert sorted(steps)[-1] == 12


@pytest.mark.filterwarnings("ignore:Checkpoint directory")  # two runs, one folder
def test_only_fit_saves_its_config(config: Path, tmp_path: Path) -> None:
    assert cli.main(["test", "--config", str(config)]) is None
    assert not (tmp_path / "run" / "config.yaml").exists()
    for _ in range(2):  # a second run may take the place of the first
        assert cli.main(["fit", "--config", str(config)]) is None
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    assert saved["model"]["init_args"]["env"]["init_args"]["num_envs"] == 8


def test_help_names_words_and_configs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"], "torchrl-gpu") is None
    said = capsys.readouterr().out
    assert all(word in said for word in ("fit", "validate", "test", "predict", "doctor", *configs.names()))


def test_help_of_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit", "--help"]) == 0
    assert "--trainer.max_steps" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) is None
    assert capsys.readouterr().out.startswith("torchrl_gpu 0.")


def test_unknown_word(error_of: Run) -> None:
    words = "fit, validate, test, predict, doctor, bench, evaluate, play, serve"
    assert error_of(word="fitt") == f"torchrl-gpu: want one of the words {words}; got 'fitt'"
    assert error_of(word="doctor", program="lightning").startswith("lightning: want one of the words fit, ")


def test_other_words_of_lightning_go_to_its_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    class Script:
        def load(self) -> Callable[[], int]:
            return lambda: 17

    monkeypatch.setattr(cli, "_sdk_scripts", lambda: [Script()])
    assert cli.main(["login"], "lightning") == 17
    assert cli.main(["login"], "torchrl-gpu") == 2


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"], "torchrl-gpu") == 0
    assert "cuda" in capsys.readouterr().out


def test_doctor_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"], "torchrl-gpu") == 0
    findings = yaml.safe_load(capsys.readouterr().out)
    assert {"packing", "device", "software"} <= {finding["group"] for finding in findings}
    assert all(finding["usable"] or finding["detail"] for finding in findings)


def test_doctor_with_a_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--jsn"], "torchrl-gpu") == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- the config and what the command line changes in it --


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


@pytest.mark.parametrize("form", [["--config", "{}"], ["--config={}"], ["-c", "{}"]])
def test_configs_are_found_by_name(form: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shipped").mkdir()
    (tmp_path / "shipped" / "run.yaml").touch()
    monkeypatch.setattr(configs, "_FOLDER", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    for name in ("run.yaml", "run"):
        (found,) = cli.resolve_configs([part.format(name) for part in form])[-1:]
        assert found.removeprefix("--config=") == str(tmp_path / "shipped" / "run.yaml")
    (tmp_path / "run.yaml").touch()  # a path comes first
    assert cli.resolve_configs([part.format("run.yaml") for part in form])[-1].removeprefix("--config=") == "run.yaml"


# -- what the user can mend is one line, with status 2 --

WRONG = [
    (["--trainer.max_stepz=3"], r"want a known option, such as trainer.max_steps.*; got 'trainer.max_stepz'"),
    (["--modle.env=3"], r"want a known option, such as model; got 'modle.env'"),
    (["--model.env.num_envz=3"], r"model.env \(.*TinyEnv\): want a known option, such as num_envs; got 'num_envz'"),
    (["--model.widht=3"], r"model \(.*TinyModule\): want a known option, such as width; got 'widht'"),
    (["--model.env.num_envs=many"], r"model.env.num_envs .*: want int; got many"),
    (["--trainer.max_steps=many"], r"trainer.max_steps: want int; got many"),
    (["--model.env.num_envs=0"], r"TinyEnv: num_envs must be at least 1; got 0"),
    (["--model=no.Module"], r"model \(no.Module\): No module named 'no'"),
    (["--trainer.callbacks+=tests.standins.Noote"], r"has no attribute 'Noote'"),
    (["--trainer.accelerator=cuda"], r"accelerator"),
    (["--ckpt_path=no.ckpt"], r"checkpoint no.ckpt: want an existing file; got none there"),
    (["--config=no.yaml"], r"--config: want a file, or a shipped config \(.*\); got 'no.yaml'"),
]


@pytest.mark.skipif(torch.cuda.is_available(), reason="asking for CUDA is right here")
@pytest.mark.parametrize(("args", "message"), WRONG, ids=[args[0] for args, _ in WRONG])
def test_wrong_arguments(error_of: Run, args: list[str], message: str) -> None:
    assert re.search(message, error_of(*args))


@pytest.mark.parametrize(
    "args", [["--modle.env=3"], ["--weights_only=false"], ["--ckpt_path=no.ckpt"], ["--ckpt_path", "no.ckpt"]]
)
def test_what_the_words_alone_tell_is_said_before_lightning_is_loaded(
    error_of: Run, args: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchrl_gpu.lightning_cli.run", pytest.fail)
    assert "; got " in error_of(*args)


@pytest.mark.parametrize("word", ["fit", "validate", "test", "predict"])
def test_the_options_that_are_known_without_lightning_are_its_own(config: Path, word: str) -> None:
    options = {option.partition(".")[0] for option in build(word, ["--config", str(config)])._option_names()}
    assert {*cli.OPTIONS} == options | {"help", "return_predictions"}


@pytest.mark.parametrize("path", ["best", "last", "hpc", "registry:model", "s3://bucket/x.ckpt", "null"])
def test_checkpoints_that_are_no_files_pass(path: str) -> None:
    cli.check_arguments(["--ckpt_path", path, "--trainer.callbacks+=x", "--print_config=skip_null", "-c", "x.yaml"])


def test_yaml_that_is_none(error_of: Run, config: Path) -> None:
    config.write_text("trainer: [", encoding="utf-8")
    assert error_of().startswith("--config: want YAML; got")


def test_a_key_of_a_config_that_is_unknown(error_of: Run, config: Path) -> None:
    config.write_text(config.read_text(encoding="utf-8").replace("max_steps", "max_stepz"), encoding="utf-8")
    assert "such as trainer.max_steps" in error_of()


def test_no_config(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit"]) == 2
    assert capfd.readouterr().err == "error: command line: want --config NAME.yaml, or all of fit.model; got neither\n"


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


def test_an_interrupt_is_130(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_dispatch", interrupted)
    assert cli.main([]) == 130


# -- checkpoints --


class Malicious:
    """Writes a file when it is unpickled without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


@pytest.fixture(params=["archive", "bare pickle"])
def malicious(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "malicious.ckpt"
    content = {"state_dict": {}, "pytorch-lightning_version": "2.6.6", "bad": Malicious(tmp_path / "ran")}
    if request.param == "archive":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    return path


@pytest.mark.parametrize("word", ["fit", "validate", "test", "predict"])
def test_code_in_a_checkpoint_never_runs(
    error_of: Run, malicious: Path, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # which torch obeys where nobody says otherwise
    assert "malicious.ckpt: want" in error_of("--ckpt_path", str(malicious), word=word)
    monkeypatch.setattr("torchrl_gpu.training.checkpoint.check_checkpoint", lambda *args: None)
    with pytest.raises(pickle.UnpicklingError):  # without our check, Lightning's own load is as strict
        cli.main([word, "--config", str(tmp_path / "tiny.yaml"), "--ckpt_path", str(malicious)])
    assert not (tmp_path / "ran").exists()


def test_weights_only_cannot_be_switched_off(error_of: Run) -> None:
    assert "got 'weights_only'" in error_of("--weights_only=false")


def test_a_checkpoint_names_no_classes(config: Path, checkpoint: Path, tmp_path: Path) -> None:
    content = torch.load(checkpoint, weights_only=True)
    content["hyper_parameters"] = {"_class_path": "no.such.Module", "width": 9}
    torch.save(content, tmp_path / "other.ckpt")
    assert cli.main(["test", "--config", str(config), "--ckpt_path", str(tmp_path / "other.ckpt")]) is None


@pytest.mark.parametrize("length", [0, 100, 1000])
def test_truncated_checkpoint(error_of: Run, checkpoint: Path, length: int) -> None:
    checkpoint.write_bytes(checkpoint.read_bytes()[:length])
    assert f"want a complete archive as torch.save writes it; got {length} bytes" in error_of(
        "--ckpt_path", str(checkpoint), word="test"
    )


def test_checkpoint_of_another_architecture(error_of: Run, checkpoint: Path) -> None:
    said = error_of("--ckpt_path", str(checkpoint), "--model.width=5", word="test")
    assert said.endswith("want the weights of this TinyModule, layer.weight of shape (5, 2); got shape (3, 2)")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, r"want the weights of this Linear; got none for weight and 1 more"),
        ({"weight": torch.ones(2, 1), "bias": torch.ones(2), "gain": torch.ones(1)}, r"got others too, gain"),
        (None, r"want a checkpoint of a training run; got no state_dict in it"),
    ],
)
def test_check_checkpoint(tmp_path: Path, state: dict[str, torch.Tensor] | None, message: str) -> None:
    torch.save({"state_dict": state}, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=message):
        check_checkpoint(tmp_path / "x.ckpt", torch.nn.Linear(1, 2))


def test_check_checkpoint_of_a_folder_and_of_a_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got a folder"):
        check_checkpoint(tmp_path)
    torch.save([1], tmp_path / "list.ckpt")
    with pytest.raises(ValueError, match="want a dict; got a list"):
        check_checkpoint(tmp_path / "list.ckpt")


def test_a_mismatch_that_only_loading_finds_is_one_line() -> None:
    from torchrl_gpu.errors import is_for_user, one_line

    with pytest.raises(RuntimeError) as caught:
        torch.nn.Linear(1, 2).load_state_dict({"weight": torch.ones(3, 1)})
    assert is_for_user(caught.value)
    assert "\n" not in one_line(caught.value)
    assert "Linear" in one_line(caught.value)


# -- as installed --


@pytest.mark.parametrize("program", ["lightning", "torchrl-gpu"])
def test_scripts_from_another_folder(program: str, tmp_path: Path, child_environment: dict[str, str]) -> None:
    def script(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *args],
            cwd=tmp_path,
            env=child_environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert script("--help").stdout.startswith(f"usage: {program} WORD")
    wrong = script("fit", "--config", "no.yaml")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: --config: want a file")


def test_tokens_are_not_saved_with_the_configuration(config: Path) -> None:
    secret = "a-token-of-a-stream"
    stream = ["--trainer.callbacks+=torchrl_gpu.callbacks.FrameStream", f"--trainer.callbacks.token={secret}"]
    made = build("fit", ["--config", str(config), *stream])
    (saver,) = (each for each in made.trainer.callbacks if isinstance(each, SaveConfig))
    saved = saver.parser.dump(saver.config, skip_none=False)
    assert "token: null" in saved
    assert secret not in saved
    assert secret in str(made.config)  # which the callback was made from
