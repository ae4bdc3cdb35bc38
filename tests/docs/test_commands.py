"""Every command line in the documentation is accepted by its program.

Those of `lightning …` and `torchrl-gpu …`, as they stand.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.docs.snippets import PAGES, ROOT, blocks, commands
from torchrl_gpu import cli
from torchrl_gpu.cli.lightning_cli import PackageCLI
from torchrl_gpu.cli.parser import OneLineParser

PROGRAMS = ("lightning", "torchrl-gpu")
# Suffixes of files that a command names, which exist before it is run.
MADE = (".ckpt", ".json", ".pt")


class Parsed(BaseException):
    """Signal that a command line has been accepted.

    What the command would do next is not done.
    """


def found() -> dict[tuple[str, ...], str]:
    """Command lines of our programs, each once, and where they stand."""
    places: dict[tuple[str, ...], str] = {}
    for page in PAGES:
        for block in blocks(page):
            if block.kind != "bash" or block.skipped is not None:
                continue
            for words in commands(block):
                if words[0] in PROGRAMS:
                    places.setdefault(tuple(words), block.name)
    return places


COMMANDS = found()


@pytest.fixture
def only_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs parse what they are given, all of it, and stop where they would begin."""

    def parsed(*args: Any, **kwargs: Any) -> None:
        raise Parsed

    parse_args = OneLineParser.parse_args

    def parse(self: OneLineParser, args: list[str], *more: Any) -> argparse.Namespace:  # type: ignore[override]
        parse_args(self, args, *more)
        raise Parsed

    monkeypatch.setattr(PackageCLI, "before_instantiate_classes", parsed)
    monkeypatch.setattr(OneLineParser, "parse_args", parse)
    monkeypatch.setattr("torchrl_gpu.cli.ros.until_told_to_end", parsed)
    monkeypatch.setattr("torchrl_gpu.streaming.server.StreamServer.start", lambda self: self)


def joined() -> dict[str, list[tuple[str, ...]]]:
    """Join the command lines that use a config by its name.

    Each of the others stands by itself.
    """
    groups: dict[str, list[tuple[str, ...]]] = {}
    for words in COMMANDS:
        runs = words[0] == "lightning" or words[1] == "evaluate"
        shares = runs and words[2] == "--config" and "--print_config" not in words
        groups.setdefault(" ".join(words[:4] if shares else words), []).append(words)
    return groups


GROUPS = joined()


def prepare(words: tuple[str, ...], page: Path, folder: Path) -> None:
    """Makes the files that a command names, and those that its page shows."""
    for block in blocks(page):
        if block.file:
            (folder / block.file).write_text(block.run_as(), encoding="utf-8")
            words += tuple(re.findall(r"[\w/]+\.ckpt", block.text))
    for word in words:
        path = folder / word
        if word.endswith(MADE):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()


def is_taken(words: tuple[str, ...]) -> bool:
    program, *rest = words[: words.index(">")] if ">" in words else words
    try:
        return cli.main(rest, program) in (0, None) and "--print_config" in rest
    except Parsed:
        return True


@pytest.mark.parametrize("name", GROUPS)
def test_command_lines_are_taken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_parsed: None) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for words in GROUPS[name]:
        prepare(words, ROOT / COMMANDS[words].partition(":")[0], tmp_path)
    first, *others = GROUPS[name]
    # All at once, for time.
    more = tuple(chain.from_iterable(words[4:] for words in others))
    if not is_taken(first + more):
        assert [COMMANDS[words] for words in GROUPS[name] if not is_taken(words)] == []


def others(program: str) -> Iterator[tuple[str, list[str]]]:
    """Place and words of each command line of another program."""
    for page in PAGES:
        for block in blocks(page):
            for words in commands(block) if block.kind == "bash" else ():
                if words[0].rpartition("/")[2] == program:
                    yield block.name, words


def test_goals_of_make_are_there() -> None:
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = set()
    for _, words in others("make"):
        asked |= {word for word in words[1:] if "=" not in word}
    assert asked
    assert asked <= goals


def test_extras_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.findall(r"\[(.*?)\]", "\n".join(words[-1] for _, words in others("pip")))
    asked = set(",".join(named).split(","))
    assert asked
    assert asked <= set(extras)


