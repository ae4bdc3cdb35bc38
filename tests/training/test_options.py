"""Every option of every shipped config at a resume.

It takes effect, is refused, or is reported as kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.training.forked_runs import NAMES, arguments, write_inputs
from tests.training.rank_cases import Lines
from tests.training.resuming import differences, last, without_replay
from torchrl_gpu.checkpoints.record import changed_options
from torchrl_gpu.cli.lightning_cli import PackageCLI, build
from torchrl_gpu.cli.parser import resolve_configs

SAVER = "[{class_path: torchrl_gpu.callbacks.EpisodeCheckpoint}]"
QUIET = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]

# What each option does at a resume; one that is in no class here is an error. Patterns, the first that fits decides.
KEPT = "kept"
# The checkpoint's state has another shape, or its replay another environment.
REFUSED = "refused"
EFFECT = "effect"
RULE: dict[str, str] = {
    "seed_everything": KEPT,
    "trainer.precision": EFFECT,
    "data.*": EFFECT,
    "model.optimizer*": KEPT,
    "model.lr_scheduler*": KEPT,
    "model.learning_rates*": KEPT,
    "model.warm_start": KEPT,
    "model.env.seed": KEPT,
    # Another class has other weights, and is refused where they do not fit.
    "*.class_path": EFFECT,
    "model.env.num_envs": REFUSED,
    "model.env.*": EFFECT,
    "model.agent.alpha": KEPT,
    "model.agent.actor.*": EFFECT,
    "model.agent.critic.*": EFFECT,
    "model.agent.network.sigma": KEPT,
    "model.agent.network.*": EFFECT,
    "model.agent.exploration.*": EFFECT,
    "model.agent.targets.*": EFFECT,
    **{
        f"model.agent.{name}": EFFECT
        for name in (
            *("acting_taus", "clip", "cvar", "cvar_distance", "double", "entropy_coeff", "gamma", "kappa", "lam"),
            *("n_steps", "num_taus", "saturation_penalty", "squash", "target_entropy", "v_max", "v_min"),
        )
    },
    "model.encoder.pretrained": KEPT,
    "model.encoder*": EFFECT,
    "model.replay.capacity": REFUSED,
    "model.replay.*": EFFECT,
    "model.tables.initial": KEPT,
    "model.tables.*": EFFECT,
    "model.network.*": EFFECT,
    **{f"model.networks.{name}": KEPT for name in ("slope", "box_slope", "waste_slope")},
    "model.networks.*": EFFECT,
    "model.step": KEPT,
    "model.begin": KEPT,
    "model.deep_rate": KEPT,
    # The shipped run refuses it, as its returns are whole episodes.
    "model.tau": REFUSED,
    **{
        f"model.{name}": EFFECT
        for name in (
            *("batch_size", "candidates", "cuda_graphs", "epochs", "epsilon", "gamma", "graph_updates", "item_epsilon"),
            *("item_shortlist", "joint_rate", "lam", "manager_period", "margin", "max_grad_norm", "members"),
            *("minibatches", "n_steps", "policy", "rate", "reconstruction", "reward_scale", "rollout_steps", "seed"),
            *("shift", "shortlist", "sweeps", "temperature", "torch_compile", "updates_per_step", "warmup_frames"),
            "worker_updates",
        )
    },
}

# Of each kind of run, changes that are tried: the option, another value, and what is compared.
TRIED = [
    ("packing.yaml", "model.tables.initial", "0.3", KEPT),
    ("packing.yaml", "model.env.num_envs", "5", REFUSED),
    ("packing.yaml", "model.env.grid_step", "2", REFUSED),
    ("packing.yaml", "model.env.seed", "9", KEPT),
    ("packing.yaml", "seed_everything", "9", KEPT),
    ("packing.yaml", "model.rate", "0.3", EFFECT),
    ("packing.yaml", "model.lam", "0.3", EFFECT),
    ("packing.yaml", "model.rollout_steps", "5", EFFECT),
    ("packing.yaml", "model.sweeps", "2", EFFECT),
    ("packing.yaml", "model.optimizer.lr", "0.1", REFUSED),
    ("packing.yaml", "model.batch_size", "9", REFUSED),
    ("packing_refined.yaml", "model.optimizer.lr", "0.1", KEPT),
    ("packing_refined.yaml", "model.lr_scheduler.T_max", "9", KEPT),
    ("packing_refined.yaml", "model.warm_start", "cut2", KEPT),
    ("packing_refined.yaml", "model.tables.initial", "0.3", KEPT),
    ("packing_refined.yaml", "model.batch_size", "9", EFFECT),
    ("packing_refined.yaml", "model.tables.candidates", "3", EFFECT),
    ("packing_refined.yaml", "model.rate", "0.3", REFUSED),
    ("packing_pallets.yaml", "model.step", "5.0", KEPT),
    ("packing_pallets.yaml", "model.env.num_envs", "12", REFUSED),
    ("packing_pallets.yaml", "model.env.items.repeat", "0.5", EFFECT),
    ("packing_dqn.yaml", "model.agent.targets.tau", "0.5", EFFECT),
    ("packing_dqn.yaml", "model.agent.gamma", "0.5", REFUSED),
    ("packing_dqn.yaml", "model.reward_scale", "3.0", EFFECT),
    ("packing_dqn.yaml", "model.replay.capacity", "300", REFUSED),
    ("packing_dqn.yaml", "model.replay.prioritized", "true", EFFECT),
    ("packing_dqn.yaml", "model.env.stability", "com", REFUSED),
    ("packing_dqn.yaml", "model.env.num_envs", "5", REFUSED),
    ("packing_dqn.yaml", "model.env.seed", "9", KEPT),
    # The run is past the warm-up, the old one and the new one.
    ("packing_dqn.yaml", "model.warmup_frames", "20", KEPT),
    ("packing_dqn.yaml", "model.warmup_frames", "100", EFFECT),
    ("packing_dqn.yaml", "model.optimizer.lr", "0.1", KEPT),
    ("packing_dqn.yaml", "model.lr_scheduler.end_factor", "0.9", KEPT),
    ("packing_irregular.yaml", "model.deep_rate", "0.5", KEPT),
    ("packing_irregular.yaml", "model.networks.slope", "0.9", KEPT),
    ("packing_irregular.yaml", "model.networks.box_slope", "0.9", KEPT),
    ("packing_irregular.yaml", "model.networks.waste_slope", "0.9", KEPT),
    ("packing_irregular.yaml", "model.tau", "0.5", REFUSED),
    ("packing_irregular.yaml", "model.joint_rate", "0.9", EFFECT),
    ("ppo_packing.yaml", "model.agent.lam", "0.1", EFFECT),
    ("ppo_packing.yaml", "model.agent.entropy_coeff", "0.5", EFFECT),
    ("ppo_packing.yaml", "model.env.num_envs", "8", REFUSED),
    ("dishwashing_feasible.yaml", "model.agent.alpha", "0.9", KEPT),
    ("dishwashing_feasible.yaml", "model.agent.target_entropy", "2.0", EFFECT),
    ("dishwashing_feasible.yaml", "model.env.seed", "9", KEPT),
    ("navigation_rainbow.yaml", "model.agent.network.sigma", "0.3", KEPT),
    ("navigation_rainbow.yaml", "model.replay.beta", "0.9", EFFECT),
    ("navigation_sac.yaml", "model.agent.alpha", "0.9", KEPT),
    ("navigation_sac.yaml", "model.learning_rates.actor", "0.9", KEPT),
    ("navigation_sac.yaml", "model.env.seed", "9", KEPT),
    ("bc.yaml", "model.temperature", "0.9", EFFECT),
    ("bc.yaml", "model.lr_scheduler.max_lr", "0.9", KEPT),
    ("bc.yaml", "trainer.precision", "bf16-mixed", EFFECT),
    ("bc.yaml", "data.held_out", "0.5", EFFECT),
]


# Of these the ones that stand for their kind; the others are tried in `make soak`.
FEW = {
    ("packing.yaml", "model.tables.initial"),
    ("packing.yaml", "model.env.num_envs"),
    ("packing.yaml", "model.env.grid_step"),
    ("packing.yaml", "model.env.seed"),
    ("packing.yaml", "model.rate"),
    ("packing.yaml", "model.batch_size"),
    ("packing_refined.yaml", "model.rate"),
    ("packing_pallets.yaml", "model.step"),
    ("packing_dqn.yaml", "model.agent.targets.tau"),
    ("packing_dqn.yaml", "model.env.stability"),
    ("packing_dqn.yaml", "model.warmup_frames"),
    ("packing_dqn.yaml", "model.replay.capacity"),
    ("packing_dqn.yaml", "model.optimizer.lr"),
    ("packing_irregular.yaml", "model.tau"),
    ("navigation_sac.yaml", "model.agent.alpha"),
    ("bc.yaml", "trainer.precision"),
}


def tried() -> Iterator[Any]:
    for case in TRIED:
        yield case if case[:2] in FEW else pytest.param(*case, marks=pytest.mark.soak)


@pytest.fixture(scope="module", autouse=True)
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def made(name: str, folder: Path, updates: int, *more: str) -> PackageCLI:
    command, *words = arguments(name, folder, updates)
    words = [each for each in words if "callbacks" not in each]
    quick = ["--trainer.limit_val_batches=0", f"--trainer.callbacks={SAVER}", *QUIET]
    return build(command, [*resolve_configs(words), *quick, *more])


def updates_of(name: str) -> int:
    return 8 if name == "packing_refined.yaml" else 4


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Of a config the checkpoint of a run."""

    @cache
    def of(name: str) -> Path:
        folder = tmp_path_factory.mktemp("saved")
        cli = made(name, folder, updates_of(name))
        cli.trainer.fit(cli.model, cli.datamodule)
        return last(folder)

    return of


