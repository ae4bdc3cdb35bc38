"""The parser of every subcommand: shared options, types and errors.

It checks what it can before torch or Lightning is loaded.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from torchrl_gpu import configs

CLASSES_HELP = "agents and networks of your own that the file's run names: module.Class,module.Class"
TOKEN_VARIABLES = {"token": "TORCHRL_GPU_TOKEN", "view_token": "TORCHRL_GPU_VIEW_TOKEN"}

# Options of the Trainer's subcommands, up to the first dot; the last one is of `predict` alone.
OPTIONS = (
    "help",
    "config",
    "print_config",
    "seed_everything",
    "trainer",
    "model",
    "data",
    "ckpt_path",
    "return_predictions",
)

# Messages of argparse, and what replaces them.
_ERRORS = {
    r"^.*arguments are required: (.*)$": r"\1 must be given",
    r"^unrecognized arguments: ": "unknown options: ",
    r"^argument (\S+): invalid choice: (.*) \(choose from (.*)\)$": r"\1 must be one of \3; got \2",
    r"^argument (\S+): invalid (\w+) value: ": r"\1 must be of type \2; got ",
    r"^argument (\S+): (?=must )": r"\1 ",
    r"^argument (\S+): ": r"\1: ",
}


class OneLineParser(argparse.ArgumentParser):
    """An argument parser whose errors are ValueErrors of one line."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kwargs})

    def add_config(self) -> None:
        """Add `--config` of a run, which must be given, once."""
        meaning = "of a run: a path, or one that the package ships"
        self.add_argument("--config", required=True, action=_Once, help=meaning)

    def add_classes(self) -> None:
        """Add `--classes`, for `policies.registry.import_classes`."""
        self.add_argument("--classes", help=CLASSES_HELP)

    def add_address(self, token: str) -> None:
        """Add the address of a server and its limit of clients.

        `token` is the help text of the token.
        """
        add = self.add_argument
        add("--host", default="127.0.0.1", help="address to listen at; beyond this machine a long token is needed")
        add("--port", type=int, default=8080, help="0 for any that is free")
        add("--token", default=os.environ.get(TOKEN_VARIABLES["token"]), help=token)
        add("--tls", nargs=2, metavar=("CERT", "KEY"), help="PEM files, to serve https")
        add("--max_clients", type=int, default=64, help="clients at once")

    def parse_run(self, argv: list[str], config: str | None = None) -> tuple[argparse.Namespace, list[str]]:
        """Return the options of this parser, and the words for Lightning.

        The latter are the config, `config` by default, and all other options.
        """
        args, rest = self.parse_known_args(argv)
        one = args.config or config
        named = args.config if isinstance(args.config, list) else [one]
        if named == [None]:
            # This refuses other options.
            return self.parse_args(argv), []
        files = [f"--config={each}" for each in named]
        words = resolve_configs([*files, *rest])
        check_arguments(words, (action.dest for action in self._actions))
        check_checkpoint_path(getattr(args, "ckpt_path", None) or "")
        return args, words

    def error(self, message: str) -> NoReturn:
        """Raise a ValueError where argparse would print a usage text and exit."""
        # Python 3.13 lists choices without quotes.
        message = re.sub(r"\(choose from .*\)", lambda choices: choices[0].replace("'", ""), message)
        for pattern, wanted in _ERRORS.items():
            message = re.sub(pattern, wanted, message)
        raise ValueError(f"{self.prog}: {message}")


# argparse takes the last one in silence.
class _Once(argparse.Action):
    """An option that may be given once."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: object, option: str | None = None
    ) -> None:
        before = getattr(namespace, self.dest)
        if before is not None:
            parser.error(f"{option} stands there twice, {before} and {value}: name one of them")
        setattr(namespace, self.dest, value)


def whole(least: float, most: float = math.inf) -> Callable[[str], int]:
    """Return the type of an option that is a whole number from `least` to `most`."""

    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            wanted = f"at least {least}" if value < least else f"at most {most}"
            raise argparse.ArgumentTypeError(f"must be {wanted}; got {value}")
        return value

    # argparse tells by this name what other text should be.
    parse.__name__ = "int"
    return parse


def positive(text: str) -> float:
    """Return the value of an option that is a finite number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number above 0; got {text}")
    return value


def not_negative(text: str) -> float:
    """Return the value of an option that is 0 or a finite number above it."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number, at least 0; got {text}")
    return value


def _number(text: str) -> float:
    """Return the number that a text is, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def resolve_configs(args: list[str], shipped: bool = True) -> list[str]:
    """Return the arguments with each `--config` as a path, before all other options.

    With `shipped` it may be the name of a config of this package. A parser that reads a config forgets what was given
    before it; here options change the configs wherever they stand.
    """
    found: list[str] = []
    others: list[str] = []
    rest = iter(args)
    for arg in rest:
        option, equals, value = arg.partition("=")
        if option in ("--config", "-c"):
            value = value if equals else next(rest, "")
        elif not arg.startswith("--") and option.startswith("-c"):
            value = arg[2:]
        else:
            others.append(arg)
            continue
        if not value or value.startswith("-"):
            raise ValueError(f"command line: {option} must be followed by a file, not by {value or 'nothing'}")
        found.append(f"--config={_config_path(value, shipped)}")
    return found + others


def _config_path(name: str, shipped: bool) -> str:
    # An address, or the text of a config itself.
    if "://" in name or "\n" in name or name.lstrip().startswith("{"):
        return name
    if shipped:
        return configs.find(name)
    if not Path(name).is_file():
        raise FileNotFoundError(f"--config: there is no file {name!r}")
    return name


def check_arguments(args: list[str], others: Iterable[str] = ()) -> None:
    """Check the arguments of a Trainer's subcommand without loading Lightning.

    `others` are options that have been taken out of them, which a misspelt one may have meant.
    """
    given: list[str] = []
    for i, arg in enumerate(args):
        option, equals, value = arg.partition("=")
        name = option.removeprefix("--").removesuffix("+")
        if not option.startswith("--") or not name:
            continue
        head = name.partition(".")[0]
        if head not in OPTIONS:
            close = difflib.get_close_matches(head, sorted({*OPTIONS, *others}))
            such_as = f"; did you mean {', '.join(close)}?" if close else ""
            raise ValueError(f"command line or config: unknown option {name!r}{such_as}")
        # jsonargparse reads options in their order: a class named later forgets the arguments given for it before, in
        # silence.
        lost = next((each for each in given if each.startswith((f"{name}.", f"{name}+"))), None)
        if lost is not None and not option.endswith("+"):
            raise ValueError(f"command line: --{name} would replace --{lost} before it: put it first")
        given.append(option.removeprefix("--"))
        if name == "ckpt_path":
            following = "".join(args[i + 1 : i + 2])
            check_checkpoint_path(value if equals else following)


def check_checkpoint_path(ckpt_path: str) -> None:
    """Refuse a path without a file.

    Lightning's own words and addresses pass.
    """
    is_word = ckpt_path in ("", "best", "last", "latest", "hpc", "null") or ckpt_path.startswith("registry")
    if not is_word and "://" not in ckpt_path and not Path(ckpt_path).exists():
        raise FileNotFoundError(f"checkpoint {ckpt_path}: there is no such file")
