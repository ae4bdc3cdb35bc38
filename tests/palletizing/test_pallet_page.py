"""The page of a pallet in a browser, on a desk and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streaming.web.browser.conftest import driver, page
from tests.streaming.web.browser.page import Page
from torchrl_gpu.palletizing import pack

__all__ = ["driver", "page"]

pytestmark = pytest.mark.browser

LIST = """order,article,length_mm,width_mm,height_mm,qty,weight_kg
4711,soap,400,300,240,9,5
4711,towels,300,300,200,2,3
An order with a name that is far too long for the first column of a table on a phone,soap,400,300,240,1,5
Without-any-space-in-a-name-that-is-far-too-long-for-a-phone-0123456789-0123456789,soap,400,300,240,1,5
"""
WIDTH = "return document.documentElement.scrollWidth"
HEADINGS = 'return [...document.querySelectorAll("#list th")].map(cell => cell.textContent)'
ROWS = 'return [...document.querySelectorAll("#list tbody tr")].map(row => [...row.cells].map(c => c.textContent))'
LAYERS = 'return [...document.querySelectorAll("#layers li")].map(item => item.textContent)'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.csv").write_text(LIST, encoding="utf-8")
    return pack(tmp_path / "orders.csv", "eur", turns="fixed", device="cpu").write(tmp_path / "plan")


def test_page_says_which_side_is_at_the_front(page: Page, folder: Path) -> None:
    page.open((folder / "pallet-0001-4711-1.html").as_uri())
    column = page.run(HEADINGS).index("front")
    rows = page.run(ROWS)
    sides = {"soap": "long side", "towels": "equal sides"}
    assert [row[column] for row in rows] == [sides[row[1]] for row in rows]
    assert {row[1] for row in rows} == set(sides)
    lines = page.run(LAYERS)
    assert any(line.endswith("soap: height up, long side to the front") for line in lines)
    assert any(line.endswith("towels: height up, any side to the front") for line in lines)
    page.run("show(1)")
    assert page.run('return document.getElementById("told").textContent').endswith("up, long side to the front")
    assert not page.driver.get_log("browser")


@pytest.mark.parametrize("width", [1440, 390])
def test_pages_are_no_wider_than_the_window(page: Page, folder: Path, width: int) -> None:
    page.resize(width, 900)
    for name in ("index.html", "pallet-0001-4711-1.html"):
        page.open((folder / name).as_uri())
        assert page.run(WIDTH) == width, name


def test_index_opens_every_file_and_pallet(page: Page, folder: Path) -> None:
    page.open((folder / "index.html").as_uri())
    links = page.run('return [...document.querySelectorAll("a")].map(link => link.getAttribute("href"))')
    assert len(links) == len(set(links))
    assert {folder / link for link in links} == set(folder.iterdir()) - {folder / "index.html"}
    rows = page.run(
        'return [...document.querySelectorAll("tbody tr")].map(row => [...row.cells].map(c => c.textContent))'
    )
    assert rows[0] == ["4711", "1 of 1", "11", "51.0", rows[0][4]]
    assert len(rows) == 3
