"""Means, shares and their standard errors, with numbers worked by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchrl_gpu.evaluation.estimates import Estimate, estimate, percent, share_error


def test_errors_by_hand() -> None:
    assert share_error(0.3, 10) == pytest.approx(0.1449, abs=1e-4)  # √(0.3 · 0.7 / 10)
    assert share_error(0.815, 600) == pytest.approx(0.0159, abs=1e-4)  # √(0.815 · 0.185 / 600)
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
    with pytest.raises(ValueError, match=r"^share_error: want a share between 0 and 1 of at least one episode; got"):
        share_error(share, count)


def test_mean_and_standard_error() -> None:
    figure = estimate(torch.tensor([1.0, 2.0, 6.0]))  # squares 4, 1, 9: 14/2 = 7, over 3
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
