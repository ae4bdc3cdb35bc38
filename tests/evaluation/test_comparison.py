"""Means, standard errors and differences, with numbers worked by hand."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from torchrl_gpu.evaluation.comparison import comparison_data, comparison_table, differences
from torchrl_gpu.evaluation.estimates import Estimate, paired

# Differences of `better` from `rule`: C 0.1, 0.2, 0.3, mean 0.2, standard error 0.1/√3 = 0.0577;
# P −0.1, 0.1, 0.0, mean 0, standard error 0.0577; objects 1, 0, 1, mean 0.67, standard error 0.5774/√3 = 0.3333.
METHODS = {
    "rule": {
        "C": torch.tensor([0.4, 0.5, 0.6]),
        "P": torch.tensor([0.8, 0.8, 0.8]),
        "objects": torch.tensor([10.0, 20.0, 30.0]),
        "ms/object": torch.tensor([2.0]),
    },
    "better": {
        "C": torch.tensor([0.5, 0.7, 0.9]),
        "P": torch.tensor([0.7, 0.9, 0.8]),
        "objects": torch.tensor([11.0, 20.0, 31.0]),
        "utilization": torch.tensor([0.25, 0.35, 0.45]),
    },
}


def rows_of(methods: dict[str, dict[str, Tensor]], reference: str = "rule") -> dict[str, dict[str, str]]:
    shown = comparison_table(methods, "title", reference)
    headings = [str(column.header) for column in shown.columns]
    cells = zip(*(list(column.cells) for column in shown.columns), strict=True)
    return {str(row[0]): dict(zip(headings, row, strict=True)) for row in cells}


def test_differences_are_taken_case_by_case() -> None:
    spread = torch.tensor([0.0, 100.0, 200.0])
    assert paired(spread + 1, spread) == Estimate(1.0, 0.0)  # cases differ by far more than methods
    found = differences(METHODS, "rule")
    assert set(found) == {"better"}
    assert found["better"]["C"].mean == pytest.approx(0.2)
    assert found["better"]["C"].error == pytest.approx(0.1 / 3**0.5)
    assert found["better"]["objects"].mean == pytest.approx(2 / 3)
    assert found["better"]["objects"].error == pytest.approx(1 / 3)


def test_the_table_by_hand() -> None:
    rows = rows_of(METHODS)
    assert list(rows) == ["rule", "better"]
    assert rows["rule"]["C"] == "0.500 ± 0.058"
    assert rows["better"]["C"] == "0.700 ± 0.115\n+0.200 ± 0.058 *"
    assert rows["better"]["P"] == "0.800 ± 0.058\n+0.000 ± 0.058"
    assert rows["better"]["objects"] == "20.67 ± 5.78\n+0.67 ± 0.33"  # 2/3 is not more than 2·1/3
    assert rows["better"]["utilization"] == "35.0% ± 5.8%"
    assert (rows["rule"]["utilization"], rows["better"]["ms/object"]) == ("–", "–")
    assert rows["rule"]["ms/object"] == "2.0"


def test_without_the_reference_there_are_no_differences() -> None:
    rows = rows_of({"better": METHODS["better"]})
    assert rows["better"]["C"] == "0.700 ± 0.115"
    assert comparison_data(METHODS, "nobody")[1]["difference"] == {}


def test_differences_can_be_computed_again_from_what_is_written() -> None:
    written = json.loads(json.dumps(comparison_data(METHODS, "rule")))
    rule, better = written
    cases = [row["columns"]["C"]["cases"] for row in (better, rule)]
    again = paired(*map(torch.tensor, cases))
    assert better["difference"]["C"] == {
        "mean": pytest.approx(again.mean),
        "error": pytest.approx(again.error),
        "beyond_two_errors": True,
    }
    assert rule["difference"] == {}