def test_an_install_of_extras_keeps_the_install_that_is_there() -> None:
    """An editable one too, which `pip install '.[stream]'` replaces by a copy."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert (
        re.findall(
            r"pip install (?:-\S+ (?:\S+\.txt )?)*['\"]?\.(?:\[|'|\"|\s|$)",
            text.replace("-e '.", "").replace("-e .", ""),
        )
        == []
    )


SAFE = re.compile(r" @ git\+")
BARE = re.compile(r"pip\W{1,4}install\b[^`\n]*?(?<![\w/.-])torchrl[_-]gpu(?![\w/.])(?:\[[^\]]*\])?(?P<rest>.{0,8})")
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".ipynb", ".js", ".html", ".txt", ".cfg", ".sh", ".json", ""}


def bare_installs(text: str) -> list[str]:
    """Installs of the package by its name alone.

    pip would look for that on a public registry.
    """
    return [each.group() for each in BARE.finditer(text) if not SAFE.match(each["rest"])]


def test_bare_installs_are_found() -> None:
    for line in (
        "pip install torchrl_gpu",
        "`pip install -q 'torchrl-gpu[stream]'`",
        '"pip", "install", "torchrl_gpu"',
    ):
        assert bare_installs(line), line
    for line in ("pip install -e '.[stream]'", "pip install dist/torchrl_gpu-0.1.0.whl", "torchrl_gpu @ git+https://a"):
        assert not bare_installs(line), line


def test_nothing_installs_the_package_by_its_name_alone() -> None:
    """On the public registry anybody may register it."""
    folders = ("torchrl_gpu", "docs", "examples", "cloud", "benchmarks")
    paths = list(chain.from_iterable((ROOT / folder).rglob("*") for folder in folders))
    paths += [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "Dockerfile", "constraints.txt")]
    faults = []
    for path in paths:
        # Results hold what a machine printed on a day, and are not edited.
        if path.suffix in TEXT and path.is_file() and "results" not in path.parts:
            text = path.read_text(encoding="utf-8")
            faults += [f"{path.relative_to(ROOT)}: {found}" for found in bare_installs(text)]
            faults += [f"{path.relative_to(ROOT)}: {found}" for found in re.findall(r"torchrl_gpu\[[a-z,{].{20}", text)]
    assert [fault for fault in faults if "@ git+" not in fault] == []


def test_programs_of_the_repository_are_there() -> None:
    asked = [(name, words) for name, words in others("python") if words[1] != "-m"]
    assert asked
    for name, words in asked:
        source = (ROOT / words[1]).read_text(encoding="utf-8")
        missing = [word for word in words if word.startswith("--") and f'"{word}"' not in source]
        assert not missing, f"{name}: {missing}"


@pytest.mark.parametrize(
    "line",
    [
        "lightning fit --config packing.yaml --model.env.num_envz 3",
        "lightning fit --config packing.yaml --trainer.max_stepz 3",
        "torchrl-gpu record --config packing.yaml --episodes many --output demos",
        "torchrl-gpu evaluate --config packing.yaml --model.env.num_envz 3",
        "torchrl-gpu play --config packing.yaml --data.nothing 3",
        "torchrl-gpu export --format csv x.ckpt",
        "torchrl-gpu nothing",
    ],
)
def test_a_wrong_command_line_would_be_noticed(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_parsed: None
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *rest = line.split()
    assert cli.main(rest, program) == 2


SMALL = (
    *("--model.env.num_envs=4", "--model.rollout_steps=4", "--trainer.max_steps=2"),
    *("--data.steps_per_epoch=2", "--data.num_episodes=2", "--data.num_val_episodes=2", "--data.pictures=false"),
)
FIRST_HOUR: dict[str, tuple[str, ...]] = {
    "lightning fit --config packing.yaml": SMALL,
    "lightning fit --config packing.yaml --ckpt_path last --trainer.max_steps 1000": (*SMALL, "--trainer.max_steps=4"),
    "lightning test --config packing.yaml --ckpt_path best --data.sequences my_boxes.json": SMALL,
    "lightning predict --config packing.yaml --ckpt_path best": SMALL,
    "lightning predict --config packing_orders.yaml --data.sequences my_orders.csv": (),
    "torchrl-gpu evaluate bpp10 --protocol discrete125 --visible 3 --sequences mine.json": (
        "--policy=dbl",
        "--timed=0",
    ),
}
"""Command lines of the documentation, in an order in which somebody may type them, and what makes them short."""


def test_the_commands_of_a_first_hour_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(FIRST_HOUR) <= {" ".join(words) for words in COMMANDS}
    monkeypatch.chdir(tmp_path)
    for block in blocks(ROOT / "docs" / "first-hour.md"):
        if block.file:
            (tmp_path / block.file).write_text(block.run_as(), encoding="utf-8")
    (tmp_path / "mine.json").write_text("[[[2, 3, 4], [5, 2, 2]]]")
    for line, more in FIRST_HOUR.items():
        program, *words = line.split()
        assert cli.main([*words, *more], program) in (0, None), line
    run = tmp_path / "runs" / "packing"
    assert (run / "plans.json").is_file()
    assert (run / "tested" / "best-my_boxes" / "evaluation.json").is_file()
