"""Errors that the user can correct, in one line: the place, the fault, the remedy."""

from __future__ import annotations

import argparse
import difflib
import errno
import inspect
import re
import sys
import traceback
from collections.abc import Iterable

_PARSERS = ("jsonargparse", "argparse", "yaml")
_MENDABLE = (
    ValueError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
    argparse.ArgumentError,
)
# Further errors for the user, by the modules that define them.
_OURS = {
    "torch": "OutOfMemoryError",
    "lightning.fabric.utilities.exceptions": "MisconfigurationException",
    "lightning.fabric.utilities.spike": "TrainingSpikeException",
    "torchrl_gpu.training.divergence": "Diverged",
    "torchrl_gpu.envs.workers.shard": "WorkerFailed",
}
_OF_CALLBACKS = ("torchrl_gpu.callbacks", "lightning.pytorch.callbacks")
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO)
_NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)
_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate (\d+)"
)


# An error of our own code must keep its traceback, or nobody could mend it; one that the user can correct is lost in a
# traceback. Which of both it is, its class alone does not tell: a ValueError may come from either. So the module that
# raised it counts, and further classes are listed above.
def is_for_user(error: BaseException) -> bool:
    """Return whether the user can correct an error.

    It is then printed as one line without a traceback.
    """
    root = root_error(error)
    module, function = _raised_by(root)
    if module in _PARSERS or _raised_by(error)[0] in _PARSERS:
        return True
    if (module, function) in (("torch", "load_state_dict"), ("lightning", "_validate_condition_metric")):
        return True
    if isinstance(root, ModuleNotFoundError):
        return (root.name or "").partition(".")[0] != "torchrl_gpu"
    # torch raises a plain RuntimeError where the machine has no memory, which only its words tell from others.
    has_no_memory = isinstance(root, RuntimeError) and _NO_MEMORY.search(str(root))
    if isinstance(root, MemoryError) or has_no_memory:
        return True
    if isinstance(root, OSError) and root.errno in _OF_THE_DISK:
        return True
    # An error of a module that is not loaded cannot have been raised.
    loaded: list[type] = []
    for name, error_class in _OURS.items():
        if sys.modules.get(name):
            loaded.append(getattr(sys.modules[name], error_class))
    return isinstance(root, (*_MENDABLE, *loaded))


def one_line(error: BaseException, options: Iterable[str] = ()) -> str:
    """Describe an error in a single line.

    For a misspelt option it names those of `options` that are close to it.
    """
    root = root_error(error)
    module, function = _raised_by(root)
    if module == "yaml":
        return f"--config: the file is no YAML: {_flat(str(root))}"
    # A constructor's message is enough by itself; a failing import needs the option that asked for it.
    if module in _PARSERS or (_raised_by(error)[0] in _PARSERS and not isinstance(root, _MENDABLE)):
        return _parser_line(str(error), list(options)) + _place(root)
    text = _flat(str(root)) or type(root).__name__
    if isinstance(root, MemoryError) or _NO_MEMORY.search(text):
        asked = _NO_MEMORY.search(text)
        more = f"{int(asked[1]) / 2**30:,.1f} GiB more" if asked else _shorten(text)
        return (
            f"memory: the machine refused {more}. Take fewer environments (--model.env.num_envs), a smaller batch"
            " (--model.batch_size) or replay (--model.replay.capacity)"
        )
    if type(root).__name__ == "OutOfMemoryError":
        return f"device memory: {text}. Take fewer environments, a smaller batch or replay"
    if module == "torch" and function == "load_state_dict":
        return f"checkpoint: its weights are not those of this model: {_shorten(text)}"
    if isinstance(root, OSError) and root.errno in _NOT_ALLOWED and root.filename:
        return (
            f"{root.filename}: {_flat(str(root.strerror))}. Name a place that this user may read, and write where"
            " results go (--trainer.default_root_dir of a run, --out of pack, --output of others)"
        )
    if isinstance(root, OSError) and root.strerror:
        disk = "disk" if root.errno in _OF_THE_DISK else ""
        place = root.filename or disk
        if place:
            return f"{place}: {root.strerror}"
    return text


def root_error(error: BaseException) -> BaseException:
    """Return the error as it was first raised, without the wrapping of jsonargparse."""
    # jsonargparse raises an error of its own over that of a constructor, whose message says more.
    while _raised_by(error)[0] == "jsonargparse":
        inner = error.__cause__ or error.__context__
        if inner is None:
            break
        error = inner
    return error


