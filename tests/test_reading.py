"""The lint of how the code reads, and the faults that each room still has."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests import reading

FOLDS = {
    "names from a comprehension": "a, b = (f(x) for x in y)",
    "three assignments": "a, b, c = 1, 2, 3",
    "a chain of assignments": "a = b = c = 1",
    "a conditional in another": "a = 1 if b else 2 if c else 3",
    "two loops": "a = [x for y in z for x in y]",
    "a comprehension in another": "a = [[x for x in y] for y in z]",
    "a walrus in a call": "f(a := 1)",
    "a long statement": f"a = f({', '.join(f'b{i}' for i in range(40))})",
}
UNFOLDED = (
    "a, b = b, a",
    "a, b = f()",
    "a = [x for x in y]",
    "a = 1 if b else 2",
    "if a := f():\n    pass",
    "while a := f():\n    pass",
)
STAY = (
    "(T, k, R)",
    "(N, T), seconds",
    "(N, K, O)",
    "(N,) int64",
    "(N, X, Y) metres",
    "metres",
    "kg",
    "bytes a second",
    "(N, T), seconds",
    "noqa: E501",
    "fmt: skip",
)
LEAVE = ("likewise", "of the run before", "what is kept", "(see above) of whatever id")


def kinds_of(source: str, tmp_path: Path) -> list[str]:
    path = tmp_path / "source.py"
    path.write_text(source, encoding="utf-8")
    return [fault.kind for fault in reading.faults_of(path)]


@pytest.mark.parametrize("source", FOLDS.values(), ids=FOLDS)
def test_lint_finds_fold(source: str, tmp_path: Path) -> None:
    assert kinds_of(source, tmp_path) == ["fold"]


@pytest.mark.parametrize("source", UNFOLDED)
def test_lint_accepts_unfolded_statement(source: str, tmp_path: Path) -> None:
    assert kinds_of(source, tmp_path) == []


@pytest.mark.parametrize("comment", LEAVE)
def test_lint_finds_sentence_behind_code(comment: str, tmp_path: Path) -> None:
    assert kinds_of(f"a = 1  # {comment}\n", tmp_path) == ["fragment"]


@pytest.mark.parametrize("comment", STAY)
def test_lint_accepts_shapes_units_and_pragmas_behind_code(comment: str, tmp_path: Path) -> None:
    assert kinds_of(f"a = 1  # {comment}\n", tmp_path) == []


def test_lint_accepts_sentence_above_code(tmp_path: Path) -> None:
    assert kinds_of("# The reason why.\na = 1\n", tmp_path) == []


def test_lint_finds_first_lines_that_are_long_or_two_thoughts(tmp_path: Path) -> None:
    assert kinds_of('"""One thought; another."""\n', tmp_path) == ["first line"]
    assert kinds_of(f'"""{"a" * 81}"""\n', tmp_path) == ["first line"]
    assert kinds_of('"""One thought.\n\nAnother; and another.\n"""\n', tmp_path) == []


def test_lint_finds_any_and_dialect(tmp_path: Path) -> None:
    assert kinds_of("def f(a: Any) -> None: ...\n", tmp_path) == ["any"]
    assert kinds_of(f"raise ValueError('{'want'} a file; got none')\n", tmp_path) == ["dialect"]
    assert kinds_of("raise ValueError('invalid JSON: what you want is got wrong')\n", tmp_path) == []


def test_size_of_statement_leaves_out_statements_within() -> None:
    outer = ast.parse("if a:\n    b = f(c, d, e)\n").body[0]
    assert isinstance(outer, ast.If)
    assert reading.nodes_of(outer) == 3
    assert reading.nodes_of(outer.body[0]) > 3


def test_more_faults_than_a_room_may_have_are_told() -> None:
    lines = reading.excess({"torchrl_gpu/envs": {"fold": 3, "any": 1}}, {"torchrl_gpu/envs": {"fold": 2, "any": 1}})
    assert len(lines) == 1
    assert "torchrl_gpu/envs: 3 of kind fold, 2 allowed" in lines[0]


def test_no_room_has_more_faults_than_before() -> None:
    found = reading.counts_of(reading.faults_in(reading.ROOT / part for part in reading.PARTS))
    allowed = json.loads(reading.COUNTS.read_text(encoding="utf-8"))
    assert not reading.excess(found, allowed)
