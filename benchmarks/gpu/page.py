"""The report as one page of HTML.

Plots are pictures inside it, so that one file can be sent.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from html import escape

from benchmarks.gpu.predicted_rates import predicted
from benchmarks.result_types import JsonObject

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #1b1f24 }
h1 { font-size: 1.5em; margin-bottom: .2em } h2 { font-size: 1.15em; margin: 2em 0 .5em }
table { border-collapse: collapse; margin: .5em 0; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .25em .8em; border-bottom: 1px solid #d8dee4; vertical-align: top }
th { border-bottom: 2px solid #8c959f; font-weight: 600 } td.n, th.n { text-align: right; white-space: nowrap }
.passed, .works { color: #116329 } .failed, .late { color: #a40e26; font-weight: 600 } .cannot { color: #7d4e00 }
.not { color: #57606a } code { font-size: .9em }
pre { background: #f6f8fa; padding: .7em; overflow-x: auto; font-size: .8em }
img { max-width: 100% } p.note { color: #57606a }
"""
_MOST_BARS = 30


def html(told: JsonObject) -> str:
    """The page of a report."""
    found = {part["name"]: part for part in told["parts"]}
    sections = [_summary(told["parts"])]
    for part in told["parts"]:
        body = _body(part, found, told["machine"]["device_name"])
        if body:
            title = "Short fits" if "<!-- fits -->" in body else part["title"]
            sections.append(f"<h2>{escape(title)}</h2>\n{body}")
    title = f"GPU report: {told['machine']['device_name']}"
    quick = " <p class=note>A quick look: sizes are small, and times mean little.</p>" if told["quick"] else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(_machine(told))}</p>{quick}\n" + "\n".join(sections) + "\n</html>\n"
    )


