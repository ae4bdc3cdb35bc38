"""Puts a trained packing policy into the package, with its card: `python benchmarks/packing_policies.py PROTOCOL
--ckpt_path FILE --rows ROWS [--patches small|large] [--expecting CASES]`.

The policy is saved as it ships and read back; what is measured is what ships: the 2,000 sequences of the protocol's
fixed suite, which nothing trained on, packed in a batch, a few alone for the time of one decision, and, of protocols
with independent items, the first `--expecting` sequences once more one item ahead. ROWS is the `rows.json` of the
`benchmarks/equal_time.py` run that trained it: the curve. Each call replaces the protocol's rows in the result.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.equal_time import with_row
from torchrl_gpu import machine
from torchrl_gpu.evaluation.packing.protocols import PUBLISHED, ProtocolSuite
from torchrl_gpu.evaluation.reports import write_json
from torchrl_gpu.policies import AgentSpace, PackingPolicy, load_policy
from torchrl_gpu.policies.packing.expectation import ExpectedPlacement
from torchrl_gpu.policies.packing.patch_tables import PatchTables

WEIGHTS = Path(__file__).parents[1] / "torchrl_gpu" / "policies" / "packing" / "weights"
RESULTS = Path(__file__).parent / "results" / "packing_policies.json"
RANDOM = "--model.env.items=torchrl_gpu.envs.packing.items.RandomBoxes"
LARGE = "--model.tables.patches=[2x2,1x4,2x3,1x6,3x3:2,2x4:2]"
OPTIONS = {
    "rs": f"{RANDOM} --model.env.items.min_side=2 --model.env.items.max_side=5",
    "cut1": "--model.env.items.order=layers",
    "cut2": "",
    "discrete125": f"{RANDOM} --model.env.items.min_side=1 --model.env.items.max_side=5"
    " --model.env.orientations=yaw --model.env.stability=support",
    "free125": f"{RANDOM} --model.env.items.min_side=1 --model.env.items.max_side=5"
    " --model.env.orientations=axis --model.env.stability=none",
}
COLUMNS = {
    "protocol": "protocol",
    "published": "published",
    "utilization": "policy alone",
    "items": "items",
    "ahead": "one item ahead, exactly",
    "minutes": "minutes of a core",
    "alone_ms": "ms, one bin",
    "megabytes": "MB",
}


def main() -> None:
    """Saves, measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", choices=OPTIONS)
    parser.add_argument("--ckpt_path", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--patches", choices=("small", "large"), default="large")
    parser.add_argument("--expecting", type=int, default=0)
    parser.add_argument("--cases", type=int, default=2000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    name = args.protocol
    loaded = load_policy(args.ckpt_path, "cpu")
    tables = next(each for each in loaded.modules() if isinstance(each, PatchTables))
    options = " ".join(filter(None, [OPTIONS[name], LARGE if args.patches == "large" else ""]))
    command = f"python benchmarks/equal_time.py {name} --config packing.yaml --table curves --episodes 2000"
    command += f" --minutes 1 2 5 10 -- {options}" if options else " --minutes 1 2 5 10"
    callbacks = torch.load(args.ckpt_path, weights_only=True, mmap=True)["callbacks"]
    minutes = next(each["spent"] for each in callbacks.values() if "spent" in each) / 60
    about = {"protocol": name, "command": command, "minutes": minutes, "frames": loaded.about["frames"]}
    WEIGHTS.mkdir(exist_ok=True)
    path = WEIGHTS / f"{name}.safetensors"
    PackingPolicy(loaded.space, tables, about | {"commit": loaded.about["commit"]}).save(path)

    suite = ProtocolSuite(name, args.cases, device="cpu")
    policy = PackingPolicy.from_pretrained(path, "cpu", space=AgentSpace.of(suite.env))
    (played,) = suite.compared({name: policy}, timed=3)["policies"]
    ahead = "–"
    if args.expecting:
        few = ProtocolSuite(name, args.expecting, device="cpu")
        (found,) = few.compared({name: ExpectedPlacement(few.env, policy.tables)})["policies"]
        ahead = f"{_percent(found)} ({args.expecting} sequences)"
    best = max(PUBLISHED[name], key=lambda each: each[1])
    row = {
        "name": name,
        "protocol": f"`{name}`",
        "published": f"{best[1]}% ({best[0]})",
        "utilization": f"**{_percent(played)}**",
        "items": f"{played['num_packed']:.2f}",
        "ahead": ahead,
        "minutes": f"{minutes:.0f}",
        "alone_ms": f"{played['decision_alone_ms']:.2f}",
        "megabytes": f"{path.stat().st_size / 1e6:.1f}",
        "command": command,
        "commit": loaded.about["commit"],
    }
    content = with_plain_row(RESULTS, "trained", row, COLUMNS)
    curve = json.loads(args.rows.read_text(encoding="utf-8"))
    write_json(RESULTS, content)
    write_json(RESULTS, _with_curve(f"{name}, {args.patches}", options, curve, args.cases))
    path.with_suffix(".md").write_text(_card(name, row, played, about), encoding="utf-8")
    print(row)


def with_plain_row(path: Path, title: str, row: dict[str, Any], columns: dict[str, str]) -> dict[str, Any]:
    """The result of a file, with a row in place of the one of the same name in one of its tables."""
    sections = json.loads(path.read_text(encoding="utf-8"))["sections"] if path.is_file() else []
    before = next((each["rows"] for each in sections if each["title"] == title), [])
    rows = [each for each in before if each["name"] != row["name"]] + [row]
    rows.sort(key=lambda each: list(OPTIONS).index(each["name"]))
    table = {"title": title, "columns": columns, "rows": rows}
    return {
        "command": "python benchmarks/packing_policies.py PROTOCOL",
        "machine": machine.describe(torch.device("cpu")),
        "sections": [each for each in sections if each["title"] != title] + [table],
    }


def _with_curve(name: str, options: str, curve: list[dict[str, Any]], episodes: int) -> dict[str, Any]:
    told = {f"after_{each['minutes']:g}": f"{each['value']:.1%} ({each['updates']:,})" for each in curve}
    row = {"name": name, "options": options or "–", "episodes": episodes, "after": curve, **told}
    content = with_row(RESULTS, "curves", row)
    (table,) = (each for each in content["sections"] if each["title"] == "curves")
    marks = sorted({each["minutes"] for each_row in table["rows"] for each in each_row["after"]})
    table["columns"] = {"name": ""} | {f"after_{mark:g}": f"{mark:g} min" for mark in marks}
    for each in table["rows"]:
        each |= {f"after_{mark:g}": each.get(f"after_{mark:g}", "–") for mark in marks}
    return content | {"command": "python benchmarks/packing_policies.py PROTOCOL"}


def _percent(row: dict[str, Any]) -> str:
    return f"{row['utilization']:.2%} ± {row['utilization_error']:.2%}"


def _card(name: str, row: dict[str, Any], played: dict[str, Any], about: dict[str, Any]) -> str:
    return f"""# A policy for `{name}`

- Protocol: `{name}`, see docs/packing-protocols.md; one visible box, bin of 10×10×10 cells.
- Result: {_percent(played)} utilization, {played["num_packed"]:.2f} boxes, on the {played["num_episodes"]:,}
  sequences of the fixed suite. It knew nothing of the boxes to come. Published: {row["published"]}.
- Command: `{about["command"]}`
- Cost: {about["minutes"]:.0f} minutes of one core of a CPU, {about["frames"]:,} placements. Seed 0, commit
  {row["commit"][:12]}.
- What it is: values of the bin after each placement, by look-up tables of patches of its heightmap (`PatchTables`), in
  half precision.
- Licence: Apache-2.0, as the package. No data was used: boxes are drawn from seeds.
"""


if __name__ == "__main__":
    main()