def _raised_by(error: BaseException) -> tuple[str, str]:
    raised = error.__traceback__
    if raised is None:
        return "", ""
    while raised.tb_next is not None:
        raised = raised.tb_next
    frame = raised.tb_frame
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0], frame.f_code.co_name


def _place(root: BaseException) -> str:
    """Return file and line at which a module that a parser imported has failed.

    It is "" for a name that the module lacks.
    """
    all_frames = traceback.extract_tb(root.__traceback__)
    frames = [frame for frame in all_frames if frame.name != "__getattr__"]
    if not frames:
        return ""
    last = frames[-1]
    # A parser that found the fault itself, or a module that is not there: a place in their code would help nobody.
    if any(word in last.filename for word in (*_PARSERS, "importlib")):
        return ""
    return f" ({last.filename}, line {last.lineno})"


def _parser_line(message: str, options: list[str]) -> str:
    """Describe an error of jsonargparse with its key, class, reason and value.

    jsonargparse lists what it tried as an indented tree. The reason is in the most indented lines, and the last line
    has the value.
    """
    message = re.sub(r"NestedArg\(key='[^']*', val=(.*?)\)$", r"\1", message, flags=re.MULTILINE)
    lines = [line for line in message.splitlines() if line.strip(" -")]
    depths = [len(line) - len(line.lstrip(" -")) for line in lines]
    deepest = [line for line, depth in zip(lines, depths, strict=True) if depth == max(depths)]
    found = dict.fromkeys(line.strip(" -") for line in deepest)
    text = " or ".join(found)
    # An argument that takes a function names its class in a later line.
    later = re.findall(r"Got value: Namespace\(class_path='([^']+)'", message)[:1]
    made = re.findall(r"class_path='([^']+)'", text)[:1] or later
    of_callable = text.partition(" expects a function or a callable class: ")[2]
    text = of_callable.partition(". Got value: ")[0] or text
    words = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    reason = _shorten(re.sub(r"typing\.Literal\[([^]]*)\]", r"\1", words))
    given = f"; {_given_line(lines, depths)}" if len(found) > 1 and depths[-1] < max(depths) else ""
    key = ".".join(dict.fromkeys(re.findall(r'key "([^"]+)"', message)))
    classes = re.findall(r"class_path '([^']+)'", message) + made
    where = f"{key} ({classes[-1]})" if classes else key or "command line or config"
    parameters = _parameters(classes[-1]) if classes else []
    close = _close_names(reason, parameters or options)
    such_as = f"; did you mean {', '.join(close)}?" if close else ""
    return f"{where}: {reason}{given}{such_as}"


def _close_names(reason: str, known: list[str]) -> list[str]:
    """List the names that are close to those that a reason calls unknown."""
    absent = re.search(r"module '([\w.]+)' has no attribute '(\w+)'", reason)
    unfound = re.search(r"Expected a dot import path string: (\w+)", reason)
    if absent is not None:
        known = _public_names(absent[1])
        written = [absent[2]]
    elif unfound is not None:
        known = _public_names(*_OF_CALLBACKS)
        written = [unfound[1]]
    else:
        written = [name for name in re.findall(r"(?:'|--)([\w.]+)", reason) if name not in known]
    close: list[str] = []
    for name in written:
        close += difflib.get_close_matches(name, known)
    return close


def _given_line(lines: list[str], depths: list[int]) -> str:
    """Return the most indented line with a value.

    The last line of all may show the whole config around it.
    """
    known = [index for index, line in enumerate(lines) if line.strip().startswith("Given value: ")]
    line = lines[max(known, key=lambda index: depths[index])] if known else lines[-1]
    return _shorten(line.partition(". Got value: ")[0], 80)


def _public_names(*modules: str) -> list[str]:
    names: list[str] = []
    for module in modules:
        names += getattr(sys.modules.get(module), "__all__", ())
    return names


def _parameters(class_path: str) -> list[str]:
    module, _, name = class_path.rpartition(".")
    found = getattr(sys.modules.get(module), name, None)
    if found is None:
        return []
    parameters = inspect.signature(found.__init__).parameters
    return [*parameters][1:]


def _flat(text: str) -> str:
    return " ".join(text.split())


def _shorten(text: str, longest: int = 240) -> str:
    text = _flat(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"