def _machine(told: JsonObject) -> str:
    at = told["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in at["versions"].items() if version)
    return (
        f"{at['device']}, driver {at['driver']}; {at['cpu']}, {at['cores']} cores; {at['system']}; {versions}; commit"
        f" {at['commit'] or 'unknown'}; {told['made']}"
    )


def _summary_row(part: JsonObject) -> tuple[str, ...]:
    took = f"{part['seconds']:.0f} s" if part["seconds"] else ""
    is_told = part["state"] != "passed" or part["name"] == "tests"
    detail = escape(part["detail"]) if is_told else ""
    avoid = f"<code>{escape(part['avoid'])}</code>" if part["avoid"] else ""
    return escape(part["title"]), _state(part["state"]), took, detail, avoid


def _summary(parts: Sequence[JsonObject]) -> str:
    rows = [_summary_row(part) for part in parts]
    return _table(("part", "", "time", "why, or what it said last", "what avoids it"), rows, (2,))


def _state(state: str) -> str:
    kind = {
        "passed": "passed",
        "failed": "failed",
        "not tried": "not",
        "works": "works",
        "cannot": "cannot",
        "installed": "not",
    }
    return f"<span class={kind.get(state, 'late')}>{escape(state)}</span>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        made = (f"<{tag}{' class=n' if i in numbers else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(made)}</tr>"

    return f"<table>{line(heads, 'th')}\n" + "\n".join(line(row, "td") for row in rows) + "</table>"


def _body(part: JsonObject, found: dict[str, JsonObject], chip: str) -> str:
    """Write the findings of a part.

    It is empty where the part's line in the summary says all.
    """
    log = f"<details><summary>log</summary><pre>{escape(part['log'])}</pre></details>" if part["log"] else ""
    if part["data"] is None:
        return log
    if part["name"].startswith("fit_"):
        fits = [each for name, each in found.items() if name.startswith("fit_") and each["data"] is not None]
        return _fits([each["data"] for each in fits], chip) if part is fits[0] else ""
    writers: dict[str, Callable[[JsonObject], str]] = {"doctor": _doctor, "parity": _parity, "packing": _packing}
    writers["timings"] = partial(_timings, chip=chip)
    return writers.get(part["name"], _sections)(part["data"]) + (log if part["state"] != "passed" else "")


def _doctor(findings: list[dict[str, str]]) -> str:
    rows = [
        (escape(each["group"]), escape(each["name"]), _state(each["state"]), escape(each["detail"]))
        for each in findings
    ]
    return _table(("", "what", "", "details, why not, or how to try"), rows)


def _outcome(row: JsonObject) -> str:
    if not row["ran"]:
        return "not tried"
    return "failed" if row["difference"] else "passed"


def _parity(data: JsonObject) -> str:
    rows = []
    for row in data["rows"]:
        where = escape(f"{row['backend']} on {row['device']}")
        rows.append((where, escape(row["setting"]), _state(_outcome(row)), escape(row["difference"])))
    return _table(("backend", "setting", "", "difference, or why it does not run"), rows)


def _timings(data: JsonObject, chip: str) -> str:
    rows = []
    for row in data["rows"]:
        of_run = [escape(row["config"]), str(row["num_envs"]), escape(row["backend"])]
        of_run += [f"{row['seconds_per_step'] * 1e3:.3g}", f"{row['steps_per_s']:,.0f}"]
        rows.append([*of_run, predicted(chip, row["config"], "step", row["num_envs"])])
    heads = ("environment of", "environments", "kernels", "ms/step", "environment steps/s", "predicted, in a graph")
    made = _table(heads, rows, (1, 3, 4, 5))
    kernels = []
    for row in data["rows"]:
        kernels += [(row["config"], each) for each in row["kernels"]]
    if not kernels:
        return made + "<p class=note>Kernels are timed on a GPU: not tried: no CUDA.</p>"
    cells = [_kernel_row(config, each) for config, each in kernels]
    of_kernels = ("run", "kernel", "launches/step", "µs", "bound, µs", "measured / bound", "limit")
    bounded = [(f"{c}: {e['kernel'][:40]}", e["measured_over_bound"]) for c, e in kernels if e["measured_over_bound"]]
    note = "<p class=note>A bound is what the chip's published rates allow at best, not a measurement.</p>"
    return made + _table(of_kernels, cells, (2, 3, 4, 5)) + note + _bars(bounded, "measured time / bound", log=False)


def _kernel_row(config: str, kernel: JsonObject) -> tuple[str, ...]:
    name = f"<code>{escape(kernel['kernel'][:80])}</code>"
    launches = f"{kernel['launches_per_step']:.2g}"
    took = f"{kernel['seconds'] * 1e6:.1f}"
    bound = "" if kernel["bound_s"] is None else f"{kernel['bound_s'] * 1e6:.1f}"
    over = "" if kernel["measured_over_bound"] is None else f"{kernel['measured_over_bound']:.2f}"
    return escape(config), name, launches, took, bound, over, escape(kernel["limit"])


def _packing(data: JsonObject) -> str:
    rows = [(f"{row['group']}: {row['name']}", row["rate"]) for row in data["rows"] if "envs" in row["name"]]
    cells = []
    for row in data["rows"]:
        ratio = f"{row['ratio']:,.3g}" if "ratio" in row else ""
        share = f"{row['share_of_copy']:.1%}" if "share_of_copy" in row else ""
        names = (escape(row["group"]), escape(row["name"]))
        cells.append((*names, _number(row["rate"]), ratio, share, escape(row["notes"])))
    heads = ("", "", "steps/s", "× NumPy", "of memory's rate", "")
    return _bars(rows, "environment steps/s") + _table(heads, cells, (2, 3, 4))


def _rate_row(row: JsonObject) -> tuple[str, ...]:
    spread = "–".join(map(_number, row.get("range", [])))
    ratios = ", ".join(f"{value:.3g} × {escape(name)}" for name, value in (row.get("ratios") or {}).items())
    share = f"{row['share_of_floor']:.1%}, {escape(row['bound_by'])}" if row.get("share_of_floor") else ""
    return escape(row["name"]), _number(row["rate"]), spread, ratios, share


def _sections(data: JsonObject) -> str:
    """Of a benchmark that gives sections of rows with rates."""
    made = []
    for section in data.get("sections", []):
        rows = [row for row in section["rows"] if row.get("rate")]
        made.append(f"<h3>{escape(section['title'])}, {escape(section['unit'])}</h3>")
        made.append(_bars([(row["name"], row["rate"]) for row in rows], section["unit"]))
        cells = [_rate_row(row) for row in rows]
        made.append(_table(("", "rate", "range", "ratios", "of the ceiling"), cells, (1, 2)))
    missing = "".join(f"<p class=note>{escape(str(line))}</p>" for line in data.get("missing", []))
    return "\n".join(made) + missing


def _fits(fits: Sequence[JsonObject], chip: str) -> str:
    bars = []
    for fit in fits:
        graphs = ", graphs" if fit["graphs"] else ""
        bars.append((fit["config"].removesuffix(".yaml") + graphs, fit.get("updates_per_s", 0)))
    heads = ("run", "launched", "frames/s", "updates/s", "predicted", "loss", "warned of")
    cells = [_fit(fit, chip) for fit in fits]
    return "<!-- fits -->" + _bars(bars, "updates/s") + _table(heads, cells, (2, 3, 4, 5))


def _fit(fit: JsonObject, chip: str) -> list[str]:
    """Write the row of a short training.

    Predictions are of graphs.
    """
    config = fit["config"].removesuffix(".yaml")
    should = predicted(chip, config, "training", fit["num_envs"]) if fit["graphs"] else ""
    cells = [escape(fit["config"]), "graphs" if fit["graphs"] else "one by one"]
    cells += [f"{fit.get('frames_per_s', 0):,.0f}", f"{fit.get('updates_per_s', 0):,.1f}", should]
    return [*cells, f"{fit['loss']:.3g}", "<br>".join(map(escape, fit["warnings"]))]


def _number(value: float) -> str:
    """With three digits, or all those before the point."""
    if value >= 1e9:
        return f"{value / 1e9:.3g} G"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bars(rows: Sequence[tuple[str, float]], unit: str, log: bool = True) -> str:
    """Draw a bar for each row, as a picture.

    Without matplotlib there is none.
    """
    rows = [(name, value) for name, value in rows if value and value > 0][:_MOST_BARS]
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return ""
    if not rows:
        return ""
    figure = Figure(figsize=(9, 0.8 + 0.28 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    names, values = zip(*reversed(rows), strict=True)
    bars = axes.barh(range(len(rows)), values, color="#4c78a8", height=0.65)
    axes.bar_label(bars, labels=[f" {_number(value)}" for value in values], fontsize=8)
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set_xlabel(unit, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    if log and max(values) > 20 * min(values):
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 3, max(values) * 5)
    else:
        axes.set_xlim(0, max(values) * 1.15)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    return f'<img alt="{escape(unit)}" src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}">'
