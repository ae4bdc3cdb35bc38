"""Methods compared on the same cases: means, standard errors, and differences case by case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from torch import Tensor

from torchrl_gpu.evaluation.estimates import Estimate, estimate, paired, plus_minus

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
