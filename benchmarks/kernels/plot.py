"""The picture of a sweep: cost of an environment's z-maps along each axis, one line for each way to make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from benchmarks.kernels.report import duration
from benchmarks.kernels.rows import NUMPY, UNFOLD
from benchmarks.kernels.sweep import AXES

# Okabe and Ito's colours, which colour-blind readers tell apart; markers too, for print.
_STYLES = {
    NUMPY: ("#7f7f7f", "s"),
    UNFOLD: ("#E69F00", "v"),
    "ours eager": ("#56B4E9", "o"),
    "ours compiled": ("#D55E00", "D"),
    "ours triton": ("#009E73", "^"),
    "ours reference": ("#000000", "x"),
}
_LABELS = {
    "num_envs": "environments",
    "resolution": "cells along each side of the bin (items keep their size in metres)",
    "footprint": "cells along each side of an item's footprint",
    "visible": "visible items K",
}
_DASHES = {"boxes": (0, (4, 1.5)), "irregular": "solid"}
_FLOORS = {"cpu": "#222222", "cuda": "#00664b"}
_WIDTH, _HEIGHT, _DPI = 1600, 1120, 125  # pixels


def draw(result: dict[str, Any], path: Path) -> None:
    """Writes a PNG, 1600 pixels wide, of what `torchrl-gpu bench kernels --sweep` measured."""
    sweep = result["sweep"]
    figure = Figure(figsize=(_WIDTH / _DPI, _HEIGHT / _DPI), dpi=_DPI)
    FigureCanvasAgg(figure)
    for axis, panel in zip(AXES, figure.subplots(2, 2).flat, strict=True):
        _panel(panel, axis, [p for p in sweep["points"] if p["axis"] == axis], sweep)
    figure.suptitle("Time for the z-maps and the legality of one environment", fontsize=14, y=0.985)
    _legend(figure, sweep)
    figure.text(0.5, 0.012, _caption(result), ha="center", fontsize=8.5, color="#444444")
    figure.subplots_adjust(left=0.065, right=0.985, top=0.86, bottom=0.095, hspace=0.34, wspace=0.17)
    figure.savefig(path, metadata={"Software": None})


def _panel(panel: Axes, axis: str, points: list[dict[str, Any]], sweep: dict[str, Any]) -> None:
    panel.set_title(_title(axis, sweep), fontsize=10, loc="left")
    panel.set_xlabel(_LABELS[axis])
    if not points:
        panel.set_axis_off()
        panel.text(0.5, 0.5, "not measured", ha="center", va="center", transform=panel.transAxes, color="#777777")
        return
    panel.set_xscale("log")
    panel.set_yscale("log")
    values = sorted({p["value"] for p in points})
    panel.set_xlim(values[0] / 1.3, values[-1] * 1.3)
    measured = [p for p in points if "seconds_per_env" in p]
    for kind in dict.fromkeys(p["kind"] for p in measured):
        of_kind = [p for p in measured if p["kind"] == kind]
        for row in dict.fromkeys(p["row"] for p in of_kind):
            _line(
                panel, row, kind, [p for p in of_kind if p["row"] == row], constant=row == NUMPY and axis == "num_envs"
            )
        for device in dict.fromkeys(p["device"] for p in of_kind):
            _floor(panel, [p for p in of_kind if p["device"] == device])
    panel.xaxis.set_major_locator(FixedLocator(values))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.grid(which="major", color="#dddddd", linewidth=0.6)
    panel.tick_params(labelsize=8.5)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _line(panel: Axes, row: str, kind: str, points: list[dict[str, Any]], constant: bool) -> None:
    colour, marker = _STYLES[row]
    style: dict[str, Any] = {"color": colour, "linestyle": _DASHES[kind], "linewidth": 1.8}
    if constant:  # one environment at a time, however many there are
        panel.axhline(points[0]["seconds_per_env"], **style | {"linewidth": 1.2})
    x, y = [p["value"] for p in points], [p["seconds_per_env"] for p in points]
    panel.plot(x, y, marker=marker, markersize=5, **style)


def _floor(panel: Axes, points: list[dict[str, Any]]) -> None:
    at = {p["value"]: p["floor_per_env"] for p in points if p["floor_per_env"] is not None and p["row"] != NUMPY}
    if at:
        colour = _FLOORS[points[0]["device"]]
        panel.plot(list(at), list(at.values()), color=colour, linestyle=(0, (1, 1.5)), linewidth=1.4)


def _title(axis: str, sweep: dict[str, Any]) -> str:
    items, num_envs = sweep["items"], sweep["num_envs_of_other_axes"]
    batch = f"{num_envs} environment{'s' * (num_envs > 1)}"
    side, cells, step = items["footprint"], items["resolution"], items["grid_step"]
    finest = max(AXES["resolution"])
    return {
        "num_envs": f"bpp10 boxes (dashed), and items of {side}×{side} on {cells}×{cells} cells in 24 orientations",
        "resolution": f"resolution: {batch}, grid step {step}, items of {side} cells at {cells}",
        "footprint": f"footprint: {batch}, {finest}×{finest} cells, grid step {step}",
        "visible": f"visible items: {batch}, items of {side}×{side} on {cells}×{cells} cells",
    }[axis]


def _legend(figure: Figure, sweep: dict[str, Any]) -> None:
    handles = [
        Line2D([], [], color=_STYLES[row][0], marker=_STYLES[row][1], markersize=5, linewidth=1.8, label=row)
        for row in _STYLES
        if row in sweep["rows"]
    ]
    for device in dict.fromkeys(p["device"] for p in sweep["points"] if "device" in p):
        label = f"floor, {device}: counts ÷ measured ceilings"
        handles.append(Line2D([], [], color=_FLOORS[device], linestyle=(0, (1, 1.5)), label=label))
    for each in sweep["missing"]:
        reason = each["reason"].partition(":")[0]
        handles.append(Line2D([], [], color="none", label=f"{each['row']}: not run, {reason}"))
    figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.96), ncols=4, frameon=False, fontsize=9)


def _caption(result: dict[str, Any]) -> str:
    at, limits = result["machine"], result["sweep"]
    return (
        f"{at['device_name']}, {at['cores']} CPU cores, torch {at['versions']['torch']} with {at['torch_threads']}"
        f" threads, commit {(at['commit'] or 'unknown')[:8]}. A line ends where a point would take more than"
        f" {limits['point_seconds']:g} s or more memory than was free."
    )
