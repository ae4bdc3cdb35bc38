"""Who plays: a trained policy from its checkpoint, or a heuristic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrl_gpu.cli.lightning_cli import PackageCLI, build
from torchrl_gpu.cli.options import resolve_configs
from torchrl_gpu.envs import PackingEnv
from torchrl_gpu.envs.base import BatchedEnv
from torchrl_gpu.policies.packing import baselines
from torchrl_gpu.policies.packing.contestants import RULE
from torchrl_gpu.policies.policy import Policy
from torchrl_gpu.training.checkpoint import read_archive

UNTRAINED = (RULE, "heightmap minimisation")  # who plays without a checkpoint: the first of these that there is


@dataclass(frozen=True)
class Cast:
    """What plays where.

    Attributes:
        env: Episodes like those of `lightning test`.
        policy: Acts in it.
        name: Of the policy.
        version: Updates of its weights; None for a heuristic.
    """

    env: BatchedEnv
    policy: Policy
    name: str
    version: int | None = None


def cast(args: list[str], ckpt_path: str | None, wanted: str | None, num_envs: int) -> Cast:
    """What a config and a checkpoint describe.

    Args:
        args: `--config NAME.yaml` and other options of `lightning test`.
        ckpt_path: Weights, read without running any code in them: a file, or "last" or "best" of the config's run; None
            for a heuristic.
        wanted: Name of the policy; None for the trained one, or without a checkpoint the first of `UNTRAINED`.
        num_envs: Episodes side by side.

    Raises:
        ValueError, FileNotFoundError: An option, the checkpoint or the name is none; in one line.
    """
    weights = [] if ckpt_path is None else [f"--ckpt_path={ckpt_path}"]
    cli = build("test", resolve_configs([*args, *weights, "--trainer.logger=false"]))
    if ckpt_path is not None and cli.checkpoint is None:
        raise ValueError(f"play: want --ckpt_path to name a file, last or best; got {ckpt_path!r}")
    module = _on_its_device(cli)
    version = None if cli.checkpoint is None else _load(module, cli.checkpoint)
    env = _episodes(cli, num_envs)
    policies = _policies(module, env, trained=ckpt_path is not None)
    name = wanted or (module.learner_name if ckpt_path else next((n for n in UNTRAINED if n in policies), None))
    if name is None:
        raise ValueError(f"play: want --ckpt_path, for {type(module).__name__} has no heuristics; got none")
    if name not in policies:
        raise ValueError(f"play: want --policy to be one of {', '.join(policies)}; got {name!r}")
    return Cast(env, policies[name], name, version if name == module.learner_name else None)


def _on_its_device(cli: PackageCLI) -> Any:
    """The module where the Trainer would have it, attached to it as in a run."""
    module: Any = cli.model
    for method in ("policy_for", "learner_name", "env"):
        if not hasattr(module, method):
            raise ValueError(f"play: want a model with {method}, such as QLearning; got {type(module).__name__}")
    module.trainer = cli.trainer
    cli.trainer.strategy.connect(module)
    module.setup("test")
    return module.to(cli.trainer.strategy.root_device).eval()


def _load(module: Any, path: str) -> int | None:
    saved = read_archive(Path(path), "checkpoint")
    module.load_state_dict(saved["state_dict"])
    module.on_load_checkpoint(saved)
    version: int | None = saved.get("global_step")
    return version


def _episodes(cli: PackageCLI, num_envs: int) -> BatchedEnv:
    module: Any = cli.model
    data: Any = cli.datamodule
    env: BatchedEnv = module.env
    if hasattr(data, "suite"):  # the episodes that `test` shows
        data.trainer = cli.trainer
        env = data.suite(num_envs).env
    return env.like(num_envs)


def _policies(module: Any, env: BatchedEnv, trained: bool) -> Mapping[str, Policy]:
    """By name: what the module's table compares, and its own policy where it is trained."""
    others: Mapping[str, Policy] | None = module.baselines(env)
    if others is None:
        others = baselines(env) if isinstance(env, PackingEnv) else {}
    own = {module.learner_name: module.policy_for(env)} if trained else {}
    return {**others, **own}
