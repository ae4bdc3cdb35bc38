"""Report of a machine with a GPU.

`make gpu` or `python -m benchmarks.gpu.report` makes it. It is written as JSON and as a page.

Every part is a program of its own with a time limit, so that what fails, hangs or crashes leaves the rest. The exit
status is 0 where every part that could run has passed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.gpu import page
from benchmarks.gpu.parts import Part, parts
from benchmarks.result_types import JsonObject
from torchrl_gpu.device import get_device
from torchrl_gpu.system import machine, nvidia

ROOT = Path(__file__).parents[2]
PASSED = "passed"
FAILED = "failed"
LATE = "ended: too long"
NOT_TRIED = "not tried"
# Characters of a log that are in the report.
_TAIL = 4000


def main(argv: list[str]) -> int:
    """Run the parts and write `report.json` and `index.html`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.report", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cuda:N, or cpu, where what needs a GPU is left out")
    parser.add_argument("--quick", action="store_true", help="a look in minutes: small sizes, few steps")
    parser.add_argument("--output", type=Path, default=Path("gpu-report"), help="folder of the report")
    parser.add_argument("--only", nargs="+", metavar="PART", help="some parts, by name")
    args = parser.parse_args(argv)
    device, folder = get_device(args.device), args.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = parts(str(device), args.quick, folder)
    if unknown := set(args.only or ()) - {part.name for part in wanted}:
        known = ", ".join(part.name for part in wanted)
        raise ValueError(f"--only: there is no part {', '.join(unknown)}: choose from {known}")
    told: JsonObject = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": args.quick,
        "machine": machine.describe(device) | {"driver": nvidia.driver()},
        "parts": [],
    }
    for part in wanted:
        if args.only and part.name not in args.only:
            continue
        print(f"{part.title} …", flush=True)
        found = run(part, folder) if device.type == "cuda" or not part.cuda_only else not_tried(part)
        told["parts"].append(found)
        print(f"    {found['state']}, {found['seconds']:.0f} s{_hint(found)}", flush=True)
        # It is written after each part, so that an end from outside leaves a report.
        write(told, folder)
    print(f"\nWritten: {folder / 'index.html'} and report.json; docs/gpu-report.md says how to send them in")
    return int(any(found["state"] not in (PASSED, NOT_TRIED) for found in told["parts"]))


def run(part: Part, folder: Path) -> JsonObject:
    """Run a part, and end it with all that it has started if it takes too long."""
    begun, log = time.perf_counter(), folder / f"{part.name}.log"
    if part.output is not None:
        # There may be one of an earlier report.
        part.output.unlink(missing_ok=True)
    out = folder / f"{part.name}.out"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    with log.open("wb") as errors, out.open("wb") as output:
        child = subprocess.Popen(
            part.command, cwd=ROOT, env=environment, stdout=output, stderr=errors, start_new_session=True
        )
        try:
            status = child.wait(part.limit_s)
            state = PASSED if status == 0 else FAILED
        except subprocess.TimeoutExpired:
            state, status = LATE, None
        finally:
            # This also ends the processes that it has left behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    text = out.read_text(encoding="utf-8", errors="replace")
    out.unlink()
    data, problem = _data(part, text)
    if state == PASSED and problem:
        state = FAILED
    said = "" if part.output is None and data else text + "\n"
    # Errors come last.
    tail = (said + log.read_text(encoding="utf-8", errors="replace")).strip()
    log.write_text(tail + "\n", encoding="utf-8")
    return _found(
        part, state, time.perf_counter() - begun, _why(state, status, part, tail, problem), data, tail[-_TAIL:]
    )


def not_tried(part: Part, why: str = "no CUDA") -> JsonObject:
    """The entry of a part that was left out."""
    return _found(part, NOT_TRIED, 0.0, f"not tried: {why}", None, "")


def _found(part: Part, state: str, seconds: float, detail: str, data: Any, tail: str) -> JsonObject:
    return {
        "name": part.name,
        "title": part.title,
        "state": state,
        "seconds": seconds,
        "detail": detail,
        "avoid": part.avoid if state in (FAILED, LATE) else "",
        "command": " ".join(part.command[1:]),
        "data": data,
        "log": tail,
    }


def _data(part: Part, text: str) -> tuple[Any, str]:
    """The JSON that a part has written, and the error where there is none."""
    if part.output is None and "--json" not in part.command:
        return None, ""
    try:
        return json.loads(part.output.read_text(encoding="utf-8") if part.output is not None else text), ""
    except (OSError, ValueError) as error:
        return None, f"no JSON: {error}"


def _why(state: str, status: int | None, part: Part, tail: str, problem: str) -> str:
    last = next((line.strip() for line in reversed(tail.splitlines()) if line.strip()), "")
    if state == PASSED:
        return last if part.output is None and part.name == "tests" else ""
    if state == LATE:
        return f"no end within {part.limit_s:.0f} s; last: {last}"
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            return f"died of {signal.Signals(-status).name}; last: {last}"
    return last or problem or f"ended with status {status}"


def _hint(found: JsonObject) -> str:
    said = f": {found['detail']}" if found["detail"] else ""
    return said + (f"; avoided by {found['avoid']}" if found["avoid"] else "")


def write(told: JsonObject, folder: Path) -> None:
    """The report as JSON, and as a page that needs nothing beside it."""
    (folder / "report.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    (folder / "index.html").write_text(page.html(told), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
