"""What the user can mend, said in one line: where, what is wanted, what came."""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

# Lines of a jsonargparse message that say how it searched rather than what it found.
_SCAFFOLD = re.compile(
    r"Does not validate against|Subtypes:|Errors:|Given value type:|Expected a path but|Not a valid subclass|"
    r"Subclass types expect|a class path \(str\)|a dict with|Expected a NoneType"
)
_PARSERS = ("jsonargparse", "argparse", "yaml")
_UNKNOWN = re.compile(r"(?:Option|accept option) '([^']+)'(?: is not accepted)?|unrecognized arguments: --?(\S+)")


class OneLineParser(argparse.ArgumentParser):
    """An argument parser for the package's own words, whose complaints are ValueErrors of one line."""

    def error(self, message: str) -> NoReturn:
        """Raises what argparse would print under a usage text."""
        raise ValueError(f"{self.prog}: want the options that --help lists; got {message}")


def is_for_user(error: BaseException) -> bool:
    """Whether an error is one that the user can mend, so that it deserves a line rather than a traceback."""
    root = root_error(error)
    if isinstance(root, ModuleNotFoundError):
        return (root.name or "").partition(".")[0] != "torchrl_gpu" or _raised_by(root) in _PARSERS
    return isinstance(root, _mendable()) or _is_state_mismatch(root) or _raised_by(root) in _PARSERS


def one_line(error: BaseException, options: Iterable[str] = ()) -> str:
    """An error as a single line, whatever its message looks like.

    Args:
        error: Any exception; those of jsonargparse are unwrapped to what the user wrote.
        options: The option names of the command, from which close matches of a misspelt one are taken.
    """
    root = root_error(error)
    if _is_state_mismatch(root):
        return _state_mismatch_line(str(root))
    if _raised_by(root) in _PARSERS:
        return _parser_line(str(error), list(options))
    text = str(root).strip() or type(root).__name__
    if type(root).__name__ == "OutOfMemoryError":
        return "device memory: want a run that fits, for example with fewer environments; " + _flat(text)
    if isinstance(root, OSError) and root.strerror and root.filename:
        return f"{root.filename}: {root.strerror}"
    return _flat(text)


def unknown_option(name: str, options: Iterable[str]) -> str:
    """What is said of an option that there is not.

    Args:
        name: As it was written, without dashes and value.
        options: Those that there are.
    """
    return _unknown_line(name, _Complaint(), list(options))


def root_error(error: BaseException) -> BaseException:
    """The error as it was first raised, without the wrapping that jsonargparse puts around constructors."""
    while _raised_by(error) == "jsonargparse" and error.__cause__ is not None:
        error = error.__cause__
    return error


def _mendable() -> tuple[type[BaseException], ...]:
    kinds: list[type[BaseException]] = [
        ValueError,
        FileNotFoundError,
        FileExistsError,
        IsADirectoryError,
        NotADirectoryError,
        PermissionError,
        argparse.ArgumentError,
    ]
    if "torch" in sys.modules:
        kinds.append(sys.modules["torch"].OutOfMemoryError)
    if "lightning.fabric.utilities.exceptions" in sys.modules:
        kinds.append(sys.modules["lightning.fabric.utilities.exceptions"].MisconfigurationException)
    return tuple(kinds)


def _raised_by(error: BaseException) -> str:
    """Top-level package of the frame that raised an error."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    name = "" if traceback is None else str(traceback.tb_frame.f_globals.get("__name__", ""))
    return name.partition(".")[0]


def _is_state_mismatch(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and str(error).startswith("Error(s) in loading state_dict")


def _flat(text: str) -> str:
    return " ".join(text.split())


def _state_mismatch_line(text: str) -> str:
    head, *rest = [line.strip() for line in text.splitlines() if line.strip()]
    module = head.removeprefix("Error(s) in loading state_dict for ").rstrip(":")
    more = f" and {len(rest) - 1} more" if len(rest) > 1 else ""
    found = _shorten(rest[0].rstrip(".")) if rest else "another architecture"
    return f"checkpoint: want the weights of a {module}; got {found}{more}"


def _shorten(text: str, width: int = 240) -> str:
    text = _flat(text)
    return text if len(text) <= width else text[: width - 1] + "…"


@dataclass
class _Complaint:
    """What the lines of a jsonargparse message hold, once the scaffolding is taken away."""

    keys: list[str] = field(default_factory=list)
    class_path: str = ""
    leaves: list[str] = field(default_factory=list)
    value: str = ""

    @property
    def where(self) -> str:
        key = ".".join(dict.fromkeys(self.keys))
        return f"{key} ({self.class_path})" if key and self.class_path else key or self.class_path


def _parser_line(text: str, options: list[str]) -> str:
    if match := re.search(r"the following arguments are required: (.*)", text):
        return f"command line: want --config NAME.yaml, or all of {match[1]}; got neither"
    if "Problems parsing config" in text:
        return "--config: want YAML; got what has " + _flat(text.split("Problems parsing config:")[-1])
    complaint = _read_complaint(text)
    leaf = " or ".join(dict.fromkeys(complaint.leaves)) or _flat(text)
    unknown = _UNKNOWN.search(leaf)
    if unknown:
        return _unknown_line(unknown[1] or unknown[2].partition("=")[0], complaint, options)
    leaf = leaf.replace(". Got value: ", "; got ").replace("Expected a ", "want ").replace(" or want ", " or ")
    if complaint.value and "; got" not in leaf:
        leaf = f"{leaf}; got {_shorten(complaint.value, 120)}"
    return f"{complaint.where}: {leaf}" if complaint.where else leaf


def _read_complaint(text: str) -> _Complaint:
    complaint = _Complaint()
    for line in _lines(text):
        if match := re.match(r'Parser key "([^"]+)":\s*(.*)', line):
            complaint.keys.append(match[1])
            line = match[2]
        if match := re.match(r"Problem with given class_path '([^']+)':\s*(.*)", line):
            complaint.class_path = match[1]
            line = match[2]
        if match := re.match(r"Given value: (.*)", line):
            complaint.value = complaint.value or _nested_argument(match[1])
        elif line and not _SCAFFOLD.match(line):
            complaint.leaves.append(line)
    return complaint


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", line.strip().removeprefix("- "))


def _nested_argument(text: str) -> str:
    match = re.fullmatch(r"NestedArg\(key='(.*)', val='(.*)'\)", text)
    return f"{match[1]}={match[2]}" if match else text


def _unknown_line(name: str, complaint: _Complaint, options: list[str]) -> str:
    known = _parameters(complaint.class_path) or options
    where = complaint.where or "command line or config"
    close = _close_options(name, known)
    if close:
        return f"{where}: want a known option, such as {', '.join(close)}; got {name!r}"
    listed = f" ({', '.join(known)})" if 0 < len(known) <= 12 else ""
    return f"{where}: want a known option{listed}; got {name!r}"


def _close_options(name: str, known: list[str]) -> list[str]:
    """Known names like this one, compared whole, or else by the first word before a dot."""
    heads = sorted({option.partition(".")[0] for option in known})
    head = name.partition(".")[0]
    if head in heads:
        return difflib.get_close_matches(name, known, n=3)
    return difflib.get_close_matches(head, heads, n=3)


def _parameters(class_path: str) -> list[str]:
    """Names of the constructor's arguments of a class, which jsonargparse has imported already."""
    module, _, name = class_path.rpartition(".")
    if not module:
        return []
    found = getattr(importlib.import_module(module), name)
    return [each for each in inspect.signature(found.__init__).parameters if each not in ("self", "args", "kwargs")]
