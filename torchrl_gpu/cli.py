"""The programs `lightning` and `torchrl-gpu`: words to functions, errors to one line. Imports nothing heavy."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

from torchrl_gpu import __version__, configs
from torchrl_gpu.errors import is_for_user, one_line, unknown_option

TRAINER_WORDS = {
    "fit": "train, and validate now and then",
    "validate": "evaluate on the validation episodes",
    "test": "evaluate on the test episodes",
    "predict": "return what the policy decides",
}

# word: (module:function that takes the rest of the command line, what it does)
OWN_WORDS = {
    "doctor": ("torchrl_gpu.doctor:main", "print what this machine can do, and why not where it cannot"),
    "bench": ("torchrl_gpu.bench:main", "measure, side by side with others, parity first"),
    "evaluate": ("torchrl_gpu.evaluate:main", "print the tables of published evaluations, with ours in them"),
    "play": ("torchrl_gpu.play:main", "show in the browser how a policy packs"),
    "serve": ("torchrl_gpu.play:serve", "the same as a service: one port, until SIGTERM"),
}

# What every trainer word knows, up to the first dot; `predict` alone knows the last one.
OPTIONS = (
    *("help", "config", "print_config", "seed_everything", "trainer", "model", "data", "ckpt_path"),
    "return_predictions",
)

USER_ERROR = 2
INTERRUPTED = 130


def main(argv: list[str] | None = None, program: str | None = None) -> int | str | None:
    """Runs a command line; the value is the exit status, where None and 0 stand for success.

    Args:
        argv: The words behind the program's name; those of this process by default.
        program: "lightning" or "torchrl-gpu"; by default the name under which this process was started.

    What the user can mend is one line on stderr and status 2; any other error keeps its traceback, and so does every
    error where the variable TORCHRL_GPU_DEBUG is 1.
    """
    # Waiting threads spin a little and then sleep: those that spin on take a core that another process wants, those
    # that sleep at once are late for the next operation.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("RL_LOGGING_LEVEL", "WARNING")  # torchrl announces every buffer that it allocates
    argv = sys.argv[1:] if argv is None else argv
    program = program or _program()
    try:
        return _dispatch(argv, program)
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as stop:  # Lightning turns an interrupt into exit(1)
        return INTERRUPTED if isinstance(stop.__context__, KeyboardInterrupt) else stop.code
    except Exception as error:
        if os.environ.get("TORCHRL_GPU_DEBUG") == "1" or not is_for_user(error):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return USER_ERROR


def resolve_configs(args: list[str]) -> list[str]:
    """The same arguments, with each `--config` given as a path.

    Raises:
        FileNotFoundError: A config is neither a file nor shipped with the package.
    """
    resolved: list[str] = []
    for arg in args:
        option, equals, value = arg.partition("=")
        if resolved and resolved[-1] in ("--config", "-c"):
            resolved.append(_config_path(arg))
        elif option == "--config" and equals:
            resolved.append(f"--config={_config_path(value)}")
        else:
            resolved.append(arg)
    return resolved


def check_arguments(args: list[str], others: Iterable[str] = ()) -> None:
    """Complains of what can be told from the words alone, so that nobody waits for it until lightning is loaded.

    Args:
        args: For a trainer word.
        others: Options that have been taken out of them, which a misspelt one may have meant.

    Raises:
        ValueError: There is no such option.
        FileNotFoundError: There is no such checkpoint.
    """
    for i, arg in enumerate(args):
        option, equals, value = arg.partition("=")
        name = option.removeprefix("--").removesuffix("+")
        if not option.startswith("--") or not name:
            continue
        if name.partition(".")[0] not in OPTIONS:
            raise ValueError(unknown_option(name, [*OPTIONS, *others]))
        if name == "ckpt_path":
            check_is_there(value if equals else "".join(args[i + 1 : i + 2]))


def check_is_there(ckpt_path: str) -> None:
    """Lets Lightning's own words and addresses pass.

    Raises:
        FileNotFoundError: There is no such checkpoint.
    """
    is_word = ckpt_path in ("", "best", "last", "hpc", "null") or ckpt_path.startswith("registry")
    if not is_word and "://" not in ckpt_path and not Path(ckpt_path).exists():
        raise FileNotFoundError(f"checkpoint {ckpt_path}: want an existing file; got none there")


def _dispatch(argv: list[str], program: str) -> int | None:
    word, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if word in ("-h", "--help"):
        print(_help(program))
        return None
    if word == "--version":
        print(f"torchrl_gpu {__version__}")
        return None
    if word in TRAINER_WORDS:
        _run_trainer(word, rest)
        return None
    if word in OWN_WORDS and program != "lightning":
        return _load(OWN_WORDS[word][0])(rest)
    return _pass_on(word, program)


def _run_trainer(word: str, args: list[str]) -> None:
    args = resolve_configs(args)
    check_arguments(args)
    from torchrl_gpu.lightning_cli import run

    run(word, args)


def _load(target: str) -> Callable[[list[str]], int | None]:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _pass_on(word: str, program: str) -> int | None:
    """Gives a word that is not ours to the `lightning` program of lightning_sdk, where that is installed."""
    if program == "lightning":
        for script in _sdk_scripts():
            return script.load()()
    words = ", ".join(_words(program))
    raise ValueError(f"{program}: want one of the words {words}; got {word!r}")


def _sdk_scripts() -> list[metadata.EntryPoint]:
    try:
        scripts = metadata.distribution("lightning_sdk").entry_points
    except metadata.PackageNotFoundError:
        return []
    return [each for each in scripts if each.group == "console_scripts" and each.name == "lightning"]


def _config_path(name: str) -> str:
    is_address_or_text = "://" in name or "\n" in name or name.lstrip().startswith("{")
    return name if is_address_or_text else configs.find(name)


def _program() -> str:
    return "lightning" if Path(sys.argv[0]).stem == "lightning" else "torchrl-gpu"


def _words(program: str) -> dict[str, str]:
    own = {} if program == "lightning" else {word: says for word, (_, says) in OWN_WORDS.items()}
    return TRAINER_WORDS | own


def _help(program: str) -> str:
    words = "\n".join(f"  {word:<10}{says}" for word, says in _words(program).items())
    return (
        f"usage: {program} WORD [--config NAME_OR_PATH.yaml] [--OPTION VALUE ...]\n\n{words}\n\n"
        f"Shipped configs: {', '.join(configs.names())}\n"
        f"Options of a word: {program} WORD --help; what a config comes to: {program} fit --config NAME --print_config"
    )


if __name__ == "__main__":
    sys.exit(main())
