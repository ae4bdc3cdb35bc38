"""Means and shares with standard errors, and methods compared case by case."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from rich.table import Table
from torch import Tensor

from torchrl_gpu.evaluation.reports import PlainData

# Differences up to this come from rounding.
_ROUNDING = 1e-6

# Errors from this many of the last digit on are written with one digit, see `percent`.
_TWO_DIGITS = 3.55

PAIRED = ("C", "P", "objects")
"""Columns in which methods are compared case by case."""

_FORMATS = {
    "objects": ".2f",
    "utilization": ".1%",
    "ms/object": ".1f",
    "ms/decision": ".1f",
    "objects/s": ".1f",
    "length": ".1f",
}

Columns = Mapping[str, Tensor]
"""Measurements of one method by the name of the column: a value for each case, any number of cases."""


@dataclass(frozen=True)
class Estimate:
    """Mean over cases, and its standard error, which one case alone does not have."""

    mean: float
    error: float | None

    @property
    def is_significant(self) -> bool:
        """Whether the mean is more than two standard errors, and rounding, from 0."""
        return self.error is not None and abs(self.mean) > max(2 * self.error, _ROUNDING)


def estimate(values: Tensor) -> Estimate:
    """Return mean and standard error of values (E,), E ≥ 1.

    For flags the error is that of a share, see `share_error`.
    """
    if values.dtype is torch.bool and len(values) > 1:
        share = values.double().mean().item()
        return Estimate(share, share_error(share, len(values)))
    # Sums of many float32 values lose digits.
    values = values.double()
    return Estimate(values.mean().item(), standard_error(values))


def standard_error(values: Tensor) -> float | None:
    """Return the standard error of the mean of values (E,), or None for one value.

    It is computed in the dtype of the values.
    """
    if len(values) < 2:
        return None
    return (values.std() / len(values) ** 0.5).item()


def paired(values: Tensor, reference: Tensor) -> Estimate:
    """Return how a method differs from another on the same cases, both (E,).

    Errors of the differences are smaller than those of the means, as hard cases are hard for both.
    """
    return estimate(values.double() - reference.double())


def share_error(share: float, count: int) -> float:
    """Return the binomial standard error of a share of `count` independent episodes.

    For a share of none or all, that would be 0 however few episodes there were. There it is the error that the share
    would have with one more episode of each kind.
    """
    if not 0 <= share <= 1 or count < 1:
        raise ValueError(f"share_error: share must be from 0 to 1, of at least one episode, not {share} of {count}")
    if share in (0, 1):
        share = (share * count + 1) / (count + 2)
        count += 2
    return math.sqrt(share * (1 - share) / count)


def percent(share: float, error: float) -> str:
    """Write a share, or a difference of two, ± its standard error in per cent.

    The error keeps two digits if they are 10 to 35, otherwise one, and the share has the same number of decimals: the
    rounding rule of the Particle Data Group (Review of Particle Physics, introduction).
    """
    # Decimals of a per cent at which the error has its digits.
    last_digit = math.log10(100 * error / _TWO_DIGITS)
    digits = max(0, math.ceil(-last_digit))
    return f"{share:.{digits}%} ± {error:.{digits}%}"


def plus_minus(error: float | None, form: str) -> str:
    """Write a standard error behind its mean, or nothing if there is none."""
    return "" if error is None else f" ± {error:{form}}"


def differences(methods: Mapping[str, Columns], reference: str) -> dict[str, dict[str, Estimate]]:
    """Return how all other methods differ from the reference, in the columns `PAIRED`.

    There are none without the reference.
    """
    if reference not in methods:
        return {}
    base = methods[reference]
    others = [name for name in methods if name != reference]
    return {name: _differences(methods[name], base) for name in others}


def _differences(values: Columns, base: Columns) -> dict[str, Estimate]:
    return {column: paired(values[column], base[column]) for column in PAIRED}


def comparison_table(methods: Mapping[str, Columns], title: str, reference: str = "") -> Table:
    """Make a table of a comparison for the terminal.

    Below each figure is its difference from that of the reference.
    """
    shown = Table(title=title, title_justify="left")
    against = differences(methods, reference)
    if against:
        shown.caption = f"Second lines: difference from {reference} on the same cases; * beyond two standard errors."
        shown.caption_justify = "left"
    shown.add_column("method", no_wrap=True)
    columns = _all_columns(methods)
    for column in columns:
        shown.add_column(column, justify="right", no_wrap=True)
    for name, values in methods.items():
        cells = [_cell(column, values, against.get(name, {})) for column in columns]
        shown.add_row(name, *cells)
    return shown


def _all_columns(methods: Mapping[str, Columns]) -> list[str]:
    """Return the columns of all methods, each once, by first appearance."""
    columns: dict[str, None] = {}
    for values in methods.values():
        columns |= dict.fromkeys(values)
    return list(columns)


def _cell(column: str, values: Columns, against: Mapping[str, Estimate]) -> str:
    if column not in values:
        return "–"
    figure = _text(estimate(values[column]), column)
    if column not in against:
        return figure
    difference = against[column]
    star = " *" if difference.is_significant else ""
    return f"{figure}\n{_text(difference, column, '+')}{star}"


def _text(figure: Estimate, column: str, sign: str = "") -> str:
    form = _FORMATS.get(column, ".3f")
    return f"{figure.mean:{sign}z{form}}{plus_minus(figure.error, form)}"


def comparison_data(methods: Mapping[str, Columns], reference: str) -> list[PlainData]:
    """Return the comparison as plain data, an entry for each method."""
    against = differences(methods, reference)
    rows: list[PlainData] = []
    for name, columns in methods.items():
        measured = {column: _column_data(values) for column, values in columns.items()}
        compared = {column: _difference_data(each) for column, each in against.get(name, {}).items()}
        rows.append({"method": name, "columns": measured, "difference": compared})
    return rows


def _column_data(values: Tensor) -> PlainData:
    figure = estimate(values)
    return {"mean": figure.mean, "error": figure.error, "cases": values.tolist()}


def _difference_data(difference: Estimate) -> PlainData:
    return {
        "mean": difference.mean,
        "error": difference.error,
        "beyond_two_errors": difference.is_significant,
    }
