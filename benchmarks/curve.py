"""The curves of a training run as JSON: `python benchmarks/curve.py FOLDER [--output FILE]`.

FOLDER is what TensorBoardLogger wrote, `runs/NAME/tensorboard/version_0`. Every scalar that the run logged is kept, at
most `--points` of each, and how long the run took from its first to its last figure.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def curves(folder: Path, points: int) -> dict[str, Any]:
    """Steps, values and seconds since the run's first figure of every scalar."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    logged = {name: events.Scalars(name) for name in sorted(events.Tags()["scalars"])}
    if not logged:
        raise ValueError(f"curve: want a folder with TensorBoard's scalars; got {folder}")
    times = [event.wall_time for each in logged.values() for event in each]
    first = min(times)
    kept = {}
    for name, each in logged.items():
        stride = -(-len(each) // points)
        chosen = each[::-stride][::-1]  # the last is among them
        kept[name] = {
            "step": [event.step for event in chosen],
            "seconds": [round(event.wall_time - first, 1) for event in chosen],
            "value": [round(event.value, 6) for event in chosen],
        }
    return {"minutes": round((max(times) - first) / 60, 1), "curves": kept}


def main() -> None:
    """Writes the JSON, or prints how long the run took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--points", type=int, default=100)
    parser.add_argument("--note", default="", help="what else is to be known of the run")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    found = {"note": args.note} | curves(args.folder, args.points)
    print(f"{found['minutes']} minutes, {len(found['curves'])} scalars")
    if args.output:
        args.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"Written: {args.output}")


if __name__ == "__main__":
    main()
