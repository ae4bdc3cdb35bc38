"""The main job, run from an empty folder, and its table.

`python benchmarks/fit.py [--output benchmarks/results/fit.json]`

The same as `make fit` after the install: `lightning fit` and `lightning test` of packing.yaml, from an empty folder.
Seconds of both are with the start of Python; those of the fit with its validation and checkpoints.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torchrl_gpu.device import get_device
from torchrl_gpu.system import machine

CONFIG = "packing.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "fit.json")
    parser.add_argument("--device", default="cpu", help="auto, cuda:N or cpu")
    given = parser.parse_args()
    output, device = given.output.absolute(), get_device(given.device)
    result = {"command": "make fit", "machine": machine.describe(device)}
    there = [f"--trainer.accelerator={'gpu' if device.type == 'cuda' else 'cpu'}"]
    if device.type == "cuda":
        there.append(f"--trainer.devices=[{device.index}]")
    with tempfile.TemporaryDirectory() as folder:
        seconds = {}
        for words in (["fit"], ["test", "--ckpt_path", "runs/packing/checkpoints/last.ckpt"]):
            program = [sys.executable, "-m", "torchrl_gpu.cli", words[0], "--config", CONFIG, *words[1:], *there]
            started = time.perf_counter()
            subprocess.run(program, cwd=folder, check=True)
            seconds[words[0]] = time.perf_counter() - started
        result["wall_s_after_install"] = sum(seconds.values())
        result["fit_s"], result["test_s"] = seconds["fit"], seconds["test"]
        result |= json.loads((Path(folder) / "runs" / "packing" / "evaluation.json").read_text(encoding="utf-8"))
    output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"Written: {output}")


if __name__ == "__main__":
    main()
