"""`torchrl-gpu serve-policy`: a trained policy over HTTP and WebSocket.

It answers observations with actions. With --pallets it also says where the next box of a pallet goes, beside a policy
or alone; see docs/deploy.md.

The hierarchical packer needs the items of its environment: --config names the config of its run, and options that are
not listed go to it, as in `lightning test`.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from torchrl_gpu.cli.parser import TOKEN_VARIABLES, OneLineParser, check_checkpoint_path, whole
from torchrl_gpu.serving.ending import until_told_to_end

if TYPE_CHECKING:
    from torchrl_gpu.envs import BatchedEnv

WHERE = "torchrl-gpu serve-policy"


def main(argv: list[str]) -> None:
    args, words = make_parser().parse_run(argv)
    check_checkpoint_path(args.checkpoint or "")
    if args.checkpoint is None and (args.pallets is None or words):
        raise ValueError(
            f"{WHERE}: name a checkpoint{'' if words else ', --pallets or both'}: there is nothing to serve"
        )
    # Loading takes seconds, and is broken off at once; a server that runs ends in order.
    with until_told_to_end() as ending, ending.at_once():
        import torch

        from torchrl_gpu.palletizing.sessions import PackingSessions
        from torchrl_gpu.policies import load_policy
        from torchrl_gpu.policies.export.manifest import describe_environment
        from torchrl_gpu.policies.loading import wants_env
        from torchrl_gpu.policies.registry import import_classes
        from torchrl_gpu.serving.server import policy_server

        if args.threads is not None:
            torch.set_num_threads(args.threads)
        env = env_of(words, args.device) if words else None
        classes = import_classes(WHERE, args.classes)
        policy = None
        if args.checkpoint is not None:
            known = env if env is not None and wants_env(args.checkpoint) else None
            policy = load_policy(args.checkpoint, args.device, env=known, classes=classes)
        pallets = None if args.pallets is None else PackingSessions(args.pallets, args.max_pallets, args.device)
        if env is not None and policy is not None:
            policy.about |= describe_environment(env)
        names = ("max_rows", "wait_ms", "max_body_mib", "page", "host", "port", "token", "max_clients")
        options = {name: getattr(args, name) for name in names}
        tls = tuple(args.tls) if args.tls else None
        server = policy_server(policy, pallets=pallets, **options, tls=tls)
    if ending.event.is_set():
        return
    with until_told_to_end() as ending, server:
        # What is loaded stays: to look through it for garbage would take a tenth of a second now and then.
        gc.freeze()
        does = ", watch and ask" if args.page else ""
        served = [] if policy is None else [f"{policy.name} on {policy.device}"]
        served += [] if pallets is None else [f"packing sessions in {args.pallets} ({len(pallets.names)} open)"]
        print(f"serve-policy: {' and '.join(served)}{does} at {server.url}", flush=True)
        try:
            ending.event.wait()
        finally:
            # What is frozen is not freed at the end, and Triton's bindings complain of that in thirty lines.
            gc.unfreeze()


def make_parser() -> OneLineParser:
    more = f"The token may also stand in the environment variable {TOKEN_VARIABLES['token']}."
    parser = OneLineParser(prog=WHERE, description=__doc__, epilog=more)
    add = parser.add_argument
    add("checkpoint", nargs="?", help="of a run, or a file of model_state_dict, obs_dim and action_dim")
    add("--pallets", help="folder that keeps packing sessions, which are served, too")
    add("--max_pallets", type=whole(1, 4096), default=64, help="packing sessions at once")
    add("--config", help="of the hierarchical packer's run: a path, or one that the package ships")
    parser.add_classes()
    add("--device", default="auto", help="where it decides")
    add("--max_rows", type=int, default=256, help="observations of a message, and of a forward pass")
    add("--wait_ms", type=float, default=0.0, help="that a request may wait for others to be decided with")
    add("--max_body_mib", type=float, default=4.0, help="largest message")
    add("--threads", type=whole(1, 4096), help="that a forward pass takes on a CPU; torch's number where not given")
    add("--page", action="store_true", help="let the page show what the policy saw and did last")
    parser.add_address("lets clients in")
    return parser


def env_of(words: list[str], device: str) -> BatchedEnv:
    """The environment that a config describes, of one bin."""
    from torchrl_gpu.cli.lightning_cli import build
    from torchrl_gpu.envs import BatchedEnv
    from torchrl_gpu.policies.export.manifest import describe_environment

    words = [*words, "--model.env.num_envs=1", f"--model.env.device={device}"]
    words += ["--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.logger=false"]
    model = build("test", words).model
    env = getattr(model, "env", None)
    if not isinstance(env, BatchedEnv) or not describe_environment(env):
        raise ValueError(f"{WHERE}: --config must be of a run that packs; {type(model).__name__} does not")
    return env
