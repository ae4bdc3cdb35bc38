"""Installation of a clone.

Pythons, a compiler where there is none, and packages without wheels.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NO_WHEEL = [{"python_version": "3.14"}, {"platform_machine": "aarch64"}, {"platform_machine": "ARM64"}]


def recipe(goal: str, path: Path, **variables: str) -> str:
    """Commands of `make` on a machine with these programs."""
    words = [shutil.which("make") or pytest.skip("needs make"), "-n", "VENV=" + str(path / "none"), goal]
    environment = {"PATH": str(path)} | variables
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_pythons_of_make_are_those_of_the_package_and_the_readme() -> None:
    listed = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", each) for each in PROJECT["classifiers"]]
    pythons = [found[1] for found in listed if found]
    named = re.search(r"^PYTHONS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named
    assert sorted(named[1].split()) == [f"python{each}" for each in pythons]
    assert f"Python {pythons[0]} to {pythons[-1]}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert PROJECT["requires-python"] == f">={pythons[0]}"


@pytest.mark.skipif(os.name != "posix", reason="make")
def test_make_brings_a_compiler_where_there_is_none(tmp_path: Path) -> None:
    sh = tmp_path / "clang++"
    assert "'.[compiler]'" in recipe("install", tmp_path)
    assert "'.[compiler]'" in recipe("install", tmp_path, CXX="missing -m64")
    sh.write_text("#!/bin/sh\n")
    sh.chmod(0o755)
    assert "'.'" in recipe("install", tmp_path)
    assert "'.'" in recipe("install", tmp_path, CXX=f"{sh} -m64")


def test_cyclonedds_is_asked_for_where_it_has_wheels() -> None:
    requirements = [Requirement(words) for words in PROJECT["optional-dependencies"]["ros2"]]
    by_name = {each.name: each for each in requirements}
    found = by_name["cyclonedds"]
    assert found.marker is not None
    usual = {"python_version": "3.13", "platform_machine": "x86_64"}
    assert found.marker.evaluate(usual)
    # Apple's machines.
    assert found.marker.evaluate(usual | {"platform_machine": "arm64"})
    assert not any(found.marker.evaluate(usual | changed) for changed in NO_WHEEL)


def test_every_package_has_a_lowest_version_and_make_lowest_takes_it() -> None:
    extras = PROJECT["optional-dependencies"]
    for words in chain(PROJECT["dependencies"], *extras.values()):
        found = Requirement(words)
        assert found.name == PROJECT["name"] or any(each.operator == ">=" for each in found.specifier), words
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    named = re.search(r"^LOWEST_EXTRAS := (.*)$", makefile, re.MULTILINE)
    assert named
    assert {*named[1].split(), "genesis"} == set(extras)
