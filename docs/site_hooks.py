"""Hooks of MkDocs: links of the pages to other files of the repository work on the site as they do on a code host."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
DECISIONS = "decisions/README.md"
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")
_PAGE = re.compile(r"\.md$")


def outside(page: str, link: str) -> str | None:
    """Path in the repository of what a page below `docs` links to; None for what is below `docs` itself."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith(("docs/", "../")) else path


def on_files(files: Any, config: Any) -> Any:
    """Adds the files elsewhere in the repository that pages link to, under `repository/`."""
    linked = set()
    for page in files.documentation_pages():
        text = Path(page.abs_src_path).read_text(encoding="utf-8")
        linked |= {outside(page.src_uri, found[2]) for found in _LINK.finditer(text)}
    for path in sorted(filter(None, linked)):
        if (ROOT / path).is_file() and not _PAGE.search(path):
            files.append(File.generated(config, f"repository/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lets those links point there, and lists the decisions on the page about them."""
    here = posixpath.dirname(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        path = outside(page.file.src_uri, found[2])
        if path is None or files.get_file_from_path(f"repository/{path}") is None:
            return found[0]
        return found[1] + posixpath.relpath(f"repository/{path}", here or ".")

    markdown = _LINK.sub(moved, markdown)
    if page.file.src_uri == DECISIONS:
        markdown += "".join(f"- [{title}]({name})\n" for name, title in _decisions())
    return markdown


def _decisions() -> list[tuple[str, str]]:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    return [(page.name, page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")) for page in pages]
