"""Text is UTF-8 wherever it is read or written, whatever the machine's locale."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDERS = ("torchrl_gpu", "benchmarks", "examples", "cloud", "docs")
SUBPROCESS = {"run", "Popen", "check_output", "check_call", "create_subprocess_exec"}


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {each.arg: each.value for each in call.keywords if each.arg is not None}


def mode_of(call: ast.Call, position: int) -> str:
    """Return the mode of an `open`.

    "r" where it is left out, and "b" where it cannot be known.
    """
    given = keywords(call).get("mode")
    if given is None and len(call.args) > position:
        given = call.args[position]
    if given is None:
        return "r"
    known = isinstance(given, ast.Constant) and isinstance(given.value, str)
    return given.value if known else "b"


def wants_encoding(call: ast.Call) -> bool:
    """Whether a call reads or writes text in the encoding of the locale."""
    function, given = call.func, keywords(call)
    if isinstance(function, ast.Name):
        return function.id == "open" and "b" not in mode_of(call, 1)
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr in ("read_text", "write_text"):
        return True
    if function.attr in SUBPROCESS:
        return "text" in given or "universal_newlines" in given
    if function.attr in ("NamedTemporaryFile", "TemporaryFile", "fdopen"):
        return "b" not in mode_of(call, 1 if function.attr == "fdopen" else 0) and ("mode" in given or bool(call.args))
    # Other things have an `open` as well, so that only a mode of text that is written out tells of a file.
    opens = function.attr == "open" and bool(call.args) and not isinstance(function.value, ast.Name)
    return opens and mode_of(call, 0) in ("r", "w", "a", "x", "r+", "w+", "a+", "rt", "wt", "at")


def faults(source: str) -> Iterator[int]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and wants_encoding(node) and "encoding" not in keywords(node):
            yield node.lineno


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_text_file_names_its_encoding(folder: str) -> None:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        lines = faults(path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(ROOT)}:{line}" for line in lines]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "path.read_text()",
        "path.write_text('a')",
        "open('a')",
        "open('a', 'w')",
        "(folder / 'a').open('w')",
        "subprocess.run(words, text=True)",
        "os.fdopen(3, 'w')",
        "tempfile.NamedTemporaryFile('w')",
    ],
)
def test_lint_finds_text_without_an_encoding(source: str) -> None:
    assert list(faults(source)) == [1]
    named = source[:-1] + ", encoding='utf-8')"
    assert list(faults(named.replace("(,", "("))) == []


@pytest.mark.parametrize(
    "source", ["open('a', 'rb')", "av.open(path)", "os.open(path, os.O_RDONLY)", "path.open(mode)"]
)
def test_lint_leaves_bytes_alone(source: str) -> None:
    assert list(faults(source)) == []


@pytest.mark.skipif(os.name == "nt", reason="locales of POSIX")
def test_programs_start_where_the_locale_is_not_utf8(tmp_path: Path) -> None:
    environment = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONIOENCODING", None)
    config = tmp_path / "größe.yaml"
    shipped = (ROOT / "torchrl_gpu/configs/packing.yaml").read_text(encoding="utf-8")
    config.write_text(shipped + "\n# 箱 “quoted”\n", encoding="utf-8")
    words = [sys.executable, "-m", "torchrl_gpu", "fit", "--config", str(config), "--print_config"]
    run = subprocess.run(words, capture_output=True, env=environment, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert b"AfterstateLearning" in run.stdout
