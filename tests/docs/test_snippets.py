"""Every block of code in the README and the documentation is run.

Or it says before it why not.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.snippets import PAGES, ROOT, Block, blocks
from torchrl_gpu.streaming import StreamServer


def has_python(page: Path) -> bool:
    return any(block.kind == "python" for block in blocks(page))


WITH_PYTHON = list(filter(has_python, PAGES))
KINDS = {"python", "bash", "yaml", "text", "toml"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in.

    Modules that are imported from it are forgotten afterwards.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def run(block: Block, names: dict[str, object]) -> None:
    """Run a block.

    Errors and asserts point to the line of the page.
    """
    for text, offset in ((block.before, 0), (block.run_as(), block.line - 1)):
        tree = ast.parse(text, str(block.page))
        exec(compile(ast.increment_lineno(tree, offset), str(block.page), "exec"), names)


# The page means it so.
@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_runs(page: Path, folder: Path) -> None:
    names: dict[str, object] = {"__name__": "page"}
    try:
        for block in blocks(page):
            if block.file:
                (folder / block.file).write_text(block.run_as(), encoding="utf-8")
            if block.kind == "python" and block.skipped is None:
                run(block, names)
    finally:
        for each in names.values():
            if isinstance(each, StreamServer):
                each.stop()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        assert block.kind in KINDS, f"{block.name}: {block.kind or 'no kind'}"
        # A test that a reason names exists.
        if block.skipped is not None:
            for path in re.findall(r"tests/[\w/.]+\.py", block.skipped):
                assert (ROOT / path).is_file(), f"{block.name}: {path}"


def test_comments_say_how_a_block_is_run() -> None:
    page = Path("page.md")
    text = "<!-- test: after\nx = 1\n-->\n<!-- test: with 1024 -> 8; a -> b -->\n```python\na = 1024\n```\n"
    (block,) = blocks(page, text)
    assert (block.before, block.run_as(), block.line) == ("x = 1\n", "b = 8\n", 6)
    (block,) = blocks(page, "<!-- test: not run: needs a robot to move -->\n```python\n```\n")
    assert block.skipped == "needs a robot to move"
    (block,) = blocks(page, "<!-- test: file point.py -->\n```python\n```\n")
    assert block.file == "point.py"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- test: not run: no -->\n```python\n```\n",
        "<!-- test: skip -->\n```python\n```\n",
        "<!-- test: file ../x -->\n```python\n```\n",
        "<!-- test: not run: needs a robot to move -->\n\nsome text\n```python\n```\n",
    ],
)
def test_other_comments_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="test comment"):
        blocks(Path("page.md"), text)


def test_what_is_to_be_replaced_is_there() -> None:
    (block,) = blocks(Path("page.md"), "<!-- test: with 7 -> 8 -->\n```python\nx = 1\n```\n")
    with pytest.raises(ValueError, match=r"page\.md:3: '7'"):
        block.run_as()


def test_a_block_that_fails_points_to_its_line() -> None:
    (block,) = blocks(Path("page.md"), "text\n\n```python\nx = 1\nx / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        run(block, {})
    # Counted from zero: the page's fifth line.
    assert caught.traceback[-1].lineno == 4
