"""Lightning's own callbacks, loggers, precisions, profilers and flags.

Each runs through the command line on a tiny run.

Each works or ends with one line. What a new version of Lightning brings makes `test_nothing_of_lightnings_is_left_out`
fail until it is listed here, and in the table of docs/lightning.md.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from lightning.fabric.connector import _PRECISION_INPUT_STR, _PRECISION_INPUT_STR_ALIAS
from lightning.pytorch import Trainer, callbacks, loggers, profilers

from tests.training.tiny import LinearScores, dqn, packing_env
from torchrl_gpu import cli
from torchrl_gpu.training import DeviceReplay, OffPolicy

# What Lightning itself has to say of each, such as that float16 is bfloat16 on a CPU, is not looked at here.
pytestmark = pytest.mark.filterwarnings("ignore")

ROOT = Path(__file__).parents[2]
PACKAGE = "lightning.pytorch"
CSV = {"class_path": f"{PACKAGE}.loggers.CSVLogger", "init_args": {"save_dir": "csv"}}
TENSORBOARD = {"class_path": f"{PACKAGE}.loggers.TensorBoardLogger", "init_args": {"save_dir": "tensorboard"}}
SAVER = {"class_path": "torchrl_gpu.callbacks.EpisodeCheckpoint", "init_args": {"monitor": "val/utilization"}}
NO_OPTIMIZER = "as the module steps its own optimizer"
FLOAT32 = "trainer.precision must be one of 32-true, bf16-mixed, 16-mixed, as observations and rewards are float32"
# Part of the one line, or None where it works.
Expected = str | None

CALLBACKS: dict[str, tuple[dict[str, Any], Expected]] = {
    "BackboneFinetuning": ({}, "use --model.learning_rates, which sets rates by loss, as agents have no `backbone`"),
    "BaseFinetuning": ({}, "BaseFinetuning cannot work here; use a class of your own"),
    "BasePredictionWriter": ({}, None),
    "BatchSizeFinder": ({}, "use --model.batch_size, as batches are drawn on the device"),
    "Callback": ({}, None),
    "Checkpoint": ({}, None),
    "DeviceStatsMonitor": ({}, None),
    "EMAWeightAveraging": ({"decay": 0.9}, None),
    "EarlyStopping": ({"monitor": "val/utilization", "mode": "max"}, None),
    "GradientAccumulationScheduler": ({"scheduling": {0: 2}}, NO_OPTIMIZER),
    "LambdaCallback": ({}, None),
    "LearningRateFinder": ({}, "use --model.optimizer.lr, as the loss of an agent does not tell which rate is good"),
    "LearningRateMonitor": ({}, None),
    "ModelCheckpoint": ({"dirpath": "theirs"}, None),
    "ModelPruning": ({"pruning_fn": "l1_unstructured"}, "use weights under their own names"),
    "ModelSummary": ({}, None),
    "OnExceptionCheckpoint": ({"dirpath": "theirs"}, None),
    "ProgressBar": ({}, None),
    "RichModelSummary": ({}, None),
    "RichProgressBar": ({}, None),
    "SpikeDetection": ({"warmup": 1000}, None),
    "StochasticWeightAveraging": ({"swa_lrs": 0.01}, f"use {PACKAGE}.callbacks.WeightAveraging"),
    "TQDMProgressBar": ({}, None),
    "ThroughputMonitor": ({"batch_size_fn": f"{__name__}.take_one"}, None),
    "Timer": ({"duration": "00:01:00:00"}, None),
    "WeightAveraging": ({}, None),
}
LOGGERS: dict[str, tuple[dict[str, Any], Expected]] = {
    "CSVLogger": ({"save_dir": "csv"}, None),
    "CometLogger": ({}, "comet-ml"),
    "LitLogger": ({}, "trainer.logger"),
    "MLFlowLogger": ({}, "mlflow"),
    "TensorBoardLogger": ({"save_dir": "tensorboard"}, None),
    "WandbLogger": ({}, "wandb"),
}
PRECISIONS: dict[str, Expected] = {
    **dict.fromkeys(("32-true", "32", "bf16-mixed", "bf16", "16-mixed", "16")),
    **dict.fromkeys(("64-true", "64", "bf16-true", "16-true"), FLOAT32),
    **dict.fromkeys(("transformer-engine", "transformer-engine-float16"), "transformer_engine"),
}
PROFILERS: dict[str, Expected] = {"simple": None, "advanced": None, "pytorch": None, "xla": "torch_xla"}
PROFILER_CLASSES = {"SimpleProfiler", "AdvancedProfiler", "PyTorchProfiler", "XLAProfiler"}
# Classes that users subclass.
BASES = {"Logger", "Profiler", "PassThroughProfiler"}
FLAGS: dict[str, list[tuple[Any, Expected]]] = {
    "accelerator": [("cpu", None)],
    "accumulate_grad_batches": [
        (2, f"trainer.accumulate_grad_batches 2 cannot work here; use --model.batch_size, {NO_OPTIMIZER}")
    ],
    "barebones": [(True, None)],
    "benchmark": [(True, None)],
    "check_val_every_n_epoch": [(2, None)],
    "default_root_dir": [("elsewhere", None)],
    "detect_anomaly": [(True, None)],
    "deterministic": [(True, None), ("warn", None)],
    "devices": [(1, None)],
    "enable_autolog_hparams": [(False, None)],
    "enable_checkpointing": [(False, None)],
    "enable_model_summary": [(False, None)],
    "enable_progress_bar": [(False, None)],
    "fast_dev_run": [(True, None), (2, None)],
    "gradient_clip_algorithm": [("norm", None)],
    "gradient_clip_val": [
        (0.5, f"trainer.gradient_clip_val 0.5 cannot work here; use --model.max_grad_norm, {NO_OPTIMIZER}")
    ],
    "inference_mode": [(False, None)],
    "limit_predict_batches": [(1, None)],
    "limit_test_batches": [(1, None)],
    "limit_train_batches": [(1, None), (0.5, None)],
    "limit_val_batches": [(0, None), (1, None)],
    "log_every_n_steps": [(2, None)],
    "max_epochs": [(2, None)],
    "max_steps": [(2, None)],
    "max_time": [("00:00:01:00", None)],
    "min_epochs": [(1, None)],
    "min_steps": [(2, None)],
    "model_registry": [("registry", None)],
    "num_nodes": [(1, None)],
    "num_sanity_val_steps": [(1, None)],
    "overfit_batches": [(1, None)],
    "plugins": [(None, None)],
    "reload_dataloaders_every_n_epochs": [(1, None)],
    "strategy": [("auto", None)],
    "sync_batchnorm": [(True, None)],
    "use_distributed_sampler": [(False, None)],
    "val_check_interval": [(1, None), (0.5, None)],
}
# Arguments of the Trainer that other tests cover.
ELSEWHERE = {"self", "callbacks", "logger", "precision", "profiler"}

# `test_run_leaves_its_files` covers these.
ALONE = ("barebones", "enable_checkpointing", "fast_dev_run", "limit_val_batches")
# Only one can be used at a time.
BARS = ("ProgressBar", "RichProgressBar", "TQDMProgressBar")
# These have a state.
RESUMED = ("EarlyStopping", "ModelCheckpoint", "SpikeDetection", "Timer", "WeightAveraging")

SHIPPED: dict[str, dict[str, Any]] = {
    "packing.yaml": {"tables": {"init_args": {"patches": ["2x2"]}}, "rollout_steps": 4},
    "ppo_packing.yaml": {
        "agent": {"init_args": {name: {"init_args": {"channels": 4, "blocks": 1}} for name in ("actor", "critic")}},
        "rollout_steps": 4,
        "epochs": 1,
        "minibatches": 1,
    },
}
Fit = Callable[..., str | None]


class TinyPacking(OffPolicy):
    def __init__(self) -> None:
        agent = partial(dqn, network=LinearScores)
        replay = partial(DeviceReplay, capacity=64)
        super().__init__(packing_env(4), agent, replay=replay, updates_per_step=1, batch_size=4, warmup_frames=8)


@pytest.fixture
def fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Fit:
    """Run four updates with extra arguments of a Trainer.

    Returns the one line of an error, or None.
    """

    def run(trainer: dict[str, Any], shipped: str | None = None, *args: str) -> str | None:
        trainer = {"accelerator": "cpu", "max_steps": 4, "log_every_n_steps": 1, "logger": False, **trainer}
        small: dict[str, Any] = {
            "trainer": {"default_root_dir": "run", "callbacks": [SAVER], **trainer},
            "model": {"class_path": f"{__name__}.TinyPacking"},
            "data": {"class_path": "torchrl_gpu.training.PackingEpisodes"},
        }
        if shipped is not None:
            env = {"num_envs": 4, "bin_size": [5.0, 5.0, 5.0], "resolution": 5}
            items = {"max_side": 3} if shipped == "packing.yaml" else {"max_side": 3, "pool": 4}
            small["model"] = {"init_args": {"env": {"init_args": {**env, "items": {"init_args": items}}}}}
            small["model"]["init_args"] |= SHIPPED[shipped]
            small["data"] = {}
        small["data"]["init_args"] = {"steps_per_epoch": 2, "num_val_episodes": 1, "batch_size": 1}
        (tmp_path / "small.yaml").write_text(yaml.safe_dump(small), encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        capfd.readouterr()
        status = cli.main(["fit", *(["--config", shipped] if shipped else []), "--config", "small.yaml", *args])
        if status is None:
            return None
        said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
        assert (status, len(said)) == (2, 1)
        return said[0].removeprefix("error: ")

    return run


def take_one(batch: Any) -> int:
    """Return the number of samples of what Lightning calls a batch.

    Here that is the number of a step, or a suite.
    """
    return 1


def check(said: str | None, expected: Expected) -> None:
    assert said is None if expected is None else said is not None and expected in said


def test_nothing_of_lightnings_is_left_out() -> None:
    assert set(callbacks.__all__) == set(CALLBACKS)
    assert set(loggers.__all__) == {*LOGGERS, *(BASES & set(loggers.__all__))}
    assert set(profilers.__all__) == {*PROFILER_CLASSES, *(BASES & set(profilers.__all__))}
    assert {*get_args(_PRECISION_INPUT_STR), *get_args(_PRECISION_INPUT_STR_ALIAS)} == set(PRECISIONS)
    assert set(inspect.signature(Trainer.__init__).parameters) - ELSEWHERE == set(FLAGS)


def test_the_table_of_the_documentation_has_all_of_it() -> None:
    page = (ROOT / "docs" / "lightning.md").read_text(encoding="utf-8")
    names = [*CALLBACKS, *LOGGERS, *FLAGS, *(name for name in PRECISIONS if not name.isdigit()), *PROFILERS]
    assert [name for name in names if f"`{name}`" not in page] == []


def added(*names: str) -> list[dict[str, Any]]:
    return [{"class_path": f"{PACKAGE}.callbacks.{name}", "init_args": CALLBACKS[name][0]} for name in names]


@pytest.mark.parametrize("name", [name for name, (_, expected) in CALLBACKS.items() if expected is not None])
def test_callback_that_is_refused(fit: Fit, name: str) -> None:
    check(fit({"callbacks": added(name), "logger": CSV}), CALLBACKS[name][1])


@pytest.mark.parametrize("bar", BARS)
def test_callbacks_that_work(fit: Fit, bar: str) -> None:
    working = [name for name, (_, expected) in CALLBACKS.items() if expected is None]
    together = [name for name in working if name not in (*BARS, *RESUMED)]
    assert fit({"callbacks": added(bar, *(together if bar == BARS[0] else [])), "logger": [CSV, TENSORBOARD]}) is None


def test_callbacks_go_on_from_a_checkpoint(fit: Fit, tmp_path: Path) -> None:
    assert fit({"callbacks": [*added(*RESUMED), SAVER]}) is None
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text(encoding="utf-8"))
    timer = saved["trainer"]["callbacks"][RESUMED.index("Timer")]
    assert timer["init_args"] == {"duration": "00:01:00:00", "interval": "step", "verbose": True}
    assert fit({"callbacks": [*added(*RESUMED), SAVER], "max_steps": 6}, None, "--ckpt_path", "last") is None


@pytest.mark.parametrize("config", ["packing.yaml", "ppo_packing.yaml"])
def test_callbacks_and_precision_with_another_learner(fit: Fit, config: str) -> None:
    names = ("EMAWeightAveraging", "LearningRateMonitor", "SpikeDetection", "DeviceStatsMonitor")
    assert fit({"callbacks": added(*names), "logger": CSV, "precision": "bf16-mixed"}, config) is None


@pytest.mark.parametrize("name", [name for name, (_, expected) in LOGGERS.items() if expected is not None])
def test_logger_that_is_not_installed(fit: Fit, name: str) -> None:
    arguments, expected = LOGGERS[name]
    check(fit({"logger": {"class_path": f"{PACKAGE}.loggers.{name}", "init_args": arguments}}), expected)


# The others are the same by other names.
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true", "transformer-engine"])
def test_precision_runs_or_is_refused(fit: Fit, precision: str) -> None:
    check(fit({"precision": precision}), PRECISIONS[precision])


# The other two cost seconds, and hook in at the same places.
@pytest.mark.parametrize("profiler", ["simple", "xla"])
def test_profiler_runs_or_is_refused(fit: Fit, profiler: str) -> None:
    check(fit({"profiler": profiler}), PROFILERS[profiler])


def test_torchs_profiler_has_our_sections(fit: Fit, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The sections are in its table and its trace.

    They stand next to the figures of the machine.
    """
    profiler = ["--trainer.profiler=PyTorchProfiler", "--trainer.profiler.sort_by_key=cpu_time_total"]
    profiler += ["--trainer.profiler.record_module_names=false", "--trainer.limit_val_batches=0"]
    stats = "--trainer.callbacks+=torchrl_gpu.callbacks.GpuStats"
    with caplog.at_level("INFO"):
        assert fit({"max_steps": 5, "logger": CSV}, None, *profiler, stats) is None
    table = {line.split()[0] for line in caplog.text.splitlines() if line.strip()}
    assert {"environment", "policy", "update"} <= table
    (trace,) = tmp_path.rglob("*.pt.trace.json")
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert {"environment", "policy", "replay", "update", "logging"} <= {event["name"] for event in events}


