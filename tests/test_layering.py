"""Imports run one way, and the package itself is light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "torchrl_gpu"

# Rooms from the lowest to the highest; a room imports lower ones alone.
LAYERS = {"device": 0, "tasks": 0, "system": 0, "lists": 1, "native": 1, "envs": 2, "streaming": 2}
LAYERS |= {"demonstrations": 3, "policies": 3, "evaluation": 4, "palletizing": 4}
LAYERS |= {"checkpoints": 5, "training": 6, "callbacks": 7, "serving": 7, "configs": 7, "cli": 8}
TOP = 9
# The same within streaming.
STREAMING = ("codecs", "broadcast", "web", "server", "ros2")
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def imported(path: Path) -> list[str]:
    """Return full dotted names that a module of the package imports.

    Those inside functions and of `from . import` too.
    """
    package = ["torchrl_gpu", *path.relative_to(PACKAGE).parent.parts]
    return list(names_of_imports(path.read_text(encoding="utf-8"), package))


def names_of_imports(source: str, package: list[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def part(name: str) -> str | None:
    """Return the part of the package that a dotted name belongs to.

    None for other packages and for the package itself.
    """
    words = name.split(".")
    return words[1] if words[0] == "torchrl_gpu" and len(words) > 1 and not words[1].startswith("__") else None


def layer(name: str) -> int:
    return LAYERS.get(name, TOP)


def part_of_file(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_run_one_way() -> None:
    for path in MODULES:
        mine = part_of_file(path)
        if mine == "__init__":
            # Names of the whole package are fetched when they are asked for.
            continue
        for name in imported(path):
            other = part(name)
            if other is not None and other != mine:
                same_layer_of_packages = layer(other) == layer(mine) < TOP
                assert layer(other) <= layer(mine), f"{path} must not import {name}"
                assert not same_layer_of_packages, f"{path} must not import {name}, which stands beside it"


def test_imports_within_streaming_run_one_way() -> None:
    for path in (PACKAGE / "streaming").rglob("*.py"):
        mine = path.relative_to(PACKAGE).parts[1].removesuffix(".py")
        if mine == "__init__":
            # The public names are fetched when they are asked for.
            continue
        for name in imported(path):
            words = name.split(".")
            if words[:2] == ["torchrl_gpu", "streaming"] and len(words) > 2:
                assert STREAMING.index(words[2]) <= STREAMING.index(mine), f"{path} must not import {name}"


def module_of(name: str, modules: dict[str, set[str]]) -> str | None:
    """The module that a dotted name lies in or stands for."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def lazy_imports(path: Path) -> list[str]:
    """Return imports without what only type checkers see.

    As `imported`, with the public names of a package, fetched when asked for.
    """
    source = re.sub(r"^if TYPE_CHECKING:\n(?:(?: .*)?\n)+", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return list(names_of_imports(source, ["torchrl_gpu", *path.relative_to(PACKAGE).parent.parts]))


def test_imports_go_round_in_no_circle() -> None:
    """No annotation closes a circle either.

    A helper is handed what it reads, and does not know its owner.
    """
    names = {path: ".".join(("torchrl_gpu", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in MODULES}
    names = {path: name.removesuffix(".__init__") for path, name in names.items() if name != "torchrl_gpu.__init__"}
    modules: dict[str, set[str]] = {name: set() for name in names.values()}
    for path, name in names.items():
        read = lazy_imports(path) if path.name == "__init__.py" else imported(path)
        found = (module_of(each, modules) for each in read)
        # A module may name its own package, whose `__init__` has begun to run by then.
        modules[name] = {each for each in found if each and not (name + ".").startswith(each + ".")}
    while leaves := {name for name, below in modules.items() if not below & set(modules)}:
        modules = {name: below for name, below in modules.items() if name not in leaves}
    assert not modules


def test_the_rules_see_every_form_of_import() -> None:
    source = "import torchrl_gpu.cli\ndef f():\n    from torchrl_gpu.policies import DQN\nfrom ..training import x\n"
    parts = {part(name) for name in names_of_imports(source, ["torchrl_gpu", "envs"])}
    assert parts == {"cli", "policies", "training"}
    assert layer("envs") < layer("policies") < layer("training") < layer("cli")


TASKS = ("packing", "marine", "dishes", "palletizing")
# The public names of tasks, and the sessions of pallets that programs and the policy server offer.
MOST_IMPORTS_OF_TASKS = 10


def is_of_a_task(name: str) -> bool:
    return bool(set(name.split(".")) & set(TASKS))


def test_framework_names_no_task() -> None:
    """A task has a folder in each room.

    Everything outside of these looks tasks up in `torchrl_gpu.tasks`.
    """
    modules = {".".join(("torchrl_gpu", *path.relative_to(PACKAGE).with_suffix("").parts)): path for path in MODULES}
    known = {name.removesuffix(".__init__"): set[str]() for name in modules}
    found = set()
    for name, path in modules.items():
        if not is_of_a_task(name):
            targets = {module_of(each, known) for each in imported(path)}
            found |= {f"{name}: {target}" for target in targets if target and is_of_a_task(target)}
    assert len(found) <= MOST_IMPORTS_OF_TASKS, sorted(found)


def test_an_environment_never_imports_its_viewer() -> None:
    for path in (PACKAGE / "envs").rglob("env.py"):
        assert not [name for name in imported(path) if ".viewer" in name or ".render" in name], path


def test_imports_are_light() -> None:
    heavy = "torch lightning jsonargparse aiohttp cv2 av pyarrow rich numpy"
    code = f"import sys; heavy = {heavy.split()}\n"
    for part in ("", ".device", ".configs", ".cli", ".cli.encode", ".cli.packing.pack", ".cli.play", ".cli.record"):
        code += f"import torchrl_gpu{part}; print({part!r}, *(name for name in heavy if name in sys.modules))\n"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    *lines, playing, recording = run.stdout.splitlines()
    assert [line.split()[1:] for line in lines] == [[]] * 6, run.stdout
    assert all(set(line.split()[1:]) <= {"numpy"} for line in (playing, recording)), run.stdout
