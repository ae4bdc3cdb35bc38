"""The blocks of code in the documentation, and how a test runs them.

The comments before the blocks say how.

A comment `<!-- test: … -->` stands right before a block, where readers do not see it:

- `<!-- test: not run: WHY -->`: nobody runs this block;
- `<!-- test: file NAME -->`: it is the content of a file that later blocks of the page need;
- `<!-- test: with OLD -> NEW; OLD -> NEW -->`: what is written smaller or elsewhere;
- `<!-- test: after` and lines of Python up to `-->`: what the block takes for granted.

Several may stand before one block. The blocks of a page share their names, in order.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_COMMENT = re.compile(r"<!-- test: (.*?)\s*-->\n?", re.DOTALL)
_BLOCK = re.compile(
    r"(?P<comments>(?:^<!-- test: (?:(?!-->).)*-->\n)*)^(?P<indent> *)```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass
class Block:
    """A block of code.

    Attributes:
        page: File that it stands in.
        line: Line of the page at which its text begins.
        kind: "python", "bash", "yaml", or "" where the page does not say.
        text: Text as the reader sees it.
        skipped: Why nobody runs it. None where somebody does.
        file: Name of the file that it is the content of.
        before: Python that runs before it.
        replaced: Pairs of texts, where the second takes the place of the first when the block is run.
    """

    page: Path
    line: int
    kind: str
    text: str
    skipped: str | None = None
    file: str | None = None
    before: str = ""
    replaced: list[tuple[str, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Page and line."""
        return f"{self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page.name}:{self.line}"

    def run_as(self) -> str:
        """Return the text as a test runs it.

        ValueError where text to be replaced is missing.
        """
        text = self.text
        for old, new in self.replaced:
            if old not in text:
                raise ValueError(f"{self.name}: {old!r} is not in the block; name what it holds")
            text = text.replace(old, new)
        return text


def blocks(page: Path, text: str | None = None) -> list[Block]:
    """The blocks of a page in their order.

    The page's text is read from its file by default.

    ValueError where a comment says something else than what stands above, or stands before no block.
    """
    text = page.read_text(encoding="utf-8") if text is None else text
    found, attached = [], 0
    for match in _BLOCK.finditer(text):
        block = Block(page, text.count("\n", 0, match.start("text")) + 1, match["kind"], match["text"])
        for comment in _COMMENT.finditer(match["comments"]):
            attached += 1
            _apply(block, comment[1])
        found.append(block)
    written = len(re.findall(r"^<!-- test:", text, re.MULTILINE))
    if attached != written:
        raise ValueError(
            f"{page.name}: {written - attached} test comments do not stand right before a block; move them there"
        )
    return found


def _apply(block: Block, comment: str) -> None:
    word, _, rest = comment.partition(" ") if not comment.startswith("after\n") else ("after", "", comment[6:])
    if comment.startswith("not run: ") and len(comment) > 20:
        block.skipped = comment.removeprefix("not run: ")
    elif word == "file" and re.fullmatch(r"[\w.]+", rest):
        block.file = rest
    elif word == "with" and "->" in rest:
        pairs = (pair.split("->") for pair in rest.split(";"))
        block.replaced += [(old.strip(), new.strip()) for old, new in pairs]
    elif word == "after" and rest:
        block.before += rest + "\n"
    else:
        raise ValueError(
            f"{block.name}: {comment[:60]!r} is no known kind of test comment; see the first lines of this module"
        )


def commands(block: Block) -> list[list[str]]:
    """The command lines of a block, without comments, continued lines as one."""
    lines = block.text.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines]
    return [words for words in commands if words]