@pytest.mark.parametrize("flag", [flag for flag, ((_, expected), *_) in FLAGS.items() if expected is not None])
def test_flag_that_is_refused(fit: Fit, flag: str) -> None:
    check(fit({flag: FLAGS[flag][0][0]}), FLAGS[flag][0][1])


@pytest.mark.parametrize("which", [0, -1], ids=["first values", "last values"])
def test_flags_that_work(fit: Fit, which: int) -> None:
    working = {flag: values[which][0] for flag, values in FLAGS.items() if values[which][1] is None}
    assert fit({flag: value for flag, value in working.items() if flag not in ALONE}) is None


# They win over what a config names.
SWITCHES = {
    "callbacks": [*added("RichProgressBar"), SAVER],
    "enable_progress_bar": False,
    "enable_checkpointing": False,
}


@pytest.mark.parametrize(
    ("trainer", "left"),
    [
        ({"fast_dev_run": True}, set()),
        ({"barebones": True}, {"config.yaml"}),
        (SWITCHES, {"config.yaml"}),
        ({"limit_val_batches": 0}, {"config.yaml", "last.ckpt"}),
        ({}, {"config.yaml", "last.ckpt", "best.ckpt"}),
    ],
)
def test_run_leaves_its_files(fit: Fit, tmp_path: Path, trainer: dict[str, Any], left: set[str]) -> None:
    assert fit(trainer) is None
    files = {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {name for name in files if not name.endswith(".pt")} == left


def test_a_spike_ends_a_run_with_one_line(fit: Fit) -> None:
    spike = {"class_path": f"{PACKAGE}.callbacks.SpikeDetection", "init_args": {"warmup": 1, "rtol": None}}
    spikes = [{"mode": mode, **spike["init_args"]} for mode in ("min", "max")]
    said = [fit({"callbacks": [{**spike, "init_args": each}]}) for each in spikes]
    assert [line for line in said if line is not None and line.startswith("Training spike detected in batch ")]
