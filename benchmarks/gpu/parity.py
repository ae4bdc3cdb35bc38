"""`python -m benchmarks.gpu.parity`: backends on a device against the reference.

All that run there are compared.

The self-test that "auto" asks of a backend; then steps in small bins against the NumPy reference, and in the bins of
the shipped runs against what a CPU takes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.shipped import environment_arguments
from benchmarks.result_types import JsonObject
from torchrl_gpu.cli.packing.bench import difference
from torchrl_gpu.device import get_device
from torchrl_gpu.envs.counter_rng import TRITON_DRAWS
from torchrl_gpu.envs.packing.items.cutting import TRITON_CUTS
from torchrl_gpu.envs.packing.kernels import BACKENDS, available_backends
from torchrl_gpu.envs.packing.kernels.self_tests import run_every_kind
from torchrl_gpu.policies.packing.ntuple.values import TRITON_PLACEMENTS, TRITON_ROLLOUTS, TRITON_TABLES
from torchrl_gpu.system.self_tests import run_here

_SMALL: JsonObject = {"bin_size": (5.0, 5.0, 5.0), "resolution": 5}
# Metres, and shares of a bin.
_CLOSE = 1e-5
# Modules of kernels, by what they do.
_BESIDE_STEPS = {
    "random numbers": TRITON_DRAWS,
    "boxes cut": TRITON_CUTS,
    "values of placements": TRITON_PLACEMENTS,
    "tables and sweeps": TRITON_TABLES,
    "whole rollouts": TRITON_ROLLOUTS,
}


def main(argv: list[str]) -> int:
    """Write what differs, for each backend.

    Returns 1 where something does.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.parity", description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="one setting, few steps")
    parser.add_argument("--output", type=Path, required=True, help="JSON")
    args = parser.parse_args(argv)
    rows = checks(get_device(args.device), args.quick)
    args.output.write_text(json.dumps({"rows": rows}, indent=1), encoding="utf-8")
    for row in rows:
        print(f"{row['backend']} on {row['device']}, {row['setting']}: {row['difference'] or 'agrees'}")
    return int(any(row["difference"] and row["ran"] for row in rows))


def checks(device: torch.device, quick: bool) -> list[JsonObject]:
    """Compare every backend, device and setting.

    `difference` is "" where nothing differs.
    """
    settings: dict[str, tuple[JsonObject, str]] = {"a small bin": (_SMALL, "reference")}
    if not quick:
        for name in ("packing", "packing_irregular"):
            arguments = environment_arguments(name)
            del arguments["num_envs"]
            settings[name] = arguments, "auto"
    rows = []
    for where in dict.fromkeys((device, torch.device("cpu"))):
        for name, problem in available_backends(where).items():
            if name == "reference" or (problem and where.type != device.type):
                continue
            at = {"backend": name, "device": str(where)}
            if problem:
                rows.append(at | {"setting": "", "difference": problem, "ran": False})
                continue
            found = run_here(partial(run_every_kind, BACKENDS[name], str(where)))
            rows.append(at | {"setting": "every job, kind and rule", "difference": found, "ran": True})
            for setting, (arguments, theirs) in settings.items():
                # A step of 200×200 cells takes long in torch.
                steps = 10 if setting == "packing_irregular" else 40
                if quick:
                    steps = 5
                compared = partial(difference, backend=name, reference=theirs, tolerance=_CLOSE)
                found = run_here(partial(compared, arguments, where, steps))
                rows.append(at | {"setting": f"{steps} steps in {setting}", "difference": found, "ran": True})
    return rows + [_beside_steps(device, what, name) for what, name in _BESIDE_STEPS.items() if device.type == "cuda"]


def _beside_steps(device: torch.device, what: str, name: str) -> JsonObject:
    """A row for kernels that are no backend of a step, by their own self-test."""
    found = run_here(lambda: str(importlib.import_module(name).self_test(str(device))))
    return {"backend": "triton", "device": str(device), "setting": what, "difference": found, "ran": True}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
