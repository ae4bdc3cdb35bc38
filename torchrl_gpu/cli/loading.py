"""Loading of a run outside of Lightning's loops: module, episodes, policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from torchrl_gpu.cli.lightning_cli import PackageCLI, build
from torchrl_gpu.cli.parser import resolve_configs
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.evaluation.random_actions import RandomActions
from torchrl_gpu.evaluation.suite import Suite
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.system.archives import read_archive
from torchrl_gpu.training.data.episodes import suite_of
from torchrl_gpu.training.run import EnvRun


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy and its environment.

    Attributes:
        version: Updates of its weights, None for a baseline.
        suite: The suite whose episodes `env` plays.
        config: Configuration of the run.
        is_stopgap: Whether actions are drawn because nothing better was named, or comes with the package.
    """

    env: BatchedEnv
    policy: Policy
    name: str
    version: int | None = None
    suite: Suite | None = None
    config: Mapping[str, object] | None = None
    is_stopgap: bool = False


def load_run(word: str, args: list[str], ckpt_path: str | None) -> tuple[PackageCLI, dict[str, object] | None]:
    """Build the objects of a config, and load the checkpoint of its weights.

    The module is on the Trainer's device.

    `word` names the program in errors; `args` are those of `lightning test`. Of `ckpt_path`, a file, "last" or "best",
    no code is run; without one the weights are those that a run begins with.
    """
    weights = [] if ckpt_path is None else [f"--ckpt_path={ckpt_path}"]
    cli = build("test", resolve_configs([*args, *weights, "--trainer.logger=false"]))
    if ckpt_path is not None and cli.checkpoint is None:
        raise ValueError(f"{word}: --ckpt_path must be a file, last or best, not {ckpt_path!r}")
    module = cli.model
    for method in ("policy_for", "learner_name", "compare"):
        if not hasattr(module, method):
            raise ValueError(f"{word}: {type(module).__name__} has no {method}, as OffPolicy has")
    module.trainer = cli.trainer
    # What `Trainer.test` would do before its loop.
    cli.trainer.strategy.connect(module)
    module.setup("test")
    if cli.datamodule is not None:
        cli.datamodule.trainer = cli.trainer
        cli.trainer.datamodule = cli.datamodule  # type: ignore[attr-defined]
    saved = None
    if cli.checkpoint is not None:
        saved = read_archive(Path(cli.checkpoint), "checkpoint")
        module.on_load_checkpoint(saved)
        module.load_state_dict(saved["state_dict"])
        cli.trainer.ckpt_path = cli.checkpoint
    module.to(cli.trainer.strategy.root_device).eval()
    return cli, saved


def load_policy(
    args: list[str], ckpt_path: str | None, wanted: str | None, num_envs: int, stage: str = "test"
) -> LoadedPolicy:
    """Load the policy that plays, and an environment of episodes of a stage.

    `Episodes.seed_of` has the stages. The policy has the name `wanted`, where hyphens may stand for spaces; by default
    it is the trained one, or without a checkpoint the first of the suite's `preferred` ones that there is.
    """
    cli, saved = load_run("play", args, ckpt_path)
    module = cast("EnvRun", cli.model)
    suite = suite_of(module, stage)
    policies: dict[str, Policy] = {"random": RandomActions(suite.env), **suite.pretrained(), **suite.baselines()}
    policies |= suite.policies_of(module)
    # Weights that nothing was learned by say nothing about a task, so that something better plays where no checkpoint
    # is named.
    untrained = next(name for name in (*suite.preferred, *policies) if name in policies)
    name = wanted or (untrained if saved is None else module.learner_name)
    # A shell splits a name at its spaces.
    with_spaces = [each for each in policies if each.replace(" ", "-") == name]
    name = with_spaces[0] if with_spaces else name
    if name not in policies:
        raise ValueError(f"play: --policy must be one of {', '.join(policies)}; got {name!r}")
    version = None
    if saved is not None and name == module.learner_name:
        version = cast("int | None", saved.get("global_step"))
    is_stopgap = name == "random" and wanted is None
    env = suite.play_in(num_envs)
    policy = policies[name]
    return LoadedPolicy(env, policy, name, version, suite, module.run_config, is_stopgap)
