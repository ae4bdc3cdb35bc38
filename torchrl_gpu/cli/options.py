"""Options of the Trainer's subcommands, as far as they can be checked before lightning is loaded."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from pathlib import Path

from torchrl_gpu import configs

# What each of these subcommands takes, up to the first dot; `predict` alone takes the last one.
OPTIONS = (
    *("help", "config", "print_config", "seed_everything", "trainer", "model", "data", "ckpt_path"),
    "return_predictions",
)


def resolve_configs(args: list[str], shipped: bool = True) -> list[str]:
    """The same arguments, with each `--config` as a path and before all other options.

    A parser that reads a config forgets what was given before it; here options change the configs wherever they stand.

    Args:
        args: Of a subcommand.
        shipped: Whether the configs that come with the package are meant too, by their names.

    Raises:
        FileNotFoundError: A config is neither a file nor shipped with the package.
        ValueError: No file stands behind `--config`.
    """
    found, others, rest = [], [], iter(args)
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
            raise ValueError(f"command line: want a file behind {option}; got {value or 'none'}")
        found.append(f"--config={_config_path(value, shipped)}")
    return found + others


def import_classes(where: str, names: str | None) -> list[type]:
    """Agents and networks of one's own that `--classes` names, for `load_policy`: module.Class,module.Class.

    Raises:
        ValueError: One of them is no class that can be imported.
    """
    found = []
    for name in filter(None, (names or "").split(",")):
        module, _, attribute = name.strip().rpartition(".")
        try:
            each = getattr(importlib.import_module(module), attribute, None)
        except (ImportError, ValueError, TypeError) as error:
            raise ValueError(f"{where}: --classes must be module.Class; got {name!r}: {error}") from error
        if not isinstance(each, type):
            raise ValueError(f"{where}: --classes must be module.Class; got {name!r}, which is none")
        found.append(each)
    return found


CLASSES_HELP = "agents and networks of your own that the file's run names: module.Class,module.Class"


def _config_path(name: str, shipped: bool) -> str:
    if "://" in name or "\n" in name or name.lstrip().startswith("{"):  # an address, or the text itself
        return name
    if shipped:
        return configs.find(name)
    if not Path(name).is_file():
        raise FileNotFoundError(f"--config: want an existing file; got {name!r}")
    return name


def check_arguments(args: list[str], others: Iterable[str] = ()) -> None:
    """Complains of what can be told from the arguments alone, so that nobody waits for it until lightning is loaded.

    Args:
        args: For a subcommand of the Trainer.
        others: Options that have been taken out of them, which a misspelt one may have meant.

    Raises:
        ValueError: There is no such option, or one replaces what another before it has set.
        FileNotFoundError: There is no such checkpoint.
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
            such_as = f", such as {', '.join(close)}" if close else ""
            raise ValueError(f"command line or config: want a known option{such_as}; got {name!r}")
        lost = next((each for each in given if each.startswith((f"{name}.", f"{name}+"))), None)
        if lost is not None and not option.endswith("+"):
            raise ValueError(f"command line: want --{name} before --{lost}, which it replaces; got it behind")
        given.append(option.removeprefix("--"))
        if name == "ckpt_path":
            check_checkpoint_path(value if equals else "".join(args[i + 1 : i + 2]))


def check_checkpoint_path(ckpt_path: str) -> None:
    """Lets Lightning's own words and addresses pass.

    Raises:
        FileNotFoundError: There is no such checkpoint.
    """
    is_word = ckpt_path in ("", "best", "last", "latest", "hpc", "null") or ckpt_path.startswith("registry")
    if not is_word and "://" not in ckpt_path and not Path(ckpt_path).exists():
        raise FileNotFoundError(f"checkpoint {ckpt_path}: want an existing file; got none there")