@pytest.fixture(scope="module")
def unchanged(
    tmp_path_factory: pytest.TempPathFactory, saved: Callable[[str], Path]
) -> Callable[[str], dict[str, Any]]:
    """Of a config what becomes of its checkpoint where nothing is changed."""

    @cache
    def of(name: str) -> dict[str, Any]:
        return resumed(name, saved(name), tmp_path_factory.mktemp("plain"))[0]

    return of


def resumed(name: str, checkpoint: Path, folder: Path, *more: str) -> tuple[dict[str, Any], list[str]]:
    with Lines() as lines:
        cli = made(name, folder, 2 * updates_of(name), f"--ckpt_path={checkpoint}", *more)
        cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=cli.checkpoint)
    return without_replay(last(folder)), list(lines)


def rule_of(option: str) -> str | None:
    return next((rule for pattern, rule in RULE.items() if fnmatchcase(option, pattern)), None)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_its_rule(name: str, tmp_path: Path) -> None:
    cli = made(name, tmp_path, 4)
    model: Any = cli.model
    nothing: dict[str, Any] = {"model": {}, "x": 1}
    groups = ("model.", "data.", "trainer.precision", "seed_everything")
    options = list(changed_options(nothing, cli.config_dump, groups))
    assert [option for option in options if rule_of(option) is None] == []
    told = [f"model.{pattern}" for pattern in model.kept_options] + ["seed_everything", "model.env.seed"]
    as_told = set()
    for pattern in told:
        as_told |= {option for option in options if fnmatchcase(option, pattern)}
    assert as_told == {option for option in options if rule_of(option) == KEPT}


@pytest.mark.parametrize(("name", "option", "value", "rule"), list(tried()), ids=str)
def test_option_at_a_resume_does_as_its_rule_says(
    name: str,
    option: str,
    value: str,
    rule: str,
    tmp_path: Path,
    saved: Callable[[str], Path],
    unchanged: Callable[[str], dict[str, Any]],
) -> None:
    checkpoint = saved(name)
    if rule == REFUSED:
        with pytest.raises(ValueError, match=option.rpartition(".")[2]):
            resumed(name, checkpoint, tmp_path, f"--{option}={value}")
        return
    found, lines = resumed(name, checkpoint, tmp_path, f"--{option}={value}")
    matching = [line for line in lines if f"{option} " in line and "→" in line]
    (line,) = matching
    assert ("change nothing" in line) is (rule == KEPT)
    changed = differences(found, unchanged(name))
    assert (changed == []) is (rule == KEPT), changed[:3]
