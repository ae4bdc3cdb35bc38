"""The documentation site.

It is built without a warning, and has every page and every public name.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.snippets import PAGES

pytest.importorskip("mkdocs", reason="the extra docs brings it")
API = sorted((ROOT / "docs" / "api").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    made = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in PAGES[1:]:
        name = page.relative_to(ROOT / "docs").with_suffix("")
        home = name.parent if name.name in ("index", "README") else name
        assert (site / home / "index.html").is_file(), name


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r"""<(?:script|img|link)[^>]*(?:src|href)=["']https?://""", text)


def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = re.sub(r"<pre.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"""<(?:a|img)\b[^>]*?(?:src|href)=["']([^"'#?]+)""", text):
            if not re.match(r"[a-z]+:|/", link):
                assert (page.parent / link).exists(), f"{page.relative_to(site)}: {link}"


def test_results_are_part_of_it(site: Path) -> None:
    page = (site / "performance" / "index.html").read_text(encoding="utf-8")
    link = re.search(r'href="(\.\./repository/benchmarks/results/kernels\.json)"', page)
    assert link
    told = (site / "performance" / link[1]).resolve().read_bytes()
    assert told == (ROOT / "benchmarks" / "results" / "kernels.json").read_bytes()


def test_the_decisions_are_listed(site: Path) -> None:
    page = (site / "decisions" / "index.html").read_text(encoding="utf-8")
    for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"):
        assert f"../decisions/{path.stem}/" in page or f'href="{path.stem}/"' in page


def test_comments_for_tests_are_not_shown(site: Path) -> None:
    for path in site.rglob("index.html"):
        shown = re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert "test: after" not in shown, path


@pytest.mark.parametrize("page", API, ids=lambda page: page.stem)
def test_every_public_name_is_in_the_api(page: Path) -> None:
    module = importlib.import_module(f"torchrl_gpu.{page.stem}")
    listed = re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(path.rpartition(".")[2] for path in listed) == sorted(module.__all__)
    for path in listed:
        home, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(home), name) is getattr(module, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_on_a_code_host(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"(?<!`)\]\(([^)\s]+)\)", text):
        if not link.startswith(("http://", "https://", "#", "mailto:")):
            assert (page.parent / link.partition("#")[0]).exists(), link
