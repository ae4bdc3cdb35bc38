"""Lint of how the code reads.

`python tests/reading.py PATHS` prints the faults of files and folders. Without paths it compares the whole project with
`reading_counts.json`, which holds how many faults of each kind a room may have: the numbers only fall. `--record`
writes the counts of now, `--measure` prints the sizes of statements and sentences.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COUNTS = Path(__file__).with_name("reading_counts.json")
PARTS = ("torchrl_gpu", "tests", "benchmarks", "examples")

LONGEST_FIRST_LINE = 80
MOST_NODES = 60
MOST_ASSIGNMENTS = 2

# A trailing comment that stays behind its code: a shape, a unit, or a word to a tool.
_TYPES = "bool|uint8|int32|int64|float16|bfloat16|float32|float64"
_AXIS = r"[^\s,()]{1,9}"
_SHAPE = re.compile(rf"\((?=.*[,A-Z0-9…])({_AXIS}(, ?{_AXIS})*,?)?\)( ({_TYPES}))?(,? [a-zµ/²]+)?$")
_UNITS = (
    "metres metre mm cm m kg kilograms grams cells bytes KiB MiB GiB kB MB GB pixels seconds s ms milliseconds ns "
    "microseconds µs minutes hours radians degrees rad m/s m/s² rad/s N newtons Nm percent bits frames hertz Hz FPS dB"
)
_UNIT = re.compile("(" + "|".join(re.escape(unit) for unit in _UNITS.split()) + r")( a second| per second)?[.,]?$")
_PRAGMA = re.compile(r"(noqa|type:|pragma:|fmt:|pyright:|mypy:|ruff:|isort:)")

# Messages of a form that only this project has.
_WISH = "want"
_DIALECT = re.compile(rf"(^|[^a-z]){_WISH} [^;]*; got|^{_WISH} |: {_WISH} ")

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)


class Fault(NamedTuple):
    """A place that does not read well.

    Attributes:
        path: Of the file.
        line: From 1.
        kind: "fold", "first line", "fragment", "any" or "dialect".
        what: For a person.
    """

    path: Path
    line: int
    kind: str
    what: str


def faults_of(path: Path) -> Iterator[Fault]:
    """All faults of a file."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for line, what in _folds(node):
            yield Fault(path, line, "fold", what)
        for line, what in _first_lines(node):
            yield Fault(path, line, "first line", what)
        if isinstance(node, ast.Name) and node.id == "Any":
            yield Fault(path, node.lineno, "any", "Any")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _DIALECT.search(node.value):
            yield Fault(path, node.lineno, "dialect", f'"{node.value}": say what is wrong and what to do')
    for line, comment in _trailing_comments(source):
        if not _stays_behind(comment):
            yield Fault(path, line, "fragment", f'"{comment}" stands behind the code: a sentence above it')


