"""The folder that RoboBPP's board asks for: script, models and how to run them.

python examples/robobpp/make_submission.py robobpp_submission

The board (arXiv 2512.04415) takes a script that reads a sequence of boxes and writes their places, and two models for
each of its data: one for Math Pack, and one for the packs under gravity. Here both are the same weights, the second
under the rule `load_bearing`. --model takes weights of your own, as `PackingPolicy.save` writes them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch

from torchrl_gpu.envs.packing.protocols import PALLETS
from torchrl_gpu.policies import PackingPolicy
from torchrl_gpu.policies.packing.placement_values import LinearPlacementValues
from torchrl_gpu.policies.packing.pretrained import FOLDER
from torchrl_gpu.system import machine

HERE = Path(__file__).parent
LICENSE = HERE.parents[1] / "LICENSE"
# The board's names for its data, and ours.
DATA = {"time_series": "repetitive", "occupancy": "diverse", "flat_long": "boards"}
MARGIN_M = 0.03
# Degrees at which a box may come to lie, and up to which it then bears load. On training rows leaning gains nothing on
# `repetitive`. What leans on `boards` bears load: they are filled more, which counts most, but more pallets collapse.
# At 8 degrees long boards find a place without looking for free ones.
LEANING: dict[str, dict[str, float]] = {
    "repetitive": {},
    "diverse": {"max_tilt": 3.0},
    "boards": {"max_tilt": 8.0, "bearing_tilt": 8.0},
}
# Metres between boxes, and levels times boxes at which a plan ends, see `Exposure`: creeping piles stand longer so.
CREEPING: dict[str, dict[str, float]] = {"repetitive": {"clearance": 0.01, "exposure": 24}}
# How much the lowest places of probe boxes count in the packs under gravity, see `FreePlaces`. In Math Pack a look at
# them gains nothing where probes and boxes are of different goods.
LOOKING = {"repetitive": 2.0, "diverse": 2.0}
# By data, boxes of the training rows from short to long, centimetres with their clearance.
PROBES = HERE / "probes.json"
PACKS = ("math", "physics")
SHOWN_VERSIONS = ("torchrl_gpu", "torch", "torchrl", "tensordict", "numpy")


def make_folder(folder: Path, models: dict[str, Path]) -> None:
    """Write the submission into a folder.

    `models` are files by "DATA-PACK", such as "diverse-math"; others come with the package.
    """
    (folder / "models").mkdir(parents=True, exist_ok=True)
    settings = {}
    probes = json.loads(PROBES.read_text(encoding="utf-8"))
    for board_name, name in DATA.items():
        settings[board_name] = _settings(name, probes.get(name, []))
        for pack in PACKS:
            model = models.get(f"{name}-{pack}", FOLDER / f"{name}.safetensors")
            # A file that is no policy is refused here, and not by the board.
            policy = PackingPolicy.from_pretrained(model, "cpu")
            if pack == "physics" and name in LOOKING and not isinstance(policy.tables, LinearPlacementValues):
                raise ValueError(
                    f"make_submission: {name}-{pack} looks at free places, which weights of placements alone do;"
                    f" {model} holds {type(policy.tables).__name__}: leave {name} out of LOOKING"
                )
            policy.save(folder / _model_path(name, pack))
    (folder / "settings.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(HERE / "main.py", folder / "main.py")
    shutil.copyfile(LICENSE, folder / "LICENSE")
    text = (HERE / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(text + _versions(), encoding="utf-8")


def _model_path(name: str, pack: str) -> str:
    return f"models/{name}-{pack}.safetensors"


def _settings(name: str, probes_cm: list[list[float]]) -> dict[str, object]:
    """Container, rules and models of one of the data."""
    pallet = PALLETS[name]
    rule = {"stability": "load_bearing", "margin": MARGIN_M, **LEANING[name]}
    math = {"model": _model_path(name, "math"), "rule": {}}
    physics = {"model": _model_path(name, "physics"), "rule": rule, **CREEPING.get(name, {})}
    if name in LOOKING:
        physics["free_places"] = {"weight": LOOKING[name], "probes_cm": probes_cm}
    container_cm = [round(100 * side) for side in pallet["bin_size"]]
    return {"protocol": name, "container_cm": container_cm, "math": math, "physics": physics}


def _versions() -> str:
    described = machine.describe(torch.device("cpu"))
    lines = ["", "## Versions", "", f"Made with {described['system'].rpartition(', ')[2]} and:", ""]
    lines += [f"- {package} {described['versions'][package]}" for package in SHOWN_VERSIONS]
    if described["commit"]:
        lines.append(f"- commit {described['commit']} of torchrl_gpu")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folder", type=Path, help="of the submission; files there are replaced")
    add(
        "--model",
        nargs="+",
        default=[],
        metavar="DATA-PACK=FILE",
        help="weights of your own: diverse-math=a.safetensors",
    )
    args = parser.parse_args()
    models = {}
    for each in args.model:
        name, _, file = each.partition("=")
        data, _, pack = name.partition("-")
        if data not in LEANING or pack not in PACKS or not file:
            parser.error(
                f"--model must be such as diverse-math=FILE, with {', '.join(LEANING)} and math or physics; got {each}"
            )
        models[name] = Path(file)
    make_folder(args.folder, models)
    print(f"Written: {args.folder}/main.py, settings.json, models, README.md")


if __name__ == "__main__":
    main()
