"""`torchrl-gpu ros`: a trained policy on a robot's topics, by one YAML file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypedDict

from torchrl_gpu.cli.parser import CLASSES_HELP, TOKEN_VARIABLES, check_checkpoint_path, resolve_configs
from torchrl_gpu.serving.ending import Flag, hangups, until_told_to_end

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from torchrl_gpu.streaming import RosBridge

WHERE = "torchrl-gpu ros"
# Seconds between looks at whether the policy is to be loaded again.
_POLL_S = 0.1
_MADE_HERE = {"policy", "transport", "server", "pallets"}
_OF_PROGRAMS = {"pipeline", "add_routes", "max_body_bytes"}


def main(argv: list[str]) -> None:
    """Run until an interrupt or SIGTERM.

    SIGHUP loads the policy's file again, and swaps.
    """
    args = make_parser().parse_args(resolve_configs(argv, shipped=False)).as_dict()
    from torchrl_gpu.policies.registry import import_classes

    path = args.pop("policy")
    device = args.pop("device")
    classes = import_classes(WHERE, args.pop("classes"))
    loading: _Loading = {"device": device, "classes": classes}
    page = args.pop("server")
    on_page = args.pop("page")
    args.pop("config")
    check_checkpoint_path(path or "")
    with hangups() as again:
        _run(path, loading, page if on_page else None, args, again)


class _Loading(TypedDict):
    """How the file of a policy is loaded, each time.

    Attributes:
        device: Where it decides.
        classes: Classes of the user's that the file may name.
    """

    device: str
    classes: Sequence[type]


def _run(path: str | None, loading: _Loading, page: dict[str, Any] | None, args: dict[str, Any], again: Flag) -> None:
    server = None
    with until_told_to_end() as ending, ending.at_once():
        from torchrl_gpu.policies import load_policy
        from torchrl_gpu.streaming import RosBridge, StreamServer

        policy = load_policy(path, **loading) if path else None
        if args["pallets"] is not None:
            from torchrl_gpu.palletizing.sessions import PackingSessions

            args["pallets"] = PackingSessions(args["pallets"], device=loading["device"])
        if page is not None:
            for name in ("token", "view_token"):
                variable = TOKEN_VARIABLES[name]
                page[name] = page[name] or os.environ.get(variable)
            server = StreamServer(**page)
        bridge = RosBridge(policy, server=server, **args)
    if ending.event.is_set():
        return
    with until_told_to_end() as ending, server or nullcontext(), bridge:
        runs = "no policy"
        if policy:
            runs = f"{policy.name} on {policy.device}, actions to {args['action_topic']}"
        runs += f", packing sessions at {args['pallet_topic']}" if args["pallets"] is not None else ""
        print_line(f"ros: {runs}{f', watch at {server.url}' if server else ''}")
        while not ending.event.wait(_POLL_S):
            if again.take():
                print_line(swap(bridge, path, **loading))
    found = bridge.metrics()
    problem = found["last_error"] or "no error"
    print_line(f"ros: {found['actions']} actions, {found['safe_actions']} safe ones; {problem}")


def swap(bridge: RosBridge, path: str | None, device: str, classes: Sequence[type] = ()) -> str:
    """Load the policy's file again, swap, and return the outcome as a line.

    Whatever fails, the previous policy goes on.
    """
    from torchrl_gpu.policies import load_policy

    try:
        # The policy before decides until this one is loaded.
        policy = load_policy(path or "", device, classes=classes)
        bridge.swap(policy)
    except Exception as error:
        # The file may be broken, the device without memory, or the policy itself may fail.
        reason = " ".join(str(error).split()) or type(error).__name__
        return f"ros: the policy before goes on; {reason}"
    return f"ros: {policy.name} of {path} decides now"


def print_line(line: str) -> None:
    with suppress(OSError):
        print(line, flush=True)


def make_parser() -> ArgumentParser:
    from jsonargparse import ArgumentParser

    from torchrl_gpu.streaming import RosBridge, StreamServer

    description = f"{__doc__} Tokens may also stand in the variables {' and '.join(TOKEN_VARIABLES.values())}."
    parser = ArgumentParser(prog=WHERE, description=description, exit_on_error=False)
    add = parser.add_argument
    add("--config", action="config", help="YAML of these options")
    add("--policy", type=str | None, help="checkpoint of a run, or a file of weights; none for a camera")
    add("--classes", type=str | None, help=CLASSES_HELP)
    add("--device", type=str, default="auto", help="where it decides")
    add("--transport", type=str, default="auto", help="auto, cyclonedds, rclpy")
    add("--pallets", type=str | None, help="folder that keeps packing sessions, which are answered, too")
    add("--page", type=bool, default=True, help="whether a page shows camera, policy and metrics")
    parser.add_class_arguments(RosBridge, None, skip=_MADE_HERE)
    parser.add_class_arguments(StreamServer, "server", skip=_OF_PROGRAMS)
    parser.set_defaults({"server.port_tries": 20})
    return parser
