"""`torchrl-gpu ros`: a trained policy on a robot's topics, by one YAML file."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from torchrl_gpu.cli.options import CLASSES_HELP, check_checkpoint_path, import_classes, resolve_configs
from torchrl_gpu.play.command import TOKEN_VARIABLES, until_told_to_end

if TYPE_CHECKING:
    from torchrl_gpu.streaming import RosBridge

WHERE = "torchrl-gpu ros"
_MADE_HERE = {"policy", "transport", "server", "pipeline"}
_OF_PROGRAMS = {"pipeline", "add_routes", "max_body_bytes"}


def main(argv: list[str]) -> None:
    """Runs until an interrupt or SIGTERM; SIGHUP loads the policy's file again, and swaps."""
    args = _parser().parse_args(resolve_configs(argv)).as_dict()
    path, device, server = args.pop("policy"), args.pop("device"), None
    classes = import_classes(WHERE, args.pop("classes"))
    page, on_page = args.pop("server"), args.pop("page")
    args.pop("config")
    check_checkpoint_path(path or "")
    with until_told_to_end() as ending, ending.at_once():
        from torchrl_gpu.policies import load_policy
        from torchrl_gpu.streaming import RosBridge, StreamServer

        policy = load_policy(path, device, classes=classes) if path else None
        if on_page:
            page["token"] = page["token"] or os.environ.get(TOKEN_VARIABLES["token"])
            page["view_token"] = page["view_token"] or os.environ.get(TOKEN_VARIABLES["view_token"])
            server = StreamServer(**page)
        bridge = RosBridge(policy, server=server, **args)
    if ending.event.is_set():
        return
    with until_told_to_end() as ending, server or nullcontext(), bridge, _swapping(bridge, path, device, classes):
        runs = f"{policy.name} on {policy.device}, actions to {args['action_topic']}" if policy else "no policy"
        print(f"ros: {runs}{f', watch at {server.url}' if server else ''}", flush=True)
        ending.event.wait()
    found = bridge.metrics()
    print(f"ros: {found['actions']} actions, {found['safe_actions']} safe ones; {found['last_error'] or 'no error'}")


@contextmanager
def _swapping(bridge: RosBridge, path: str | None, device: str, classes: list[type]) -> Iterator[None]:
    """Within, SIGHUP lets the policy that the file holds by then take over."""

    def swap(*_: object) -> None:
        from torchrl_gpu.policies import load_policy

        try:
            policy = load_policy(path or "", device, classes=classes)
            bridge.swap(policy)
        except (ValueError, OSError) as error:
            print(f"ros: the policy before goes on; {' '.join(str(error).split())}", flush=True)
        else:
            print(f"ros: {policy.name} of {path} decides now", flush=True)

    before = signal.signal(signal.SIGHUP, swap)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _parser() -> Any:
    from jsonargparse import ArgumentParser

    from torchrl_gpu.streaming import RosBridge, StreamServer

    said = f"{__doc__} Tokens may also stand in the variables {' and '.join(TOKEN_VARIABLES.values())}."
    parser = ArgumentParser(prog=WHERE, description=said, exit_on_error=False)
    parser.add_argument("--config", action="config", help="YAML of these options")
    parser.add_argument(
        "--policy", type=str | None, help="checkpoint of a run, or a file of weights; none for a camera"
    )
    parser.add_argument("--classes", type=str | None, help=CLASSES_HELP)
    parser.add_argument("--device", type=str, default="auto", help="where it decides")
    parser.add_argument("--transport", type=str, default="auto", help="auto, cyclonedds, rclpy, zenoh, rospy")
    parser.add_argument("--page", type=bool, default=True, help="whether a page shows camera, policy and metrics")
    parser.add_class_arguments(RosBridge, None, skip=_MADE_HERE)
    parser.add_class_arguments(StreamServer, "server", skip=_OF_PROGRAMS)
    parser.set_defaults({"server.port_tries": 20})
    return parser
