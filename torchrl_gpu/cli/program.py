"""Subcommands to functions, errors to one line. Imports nothing heavy."""

from __future__ import annotations

import importlib
import locale
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from torchrl_gpu import __version__, configs
from torchrl_gpu.cli.errors import is_for_user, one_line
from torchrl_gpu.cli.output import prepare_output
from torchrl_gpu.cli.parser import check_arguments, resolve_configs
from torchrl_gpu.system.cores import usable_cores

TRAINER_SUBCOMMANDS = {
    "fit": "train, and validate now and then",
    "validate": "evaluate on the validation episodes",
    "test": "evaluate on the test episodes",
    "predict": "return what the policy decides",
}
# Each is a module of this package with a function `main`.
OWN_SUBCOMMANDS = {
    "doctor": "print what this machine can do, and why not where it cannot",
    "bench": "measure this machine's throughput beside its ceilings, parity first",
    "pack": "pack orders of boxes onto pallets, from your own list",
    "evaluate": "print the tables of published evaluations, with ours in them",
    "encode": "decode demonstrations once, into clips that open in no time",
    "record": "write what a policy does as demonstrations: rows, or video",
    "export": "write a trained policy as ONNX or a torch.export program",
    "play": "show in the browser how a policy packs",
    "serve": "the same as a service: one port, until SIGTERM",
    "serve-policy": "answer observations with actions, over HTTP and WebSocket",
    "fetch": "fetch the newest checkpoint from object storage",
    "cost": "say how long a run takes here, and what it costs",
    "ros": "run a policy on a robot's topics, by ROS 2",
}

# Subcommands of a task are in its folder.
_FOLDERS = {"bench": ".packing", "pack": ".packing"}

USER_ERROR = 2
_IS_ANEW = "TORCHRL_GPU_UTF8"
# The statuses by which a shell tells of SIGINT and SIGTERM.
INTERRUPTED = 130
TERMINATED = 143


def main(argv: list[str] | None = None, program: str | None = None) -> int | str | None:
    """Run a command line, that of this process by default, and return the exit status.

    None or 0 stand for success. An error that the user can correct is one line on stderr and status 2; others, or all
    with TORCHRL_GPU_DEBUG=1, keep their traceback.
    """
    # Read by OpenMP when torch is imported; torch itself does not see the quota of a container.
    os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))
    if argv is None:
        status = _in_utf8_mode()
        if status is not None:
            return status
    # torchrl announces every buffer that it allocates.
    os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")
    prepare_output()
    argv = sys.argv[1:] if argv is None else argv
    try:
        here = str(Path.cwd())
    except FileNotFoundError:
        print("error: the folder of this shell has been removed; change to one that is there, by cd", file=sys.stderr)
        return USER_ERROR
    # For classes of the user that a config names; last, so that no file here shadows a package.
    if here not in sys.path:
        sys.path.append(here)
    if not program:
        is_lightning = Path(sys.argv[0]).stem == "lightning"
        program = "lightning" if is_lightning else "torchrl-gpu"
    try:
        return _dispatch(argv, program)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as stop:
        # Lightning turns an interrupt into exit(1), and SIGTERM into an exit without a status.
        if type(stop).__name__ == "SIGTERMException":
            return TERMINATED
        return INTERRUPTED if isinstance(stop.__context__, KeyboardInterrupt) else stop.code
    except Exception as error:
        if os.environ.get("TORCHRL_GPU_DEBUG") == "1" or not is_for_user(error):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return USER_ERROR


def _in_utf8_mode() -> int | None:
    """Run this program again in Python's UTF-8 mode where the locale has another one.

    Configs and logs are UTF-8, and the libraries that read and write them ask the locale, as Python did before 3.15.
    What is printed stays in the terminal's encoding. The status of the other run, where this process cannot become it;
    None where there is nothing to do.
    """
    encoding = locale.getpreferredencoding(False).lower().replace("-", "")
    if sys.flags.utf8_mode or encoding == "utf8" or _IS_ANEW in os.environ:
        return None
    os.environ |= {"PYTHONUTF8": "1", _IS_ANEW: "1"}
    if sys.stdout is not None:
        os.environ.setdefault("PYTHONIOENCODING", f"{sys.stdout.encoding}:replace")
    words = [sys.executable, *sys.orig_argv[1:]]
    # On Windows a process that becomes another one returns to the shell at once.
    if os.name != "nt":
        os.execv(sys.executable, words)
    return subprocess.run(words, check=False).returncode


def _dispatch(argv: list[str], program: str) -> int | None:
    subcommand = argv[0] if argv else "--help"
    rest = argv[1:]
    own = {} if program == "lightning" else OWN_SUBCOMMANDS
    listed = TRAINER_SUBCOMMANDS | own
    if subcommand in ("-h", "--help"):
        print(_help(program, listed))
    elif subcommand == "--version":
        print(f"torchrl_gpu {__version__}")
    elif subcommand in TRAINER_SUBCOMMANDS:
        # Looked at here, as to load Lightning for a misspelt option would take seconds.
        args = resolve_configs(rest)
        check_arguments(args)
        builds = ("-c", "-h", "--config", "--model", "--print_config")
        names_run = any(arg.startswith(builds) for arg in args)
        asks_help = any("help" in arg for arg in args)
        if not names_run and not asks_help:
            raise ValueError("command line: name a run with --config NAME.yaml or --model CLASS")
        from torchrl_gpu.cli.lightning_cli import run

        run(subcommand, args)
    elif subcommand in own:
        folder = _FOLDERS.get(subcommand, "")
        module = importlib.import_module(f"torchrl_gpu.cli{folder}.{subcommand.replace('-', '_')}")
        status: int | None = module.main(rest)
        return status
    else:
        # Two packages bring a program `lightning`, of which one lies on the PATH. The words of the other still work.
        for script in _sdk_scripts() if program == "lightning" else ():
            return script.load()()
        raise ValueError(f"{program}: {subcommand!r} must be one of the subcommands {', '.join(listed)}")
    return None


def _sdk_scripts() -> list[metadata.EntryPoint]:
    """Find the program `lightning` of lightning_sdk, which gets what is not ours."""
    try:
        scripts = metadata.distribution("lightning_sdk").entry_points
    except metadata.PackageNotFoundError:
        return []
    return [each for each in scripts if each.group == "console_scripts" and each.name == "lightning"]


def _help(program: str, subcommands: dict[str, str]) -> str:
    listed = "\n".join(f"  {name:<14}{does}" for name, does in subcommands.items())
    return (
        f"usage: {program} SUBCOMMAND [--config NAME_OR_PATH.yaml] [--OPTION VALUE ...]\n\n{listed}\n\n"
        f"Shipped configs: {', '.join(configs.names())}\n"
        f"Options: {program} SUBCOMMAND --help; what a config comes to: {program} fit --config NAME --print_config"
    )
