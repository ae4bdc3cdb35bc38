"""The subcommands `torchrl-gpu play` and `serve`: a server and a session.

Imports nothing heavy: wrong options are reported, and the page is served, before torch is loaded.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from torchrl_gpu.callbacks.env_streams import EnvStreams, check_names, overlays_of, title
from torchrl_gpu.cli.parser import TOKEN_VARIABLES, OneLineParser, positive, whole
from torchrl_gpu.cli.session import COMMANDS, ViewerSession
from torchrl_gpu.serving.ending import until_told_to_end
from torchrl_gpu.streaming import StreamServer
from torchrl_gpu.system.allocator import keep_freed_memory

if TYPE_CHECKING:
    from torchrl_gpu.cli.loading import LoadedPolicy

LOADING = "loading"
# The config that is played where none is named.
FIRST = "packing.yaml"


def main(argv: list[str]) -> None:
    """`torchrl-gpu play`: takes the next free port."""
    run("play", argv, port_tries=50)


def run(word: str, argv: list[str], port_tries: int) -> None:
    """Play until an interrupt or SIGTERM.

    `port_tries` ports are tried, from the one that was asked for on.
    """
    args, words = make_parser(word).parse_run(argv, FIRST)
    # Of a single environment, the others would show the same picture.
    usual = ["env0"] if args.num_envs == 1 else ["env0", "worst", "best", "grid"]
    names = args.streams or usual
    check_names(names, args.num_envs)
    keep_freed_memory()
    server = StreamServer(
        host=args.host,
        port=args.port,
        token=args.token,
        view_token=args.view_token,
        fps=args.fps,
        max_clients=args.max_clients,
        allowed_origins=args.allowed_origins,
        port_tries=port_tries,
        tls=tuple(args.tls) if args.tls else None,
    )
    with until_told_to_end() as ending, server:
        for name in names:
            server.declare(name, f"{title(name)} ({LOADING})")
        server.state(policy=LOADING)
        # Whether this config has a policy of that name is known once it is loaded: the address is printed after that.
        where = f", watch at {server.url}" if args.policy is None else f" {args.policy!r}"
        print(f"{word}: {LOADING} the policy{where}", flush=True)
        with ending.at_once():
            played, session = _load(args, words, names, server)
        # A library may have swallowed the signal's exception.
        if ending.event.is_set():
            return
        if played.is_stopgap:
            reason = "no trained policy comes with the package for this config, so that actions are drawn at random"
            print(f"{word}: {reason}; --ckpt_path takes a checkpoint of a run", flush=True)
        print(f"{word}: {played.name} at {server.url}", flush=True)
        session.run(ending.event)


def _load(
    args: argparse.Namespace, words: list[str], names: list[str], server: StreamServer
) -> tuple[LoadedPolicy, ViewerSession]:
    from torchrl_gpu.cli.loading import load_policy
    from torchrl_gpu.envs.viewable import viewable
    from torchrl_gpu.evaluation.player import Decisions, Player, has_values

    played = load_policy(words, args.ckpt_path, args.policy, args.num_envs)
    view = viewable(played.env)
    valued = has_values(played.policy)
    check_names(names, args.num_envs, overlays_of(view, has_policy=True, has_values=valued))
    player = Player(played.env, played.policy)
    decide = Decisions(lambda: played.policy, played.env.device, valued, lambda: player.generators)
    streams = EnvStreams(server, view, names, args.width, args.height, decide, played.name)
    streams.warm_up()
    server.state(policy=f"{played.name}, nothing is trained" if played.is_stopgap else played.name)
    version: dict[str, object] = {} if played.version is None else {"policy_version": played.version}
    return played, ViewerSession(player, server, streams, args.speed, version)


def make_parser(word: str) -> OneLineParser:
    does = f"A policy plays live in the browser. Viewers with control can {', '.join(COMMANDS)}."
    more = "Other options go to the config, as in `lightning test`. Tokens may also stand in the environment variables "
    more += f"{' and '.join(TOKEN_VARIABLES.values())}, where no list of processes shows them."
    parser = OneLineParser(prog=f"torchrl-gpu {word}", description=does, epilog=more)
    add = parser.add_argument
    add("--config", action="append", help=f"of a run: a path, or one that the package ships; {FIRST} by default")
    without = "a policy that comes with the package, or a baseline"
    add("--ckpt_path", help=f"checkpoint of a run of the config; without it {without}")
    add("--policy", help="who plays: a name from the table of `lightning test`")
    add("--num_envs", type=whole(1), default=1, help="episodes side by side")
    add("--speed", type=positive, default=2.0, help="steps a second")
    add("--streams", nargs="+", help="env0, env1, …, worst, best, grid; env0:mask, env0:action, env0:q, …")
    add("--width", type=whole(16, 8192), default=640, help="pixels")
    add("--height", type=whole(16, 8192), default=480, help="pixels")
    add("--fps", type=float, default=30.0, help="most pictures a second")
    add("--view_token", default=os.environ.get(TOKEN_VARIABLES["view_token"]), help="lets viewers in, to watch only")
    parser.add_address("lets viewers in, and control")
    add("--allowed_origins", nargs="+", default=(), help="pages that may show this one in a frame")
    return parser
