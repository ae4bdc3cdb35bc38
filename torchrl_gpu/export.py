"""`torchrl-gpu export`: a trained policy as ONNX or as a program of torch.export, and what its inputs mean.

A policy that packs takes maps of legal placements beside the heightmap and the item: whoever runs the file computes
them, by the rules in the JSON beside it or with `PackingEnv.restore` of this package.

The hierarchical packer takes the items of its environment along: --config names the config of its run, and options that
are not listed go to that, as in `lightning test`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchrl_gpu.cli.options import (
    CLASSES_HELP,
    check_arguments,
    check_checkpoint_path,
    import_classes,
    resolve_configs,
)
from torchrl_gpu.cli.subcommands import OneLineParser

if TYPE_CHECKING:
    from torchrl_gpu.envs import PackingEnv

WHERE = "torchrl-gpu export"


def main(argv: list[str]) -> None:
    """Writes the file and its sidecars, once they decide as the checkpoint does."""
    parser = OneLineParser(prog=WHERE, description=__doc__, allow_abbrev=False)
    parser.add_argument("checkpoint", help="of a run, or a file of model_state_dict, obs_dim and action_dim")
    parser.add_argument("--format", choices=("onnx", "pt2"), default="onnx", help="onnx needs the extra `export`")
    parser.add_argument("--output", type=Path, help="the checkpoint's name with another suffix by default")
    parser.add_argument("--config", help="of the hierarchical packer's run: a path, or one that the package ships")
    parser.add_argument("--classes", help=CLASSES_HELP)
    args, rest = parser.parse_known_args(argv)
    if args.config is None:
        args = parser.parse_args(argv)  # complains of what is left
    check_checkpoint_path(args.checkpoint)
    classes, env = import_classes(WHERE, args.classes), None
    if args.config is not None:
        rest = resolve_configs(["--config", args.config, *rest])
        check_arguments(rest, (action.dest for action in parser._actions))
        env = _env_of(rest)
    from torchrl_gpu.policies import export_policy, load_policy
    from torchrl_gpu.policies.sidecar import computed_inputs

    out = args.output or Path(args.checkpoint).with_suffix(f".{args.format}")
    policy = load_policy(args.checkpoint, "cpu", env=env, classes=classes)
    written = export_policy(policy, out, args.format, env=env)
    print(f"Written: {written}, and what it means in {written.with_suffix('.json')}")
    if computed := computed_inputs(policy):
        print(f"It takes {', '.join(computed)}, too: compute them by the rules there, or with PackingEnv.restore")


def _env_of(words: list[str]) -> PackingEnv:
    """The environment that a config describes, one bin on the CPU."""
    from torchrl_gpu.cli.lightning_cli import build
    from torchrl_gpu.envs import PackingEnv

    words = [*words, "--model.env.num_envs=1", "--model.env.device=cpu"]
    model: Any = build(
        "test", [*words, "--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.logger=false"]
    ).model
    env = getattr(model, "env", None)
    if not isinstance(env, PackingEnv):
        raise ValueError(f"{WHERE}: want the --config of a run that packs; got one with {type(model).__name__}")
    return env
