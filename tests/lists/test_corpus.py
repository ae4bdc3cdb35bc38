"""Lists of real systems are read right, or leave a question."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.lists.corpus import CASES, Box, Case
from torchrl_gpu.lists.box_list import BoxList
from torchrl_gpu.lists.reading import ListOptions, read_list
from torchrl_gpu.lists.units import LENGTHS


def options_of(case: Case) -> ListOptions:
    given = dict(case.options)
    columns = dict(part.split("=") for part in str(given.pop("columns", "")).split(",") if part)
    return ListOptions(columns=columns, **given)  # type: ignore[arg-type]


def rows_of(found: BoxList) -> list[Box]:
    """Boxes of a list by line, as (number, millimetres, kilograms)."""
    rows: dict[int, Box] = {}
    for sizes, labels in zip(found.sizes, found.labels, strict=True):
        for size, label in zip(sizes * LENGTHS.get(found.unit, np.nan), labels, strict=True):
            number = rows[label["line"]][0] + 1 if label["line"] in rows else 1
            length, width, height = size.tolist()
            rows[label["line"]] = number, (length, width, height), label.get("weight/kg")
    return [rows[line] for line in sorted(rows)]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_list_is_read_as_a_person_reads_it(case: Case, tmp_path: Path) -> None:
    if case.suffix in (".xls", ".ods"):
        pytest.importorskip("python_calamine")
    elif callable(case.content):
        pytest.importorskip("openpyxl")
    path = tmp_path / f"list{case.suffix}"
    path.write_bytes(case.make())
    if case.asks:
        with pytest.raises(ValueError, match="(?i)" + case.asks):
            check_reading(read_list(path, "here", options=options_of(case)))
        return
    found = read_list(path, "here", options=options_of(case))
    said = "\n".join(found.doubts)
    assert bool(said) == bool(case.doubts), said
    assert re.search(case.doubts, said)
    if case.boxes:
        rows = rows_of(found)
        assert [row[0] for row in rows] == [box[0] for box in case.boxes]
        assert [row[1] for row in rows] == [pytest.approx(box[1]) for box in case.boxes]
        assert [row[2] for row in rows] == [pytest.approx(box[2]) for box in case.boxes]
    if case.orders:
        assert found.orders == list(case.orders)


def check_reading(found: BoxList) -> None:
    """Raise what packing raises for a list without a unit, or without a box."""
    if found.faults:
        raise ValueError(f"line {found.faults[0].line}: {found.faults[0].reason}")
    if found.unit == "cells":
        raise ValueError("the unit")


def test_names_of_cases_differ() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) > 100
