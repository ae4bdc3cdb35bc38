"""Files, tests, goals of make and options that the documentation names are there."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from lightning.pytorch import Trainer

from tests.docs.snippets import PAGES, ROOT, blocks
from torchrl_gpu.cli.parser import OPTIONS

# Decisions tell of what was there when they were made.
NOW = [page for page in PAGES if page.parent.name != "decisions"]
SOURCES = ("torchrl_gpu", "tests", "examples", "benchmarks", "docs")
# These are options of docker and torchrun.
OF_OTHERS = {"shm-size", "nnodes", "rdzv-endpoint"}
PATHS = chain.from_iterable((ROOT / folder).rglob("*.*") for folder in SOURCES)
FILES = {f"/{path.relative_to(ROOT)}" for path in PATHS}
TEXT = "\n".join((ROOT / path[1:]).read_text(encoding="utf-8") for path in FILES if path.endswith(".py"))
GOALS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def words(page: Path) -> Iterator[str]:
    """Words between backticks in the sentences of a page."""
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for found in re.findall(r"`([^`]+)`", prose):
        yield " ".join(found.split())


def missing(word: str, page: Path) -> str:
    """Return the thing that a word names and that does not exist.

    Empty where all exist.
    """
    made = {block.file for block in blocks(page)}
    for name, test in re.findall(r"([\w./-]+\.(?:py|cpp|h))\b(?:::(\w+))?", word):
        found = [path for path in FILES if path.endswith(f"/{name}")]
        if not found and name not in made and "/" not in name.partition("://")[2]:
            return name
        if test and not any(f"def {test}(" in (ROOT / path[1:]).read_text(encoding="utf-8") for path in found):
            return f"{name}::{test}"
    if word.startswith("make ") and word.split()[1] not in GOALS:
        return word
    option = re.match(r"--([a-z][\w.-]*)", word)
    return f"--{option[1]}" if option and not is_option(option[1].rstrip(".")) else ""


@functools.cache
def is_option(name: str) -> bool:
    """Tell whether a word is an option of some program.

    An option of a config is known by its last part, which some constructor must take.
    """
    head, last = name.partition(".")[0], name.rpartition(".")[2]
    if head == "trainer":
        return last in {*inspect.signature(Trainer).parameters, "trainer"} or f"{last}:" in TEXT
    if head in ("model", "data"):
        return last == head or re.search(rf"\b{last}: ", TEXT) is not None
    return head in {*OPTIONS, *OF_OTHERS} or f'"--{name}"' in TEXT or f'"{name}"' in TEXT


@pytest.mark.parametrize("page", NOW, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page: Path) -> None:
    names = [missing(word, page) for word in words(page)]
    assert [name for name in names if name] == []


@pytest.mark.parametrize(
    "word",
    [
        "tests/training/test_gone.py",
        "web/test_routes.py::test_gone",
        "make gone",
        "--" + "-".join(("never", "there")),
        "--model.env.gone",
    ],
)
def test_what_is_gone_would_be_noticed(word: str) -> None:
    assert missing(word, PAGES[0])
