"""The baselines on the fixed suite of every protocol: prints the table of `docs/packing-protocols.md`, figures as JSON.

python benchmarks/baselines.py --output benchmarks/results/packing_baselines.json

It is `torchrl-gpu evaluate bpp10 --protocol NAME` for each protocol; one that the file has already is not packed again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from torchrl_gpu import machine
from torchrl_gpu.envs.packing.protocols import PROTOCOLS
from torchrl_gpu.evaluation.packing.protocols import ProtocolSuite, protocol_table
from torchrl_gpu.evaluation.reports import print_whole, write_json
from torchrl_gpu.policies.packing import BASELINES, baselines


def main() -> None:
    """Packs the same sequences with every baseline, one protocol after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS))
    parser.add_argument("--policies", nargs="+", choices=BASELINES, default=list(BASELINES))
    parser.add_argument("--cases", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/packing_baselines.json"))
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(args.output.read_text()) if args.output.exists() else {"protocols": {}}
    for name in args.protocols:
        suite = ProtocolSuite(name, args.cases, device=args.device)
        made = found["protocols"].get(name, {"policies": []})
        missing = [
            word for word in args.policies if BASELINES[word][0] not in {row["policy"] for row in made["policies"]}
        ]
        for word in missing:
            report = suite.compared(baselines(suite.env, [word]), timed=2)
            for row in report["policies"]:
                del row["utilizations"]
            made = report | {"policies": [*made["policies"], *report["policies"]]}
            found["protocols"][name] = made
            found["machine"] = machine.describe(torch.device(suite.env.device))
            write_json(args.output, found)
        print_whole(protocol_table(made))
    print(markdown(found["protocols"]))


def markdown(protocols: dict[str, Any]) -> str:
    """The table, a row for each baseline: mean utilization ± standard error in per cent / items packed."""
    names = [name for name in PROTOCOLS if name in protocols]
    lines = ["| policy | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    by_name = [{row["policy"]: row for row in protocols[name]["policies"]} for name in names]
    for name, _ in BASELINES.values():
        lines.append(f"| {name} | " + " | ".join(_cell(each.get(name)) for each in by_name) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    return f"{100 * row['utilization']:.1f} ± {100 * row['utilization_error']:.1f} / {row['num_packed']:.1f}"


if __name__ == "__main__":
    main()
