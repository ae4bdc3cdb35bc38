"""`torchrl-gpu serve-policy`: a trained policy answers observations with actions, over HTTP and WebSocket."""

from __future__ import annotations

import argparse
import gc

from torchrl_gpu import arguments
from torchrl_gpu.cli.options import CLASSES_HELP, check_checkpoint_path, import_classes
from torchrl_gpu.cli.subcommands import OneLineParser
from torchrl_gpu.play.command import TOKEN_VARIABLES, add_address
from torchrl_gpu.play.ending import until_told_to_end

WHERE = "torchrl-gpu serve-policy"


def main(argv: list[str]) -> None:
    """Serves until an interrupt or SIGTERM."""
    args = _parser().parse_args(argv)
    check_checkpoint_path(args.checkpoint)
    threads = None if args.threads is None else arguments.whole(WHERE, "threads", args.threads, 1, 4096)
    with until_told_to_end() as ending, ending.at_once():
        import torch

        from torchrl_gpu.policies import load_policy
        from torchrl_gpu.serving.server import policy_server

        if threads is not None:
            torch.set_num_threads(threads)
        policy = load_policy(args.checkpoint, args.device, classes=import_classes(WHERE, args.classes))
        names = ("max_rows", "wait_ms", "max_body_mib", "page", "host", "port", "token", "max_clients")
        options = {name: getattr(args, name) for name in names}
        server = policy_server(policy, **options, tls=tuple(args.tls) if args.tls else None)
    if ending.event.is_set():
        return
    with until_told_to_end() as ending, server:
        gc.freeze()  # what is loaded stays: to look through it for garbage would take a tenth of a second now and then
        does = ", watch and ask" if args.page else ""
        print(f"serve-policy: {policy.name} on {policy.device}{does} at {server.url}", flush=True)
        try:
            ending.event.wait()
        finally:
            gc.unfreeze()  # what is frozen is not freed at the end, of which Triton's bindings complain in thirty lines


def _parser() -> argparse.ArgumentParser:
    more = f"The token may also stand in the environment variable {TOKEN_VARIABLES['token']}."
    parser = OneLineParser(prog=WHERE, description=__doc__, epilog=more, allow_abbrev=False)
    add = parser.add_argument
    add("checkpoint", help="of a run, or a file of model_state_dict, obs_dim and action_dim")
    add("--classes", help=CLASSES_HELP)
    add("--device", default="auto", help="where it decides")
    add("--max_rows", type=int, default=256, help="observations of a message, and of a forward pass")
    add("--wait_ms", type=float, default=0.0, help="that a request may wait for others to be decided with")
    add("--max_body_mib", type=float, default=4.0, help="largest message")
    add("--threads", type=int, help="that a forward pass takes on a CPU; torch's number where not given")
    add("--page", action="store_true", help="let the page show what the policy saw and did last")
    add_address(parser, "lets clients in")
    return parser
