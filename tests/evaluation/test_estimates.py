"""Means, shares and their standard errors, with numbers worked by hand."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchrl_gpu.evaluation.estimates import (
    Estimate,
    comparison_data,
    comparison_table,
    differences,
    estimate,
    paired,
    percent,
    share_error,
)


def test_errors_by_hand() -> None:
    # √(0.3 · 0.7 / 10).
    assert share_error(0.3, 10) == pytest.approx(0.1449, abs=1e-4)
    # √(0.815 · 0.185 / 600).
    assert share_error(0.815, 600) == pytest.approx(0.0159, abs=1e-4)
    # Of none and of all: one success and one failure more, 1 of 12 and 101 of 102.
    assert share_error(0.0, 10) == pytest.approx((1 / 12 * 11 / 12 / 12) ** 0.5)
    assert share_error(1.0, 100) == pytest.approx((101 / 102 * 1 / 102 / 102) ** 0.5)


@pytest.mark.parametrize(
    ("share", "error", "shown"),
    [
        (0.3, 0.145, "30% ± 14%"),
        (0.7601, 0.0427, "76% ± 4%"),
        (0.815, 0.0159, "81.5% ± 1.6%"),
        (0.108, 0.0354, "10.8% ± 3.5%"),
        (0.108, 0.0356, "11% ± 4%"),
        (0.99, 0.00995, "99.0% ± 1.0%"),
        (-0.0123, 0.0015, "-1.23% ± 0.15%"),
    ],
)
def test_no_more_digits_than_the_error_supports(share: float, error: float, shown: str) -> None:
    assert percent(share, error) == shown


@given(st.integers(1, 10**6), st.data())
def test_the_error_shows_one_or_two_digits(n: int, data: st.DataObject) -> None:
    error = share_error(data.draw(st.integers(0, n)) / n, n)
    assert error > 0
    shown = percent(0.5, error).split(" ± ")[1].rstrip("%")
    assert ("." in shown) is (error < 0.0355)
    assert int(shown.replace(".", "")) <= 36 or "." not in shown


@pytest.mark.parametrize(("share", "count"), [(1.5, 10), (-0.1, 10), (0.5, 0), (float("nan"), 3)])
def test_what_is_no_share_is_refused(share: float, count: int) -> None:
    with pytest.raises(ValueError, match=r"^share_error: share must be from 0 to 1"):
        share_error(share, count)


def test_mean_and_standard_error() -> None:
    # Squares are 4, 1 and 9: 14/2 = 7, over 3.
    figure = estimate(torch.tensor([1.0, 2.0, 6.0]))
    assert (figure.mean, figure.error) == (pytest.approx(3), pytest.approx((7 / 3) ** 0.5))


def test_the_error_of_a_share_is_never_0() -> None:
    flags = torch.tensor([True, True, True])
    assert estimate(flags) == Estimate(1.0, share_error(1.0, 3))
    assert (estimate(flags).error or 0) > 0
    assert estimate(flags[:1]) == Estimate(1.0, None)


def test_one_case_has_no_error_and_is_significant_never() -> None:
    assert estimate(torch.tensor([5.0])) == Estimate(5.0, None)
    assert not Estimate(5.0, None).is_significant


@pytest.mark.parametrize(
    ("mean", "error", "is_significant"),
    [(0.21, 0.1, True), (-0.21, 0.1, True), (0.2, 0.1, False), (1.0, 0.0, True), (0.0, 0.0, False), (1e-8, 0.0, False)],
)
def test_beyond_two_standard_errors(mean: float, error: float, is_significant: bool) -> None:
    assert Estimate(mean, error).is_significant is is_significant


# Differences of `better` from `rule`: C 0.1, 0.2, 0.3, mean 0.2, standard error 0.1/√3 = 0.0577;
# P −0.1, 0.1, 0.0, mean 0, standard error 0.0577; objects 1, 0, 1, mean 0.67, standard error 0.5774/√3 = 0.3333.
_RULE = {
    "C": torch.tensor([0.4, 0.5, 0.6]),
    "P": torch.tensor([0.8, 0.8, 0.8]),
    "objects": torch.tensor([10.0, 20.0, 30.0]),
    "ms/object": torch.tensor([2.0]),
}
_BETTER = {
    "C": torch.tensor([0.5, 0.7, 0.9]),
    "P": torch.tensor([0.7, 0.9, 0.8]),
    "objects": torch.tensor([11.0, 20.0, 31.0]),
    "utilization": torch.tensor([0.25, 0.35, 0.45]),
}
METHODS = {"rule": _RULE, "better": _BETTER}


def rows_of(methods: dict[str, dict[str, Tensor]], reference: str = "rule") -> dict[str, dict[str, str]]:
    shown = comparison_table(methods, "title", reference)
    headings = [str(column.header) for column in shown.columns]
    cells = zip(*(list(column.cells) for column in shown.columns), strict=True)
    return {str(row[0]): dict(zip(headings, row, strict=True)) for row in cells}


def test_differences_are_taken_case_by_case() -> None:
    spread = torch.tensor([0.0, 100.0, 200.0])
    # Cases differ by far more than methods.
    assert paired(spread + 1, spread) == Estimate(1.0, 0.0)
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
    # 2/3 is not more than 2·1/3.
    assert rows["better"]["objects"] == "20.67 ± 5.78\n+0.67 ± 0.33"
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