def _folds(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Statements that ask a reader to hold too much at once."""
    if isinstance(node, ast.Assign):
        yield from _packed_assignments(node)
    if isinstance(node, ast.IfExp) and _has_conditional(node):
        yield node.lineno, "a conditional expression in another: if with returns"
    if isinstance(node, _COMPREHENSIONS):
        if len(node.generators) > 1:
            yield node.lineno, "two loops in one comprehension: a loop, or a function for the inner one"
        if _has_comprehension(node):
            yield node.lineno, "a comprehension in another: a function for the inner one"
    if isinstance(node, ast.stmt) and not isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
        nodes = nodes_of(node)
        if nodes > MOST_NODES:
            yield node.lineno, f"a statement of {nodes} nodes, more than {MOST_NODES}: name its parts"
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.NamedExpr) and not _tests(node, child):
            yield child.lineno, "a walrus in an expression that does something else: a statement before it"


def _packed_assignments(node: ast.Assign) -> Iterator[tuple[int, str]]:
    """Several names in one assignment, from a comprehension or from as many values."""
    if len(node.targets) > MOST_ASSIGNMENTS:
        yield node.lineno, f"{len(node.targets)} assignments in one statement: a line each"
    for target in node.targets:
        if not isinstance(target, (ast.Tuple, ast.List)):
            continue
        if isinstance(node.value, _COMPREHENSIONS):
            yield node.lineno, "names unpacked from a comprehension: a line each"
        values = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else []
        if len(values) > MOST_ASSIGNMENTS:
            yield node.lineno, f"{len(values)} assignments in one statement: a line each"


def _has_conditional(node: ast.IfExp) -> bool:
    return any(isinstance(each, ast.IfExp) for each in (node.test, node.body, node.orelse))


def _has_comprehension(node: ast.AST) -> bool:
    return any(isinstance(each, _COMPREHENSIONS) for each in ast.walk(node) if each is not node)


def _tests(node: ast.AST, child: ast.NamedExpr) -> bool:
    """Whether a walrus is all that an `if` or `while` tests."""
    return isinstance(node, (ast.If, ast.While)) and node.test is child


def nodes_of(statement: ast.stmt) -> int:
    """Syntax nodes of a statement, without those of statements within it."""
    count = 0
    left: list[ast.AST] = [statement]
    while left:
        node = left.pop()
        count += 1
        left += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    return count


def _first_lines(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The first line of a docstring, where it is long or two thoughts."""
    docstring = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
    if docstring is None:
        return
    first = docstring.splitlines()[0]
    line = node.body[0].lineno  # type: ignore[attr-defined]
    if len(first) > LONGEST_FIRST_LINE:
        yield line, f"a first line of {len(first)} characters, more than {LONGEST_FIRST_LINE}: one thought"
    if ";" in first:
        yield line, "a first line with a semicolon: one thought"


def _trailing_comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments that stand behind code, without their sign."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, column = token.start
        if lines[line - 1][:column].strip():
            yield line, token.string.lstrip("# ").rstrip()


def _stays_behind(comment: str) -> bool:
    return any(form.match(comment) for form in (_SHAPE, _UNIT, _PRAGMA))


def room_of(path: Path) -> str:
    """The room of a file: two folders, or three where the first holds the package."""
    parts = path.resolve().relative_to(ROOT).parts[:-1]
    depth = 3 if parts[:2] in {("torchrl_gpu", "envs"), ("torchrl_gpu", "policies")} else 2
    return "/".join(parts[:depth])


def python_files(paths: Iterable[Path]) -> list[Path]:
    """Python files of folders, and files that are named."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def counts_of(faults: Iterable[Fault]) -> dict[str, dict[str, int]]:
    """How many faults of each kind a room has."""
    counts: dict[str, Counter[str]] = {}
    for fault in faults:
        counts.setdefault(room_of(fault.path), Counter())[fault.kind] += 1
    return {room: dict(sorted(counts[room].items())) for room in sorted(counts)}


def excess(counts: dict[str, dict[str, int]], allowed: dict[str, dict[str, int]]) -> list[str]:
    """One line for each room and kind that has more faults than it may."""
    lines = []
    for room, kinds in counts.items():
        for kind, count in kinds.items():
            most = allowed.get(room, {}).get(kind, 0)
            if count > most:
                lines.append(f"{room}: {count} of kind {kind}, {most} allowed; python tests/reading.py {room}")
    return lines


class Measures:
    """Sizes of statements, first lines and comments of some files."""

    def __init__(self) -> None:
        self.nodes: list[int] = []
        self.first_lines: list[str] = []
        self.num_comments = 0
        self.num_lines = 0

    def add(self, source: str) -> None:
        """Count one file."""
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, _DOCUMENTED):
                docstring = ast.get_docstring(node)
                self.first_lines += docstring.splitlines()[:1] if docstring else []
            elif isinstance(node, ast.stmt) and not isinstance(node, (ast.Import, ast.ImportFrom)):
                self.nodes.append(nodes_of(node))
        for line in source.splitlines():
            if line.strip().startswith("#"):
                self.num_comments += 1
            elif line.strip():
                self.num_lines += 1

    def __str__(self) -> str:
        """One line for a person."""
        nodes = sorted(self.nodes)
        median = nodes[len(nodes) // 2]
        ninth_decile = nodes[len(nodes) * 9 // 10]
        length = statistics.median(map(len, self.first_lines))
        semicolons = sum(";" in line for line in self.first_lines) / len(self.first_lines)
        comments = 100 * self.num_comments / self.num_lines
        return (
            f"{self.num_lines:,} lines; nodes of a statement {median} and {ninth_decile} (median, ninth decile); "
            f"first lines {length:.0f} characters, {semicolons:.1%} with a semicolon; "
            f"{comments:.1f} comments on lines of their own in 100"
        )


def faults_in(paths: Iterable[Path]) -> list[Fault]:
    """All faults of files and folders."""
    found: list[Fault] = []
    for path in python_files(paths):
        found += faults_of(path)
    return found


def main() -> int:
    """Print faults, and fail where a room has more than it may."""
    parser = argparse.ArgumentParser(prog="python tests/reading.py", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders whose faults are printed")
    parser.add_argument("--record", action="store_true", help="write the counts of now")
    parser.add_argument("--measure", action="store_true", help="print sizes of statements and sentences")
    given = parser.parse_args()
    everything = [ROOT / part for part in PARTS]
    if given.measure:
        for path in given.paths or everything:
            measures = Measures()
            for file in python_files([path]):
                measures.add(file.read_text(encoding="utf-8"))
            print(f"{path.name}: {measures}")
        return 0
    if given.paths:
        for fault in faults_in(given.paths):
            print(f"{fault.path}:{fault.line}: {fault.kind}: {fault.what}")
        return 0
    found = counts_of(faults_in(everything))
    if given.record:
        COUNTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    lines = excess(found, json.loads(COUNTS.read_text(encoding="utf-8")))
    print("\n".join(lines) or "no room has more faults than it may")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
