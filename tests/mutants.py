"""Mutation check: faults planted one at a time in the lines that matter, each of which some test must notice.

    python tests/mutants.py                     # all of them
    python tests/mutants.py --only target_tau   # some of them
    python tests/mutants.py --list              # where each would be planted; runs nothing

The mutants are in `faults`. One names no module, only text that stands once in the package, so that it survives moves;
one whose text is not there any more, or there twice, is reported as "to be planted anew". One that no test can notice
says why, see `Mutant.equivalent`. The exit status is 0 only if all others died.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import pytest
from faults import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("torchrl_gpu", "tests", "docs", "examples", "benchmarks", "setup.cfg", "pyproject.toml", "README.md")
PRELOADED = ("torch", "torchvision", "tensordict.nn", "torchrl.envs", "torchrl.modules", "torchrl.objectives")
PRELOADED += ("lightning.pytorch.cli", "segmentation_models_pytorch", "aiohttp.web", "av", "cv2", "rich.table")
DIED, LIVED, ANEW, UNTESTED, BROKEN = "died", "LIVED", "to be planted anew", "NO TESTS", "BROKEN"
EQUIVALENT = "is equivalent"


@dataclass(frozen=True)
class Result:
    """Outcome of a mutant: which test noticed it first, after how many seconds."""

    name: str
    outcome: str
    seconds: float = 0.0
    module: str = ""
    noticed_by: str = ""


def place(mutant: Mutant, tree: Path) -> tuple[Path, str, str] | None:
    """Module in which a mutant is planted, with what it holds before and after; None where it cannot be."""
    modules = {path: path.read_text() for path in sorted((tree / "torchrl_gpu").rglob("*.py"))}
    for old, new in mutant.changes:
        holding = [path for path, text in modules.items() if old in text]
        if len(holding) == 1 and modules[holding[0]].count(old) == 1:
            text = modules[holding[0]]
            return holding[0], text, text.replace(old, new)
    return None


def tests_of(mutant: Mutant, tree: Path) -> list[str] | None:
    """Paths of a mutant's tests in a tree; None if one is not there under any folder, or under several."""
    paths = []
    for name in mutant.tests:
        here = tree / "tests" / name
        found = [here] if here.exists() else sorted((tree / "tests").rglob(Path(name).name))
        if len(found) != 1:
            return None
        paths.append(str(found[0].relative_to(tree)))
    return paths


def run_tests(tree: Path, tests: Sequence[str], k: str, timeout_s: float) -> tuple[int, str]:
    """Exit status of pytest over a tree, and what it printed; 1 where it takes longer than `timeout_s`."""
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-n", "0", *tests, *(["-k", k] if k else [])]
    arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]  # by `preload`
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if not child:
            _become_pytest(tree, arguments, output.fileno())
        end, status, late = time.monotonic() + timeout_s, None, ""
        while status is None:
            done, code = os.waitpid(child, os.WNOHANG)
            if done:
                status = os.waitstatus_to_exitcode(code)
            elif time.monotonic() > end:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                status, late = 1, f"\nFAILED after {timeout_s:.0f} s"
            else:
                time.sleep(0.05)
        output.seek(0)
        return status, output.read() + late


def _become_pytest(tree: Path, arguments: list[str], output: int) -> NoReturn:
    """Goes on as pytest in a tree, which is what is imported here and in every child process."""
    status = 3
    try:
        os.setsid()  # so that processes that tests start can be ended with them
        os.chdir(tree)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path[0] = str(tree)
        vars(sys.modules["__main__"]).pop("__file__", None)  # which processes that tests start would run
        spec = importlib.util.find_spec("torchrl_gpu")
        assert spec is not None
        assert spec.origin == str(tree / "torchrl_gpu" / "__init__.py"), spec.origin
        status = int(pytest.main(arguments))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def preload() -> None:
    """Imports what takes seconds, so that every run of tests, a fork of this process, has it at once."""
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path[:] = [each for each in sys.path if Path(each).resolve() != ROOT / "tests"]  # whose `examples` is another
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def write(path: Path, text: str) -> None:
    """Writes a module, of which no compiled copy may be taken for the new one."""
    path.write_text(text)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def check(mutant: Mutant, tree: Path, passing: dict[tuple[str, ...], bool], timeout_s: float) -> Result:
    """Plants a mutant in a tree, runs its tests and takes it out again.

    Args:
        mutant: The mutant.
        tree: A copy of the repository.
        passing: Selections of tests that have been run on the tree as it is, and whether they pass; added to.
        timeout_s: Of one run of tests.
    """
    planted, tests = place(mutant, tree), tests_of(mutant, tree)
    if planted is None:
        return Result(mutant.name, ANEW)
    module, before, after = planted
    where = str(module.relative_to(tree))
    if tests is None:
        return Result(mutant.name, UNTESTED, module=where)
    selection = (*tests, mutant.k)
    if selection not in passing:
        status, said = run_tests(tree, tests, mutant.k, timeout_s)
        passing[selection] = status == 0
        if status:
            print(said[-3000:], flush=True)
    if not passing[selection]:
        return Result(mutant.name, UNTESTED, module=where)
    begin = time.perf_counter()
    write(module, after)
    try:
        status, said = run_tests(tree, tests, mutant.k, timeout_s)
    finally:
        write(module, before)
    first = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", said, re.MULTILINE)
    lived = EQUIVALENT if mutant.equivalent else LIVED
    outcome = {0: lived, 1: DIED}.get(status, BROKEN)
    return Result(mutant.name, outcome, round(time.perf_counter() - begin, 1), where, first[1] if first else "")


def copy_tree(to: Path) -> None:
    """Copies what the tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy(ROOT / name, to / name)


def main() -> int:
    """Checks the mutants; 0 if all of them died."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[mutant.name for mutant in MUTANTS])
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    parser.add_argument("--list", action="store_true", help="print where each would be planted")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for the tests of one mutant")
    args = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if args.only is None or mutant.name in args.only]
    if args.list:
        for mutant in chosen:
            planted = place(mutant, ROOT)
            print(f"{mutant.name:40} {planted[0].relative_to(ROOT) if planted else ANEW}  {tests_of(mutant, ROOT)}")
        return 0
    results: list[Result] = []
    passing: dict[tuple[str, ...], bool] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder).resolve()
        copy_tree(tree)
        preload()
        for mutant in chosen:
            result = check(mutant, tree, passing, args.timeout)
            results.append(result)
            print(f"{result.name:40} {result.outcome:18} {result.seconds:6.1f} s  {result.noticed_by}", flush=True)
    outcomes = DIED, EQUIVALENT, LIVED, ANEW, UNTESTED, BROKEN
    counts = {outcome: n for outcome in outcomes if (n := _count(results, outcome))}
    print(f"{len(results)} mutants: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.items()))
    if args.output is not None:
        args.output.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    return 0 if set(counts) <= {DIED, EQUIVALENT} else 1


def _count(results: Sequence[Result], outcome: str) -> int:
    return sum(result.outcome == outcome for result in results)


if __name__ == "__main__":
    sys.exit(main())
