"""Means and shares with their standard errors; methods compared case by case; and the text of all that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

_ROUNDING = 1e-6
_TWO_DIGITS = 3.55  # times the last digit's value: errors from there on have one digit


@dataclass(frozen=True)
class Estimate:
    """A mean over cases and its standard error, which one case alone does not have."""

    mean: float
    error: float | None

    @property
    def is_significant(self) -> bool:
        """True if the mean is more than two standard errors from 0, and more than rounding."""
        return self.error is not None and abs(self.mean) > max(2 * self.error, _ROUNDING)


def estimate(values: Tensor) -> Estimate:
    """Mean and standard error of values (E,), E ≥ 1; of flags that of a share, see `share_error`."""
    if values.dtype is torch.bool and len(values) > 1:
        share = values.double().mean().item()
        return Estimate(share, share_error(share, len(values)))
    values = values.double()
    return Estimate(values.mean().item(), standard_error(values))


def standard_error(values: Tensor) -> float | None:
    """Standard error of the mean of values (E,), in their own dtype; None of one value."""
    return (values.std() / len(values) ** 0.5).item() if len(values) > 1 else None


def paired(values: Tensor, reference: Tensor) -> Estimate:
    """By how much a method differs from another on the same cases, both (E,)."""
    return estimate(values.double() - reference.double())


def share_error(share: float, count: int) -> float:
    """Standard error of a share of `count` independent episodes, binomial.

    That of none or of all would be 0 however few there were: for these it is the error that the share would have with
    one episode of each kind more.
    """
    if not 0 <= share <= 1 or count < 1:
        raise ValueError(f"share_error: want a share between 0 and 1 of at least one episode; got {share} of {count}")
    if share in (0, 1):
        share, count = (share * count + 1) / (count + 2), count + 2
    return math.sqrt(share * (1 - share) / count)


def percent(share: float, error: float) -> str:
    """A share, or a difference of two, ± its standard error, to whole per cent or finer.

    The error keeps two digits where they are 10 to 35, otherwise one, and the share as many decimals: the rounding rule
    of the Particle Data Group (Review of Particle Physics, introduction).
    """
    digits = max(0, math.ceil(-math.log10(100 * error / _TWO_DIGITS)))
    return f"{share:.{digits}%} ± {error:.{digits}%}"


def plus_minus(error: float | None, form: str) -> str:
    """A standard error as it stands behind its mean; nothing where there is none."""
    return "" if error is None else f" ± {error:{form}}"


Columns = Mapping[str, Tensor]
"""Measurements of one method by the name of the column: a value for each case, any number of cases."""

PAIRED = ("C", "P", "objects")
_FORMATS = {"objects": ".2f", "utilization": ".1%", "ms/object": ".1f", "ms/decision": ".1f", "objects/s": ".1f"}
_FORMATS |= {"length": ".1f"}


def differences(methods: Mapping[str, Columns], reference: str) -> dict[str, dict[str, Estimate]]:
    """Of every other method from the reference, for the columns `PAIRED`; empty without the reference."""
    if reference not in methods:
        return {}
    base = methods[reference]
    return {
        name: {column: paired(values[column], base[column]) for column in PAIRED}
        for name, values in methods.items()
        if name != reference
    }


def comparison_table(methods: Mapping[str, Columns], title: str, reference: str = "") -> Table:
    """The comparison for the terminal; under a figure, by how much it differs from the reference's."""
    shown, against = Table(title=title, title_justify="left"), differences(methods, reference)
    if against:
        shown.caption = f"Second lines: difference from {reference} on the same cases; * beyond two standard errors."
        shown.caption_justify = "left"
    columns = list(dict.fromkeys(column for values in methods.values() for column in values))
    for column in ("method", *columns):
        shown.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for name, values in methods.items():
        shown.add_row(name, *(_cell(column, values, against.get(name, {})) for column in columns))
    return shown


def _cell(column: str, values: Columns, against: Mapping[str, Estimate]) -> str:
    if column not in values:
        return "–"
    figure = _text(estimate(values[column]), column)
    if column not in against:
        return figure
    difference = against[column]
    return f"{figure}\n{_text(difference, column, '+')}{' *' if difference.is_significant else ''}"


def _text(figure: Estimate, column: str, sign: str = "") -> str:
    form = _FORMATS.get(column, ".3f")
    return f"{figure.mean:{sign}z{form}}{plus_minus(figure.error, form)}"


def comparison_data(methods: Mapping[str, Columns], reference: str) -> list[dict[str, Any]]:
    against = differences(methods, reference)
    return [
        {
            "method": name,
            "columns": {
                column: {"mean": (figure := estimate(values)).mean, "error": figure.error, "cases": values.tolist()}
                for column, values in columns.items()
            },
            "difference": {
                column: {"mean": d.mean, "error": d.error, "beyond_two_errors": d.is_significant}
                for column, d in against.get(name, {}).items()
            },
        }
        for name, columns in methods.items()
    ]
