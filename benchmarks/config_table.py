"""Table of all shipped configs for the documentation.

What a config learns comes from its header, and what it reached from the committed results.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.result_types import JsonObject
from torchrl_gpu import configs
from torchrl_gpu.evaluation.estimates import percent, share_error

RESULTS = Path(__file__).parent / "results"
LINKS = "../benchmarks/results"


class Reached(NamedTuple):
    """The files of a config's figures.

    Attributes:
        result: File of the results that holds the score, without its suffix.
        score: The score as it is written, from the content of that file.
        training: File that holds the minutes, as `minutes` or as `wall_s_after_install`; None where no time is told.
        note: What else is worth knowing.
    """

    result: str
    score: Callable[[JsonObject], str]
    training: str | None = None
    note: str = ""


def _of(rows: list[JsonObject], name: str, key: str = "policy") -> JsonObject:
    found = [each for each in rows if each[key] == name]
    assert len(found) == 1, (key, name)
    return found[0]


def _fills(name: str) -> Callable[[JsonObject], str]:
    def score(result: JsonObject) -> str:
        policy = _of(result["policies"], name)
        return f"fills {policy['utilization']:.1%} ± {policy['utilization_error']:.1%} of the bin"

    return score


def _profit(name: str) -> Callable[[JsonObject], str]:
    def score(result: JsonObject) -> str:
        row = _of(result["rows"], name)
        return f"earns {row['profit']:.1f} ± {row['error']:.1f} EUR in a shift"

    return score


def _crosses(name: str) -> Callable[[JsonObject], str]:
    def score(result: JsonObject) -> str:
        share = _of(result["policies"], name)["scores"]["success"]
        error = share_error(share, result["worlds"]["num_worlds"])
        return f"all robots cross {percent(share, error)} of the worlds"

    return score


def _crosses_after_half_an_hour(result: JsonObject) -> str:
    section = _of(result["sections"], "navigation", "title")
    row = _of(section["rows"], "PPO", "name")
    last = row["after"][-1]
    return f"all robots cross {last['value']:.0%} ± {last['error']:.0%} of the worlds"


def _packs_irregular(result: JsonObject) -> str:
    method = _of(result["tables"][0]["methods"], "manager + worker", "method")
    column = method["columns"]["C"]
    return f"compactness {column['mean']:.3f} ± {column['error']:.3f}"


def _last(name: str, does: str) -> Callable[[JsonObject], str]:
    return lambda result: f"{does.format(result['curves'][name]['value'][-1])} in the last validation"


def _agrees(result: JsonObject) -> str:
    return f"decides as the rule does in {result['agreement']['mean']:.1%} of the states"


_fills_at_last = _last("val/utilization", "fills {:.1%} of the bin")
_OF_ORDERS = (
    "with weights of small bins; what comes with the package for it fills"
    " [more](environments/packing.md#orders-on-a-pallet)"
)
_OF_PPO = "30 minutes of processor time, at a constant learning rate"

# Configs that are not here have not been measured as shipped.
REACHED: dict[str, Reached] = {}
REACHED["bc.yaml"] = Reached("cloning", _agrees, "cloning_training")
REACHED["dishwashing_feasible.yaml"] = Reached("dishwashing", _profit("SAC, state"), "dishwashing_state_training")
REACHED["dishwashing_video.yaml"] = Reached("dishwashing", _profit("SAC, video"), "dishwashing_video_training")
REACHED["navigation_ac_iqn.yaml"] = Reached("navigation_ac_iqn", _crosses("ACIQN"), "navigation_ac_iqn_training")
REACHED["navigation_iqn.yaml"] = Reached("navigation_iqn", _crosses("IQN"), "navigation_iqn_training")
REACHED["packing.yaml"] = Reached("fit", _fills("afterstate values"), "fit")
REACHED["packing_bc_to_rl.yaml"] = Reached("packing_bc_to_rl", _fills("DQN"), "packing_bc_to_rl_training")
REACHED["packing_dqn.yaml"] = Reached("packing_dqn", _fills("DQN"), "packing_dqn_training")
REACHED["packing_irregular.yaml"] = Reached("packer_easy", _packs_irregular, "packer_training")
REACHED["packing_orders.yaml"] = Reached("orders", _fills("DQN"), None, _OF_ORDERS)
REACHED["packing_refined.yaml"] = Reached("packing_refined_training", _fills_at_last, "packing_refined_training")
REACHED["ppo_marine.yaml"] = Reached("equal_time", _crosses_after_half_an_hour, "ppo_marine_training", _OF_PPO)
REACHED["ppo_packing.yaml"] = Reached("ppo_packing_training", _fills_at_last, "ppo_packing_training")


def learns(name: str) -> str:
    """The first sentence of a config's header."""
    lines = Path(configs.find(name)).read_text(encoding="utf-8").splitlines()
    header_lines = itertools.takewhile(lambda line: line.startswith("#"), lines)
    header = " ".join(line.lstrip("# ") for line in header_lines)
    for end in (". ", ": "):
        header = header.partition(end)[0]
    return header.rstrip(".")


def _method(name: str) -> str:
    """Return the class of the module, and of its agent where it has one."""
    model = yaml.safe_load(Path(configs.find(name)).read_text(encoding="utf-8"))["model"]
    agent = model["init_args"].get("agent")
    paths = [model["class_path"], *([agent["class_path"]] if agent else [])]
    return ", ".join(f"`{path.rpartition('.')[2]}`" for path in paths)


def table() -> str:
    """Every shipped config, as Markdown."""
    lines = ["| config | what it does | how | what it reached | minutes | figures |", "|---|---|---|---|---|---|"]
    for name in configs.names():
        cells = [f"[`{name}`](../torchrl_gpu/configs/{name})", learns(name), _method(name), *_reached(name)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _reached(name: str) -> list[str]:
    if name not in REACHED:
        return ["not measured as shipped", "", ""]
    about = REACHED[name]
    score = about.score(_read(about.result)) + (f" ({about.note})" if about.note else "")
    training = _read(about.training) if about.training else {}
    minutes = training.get("minutes", training.get("wall_s_after_install", 0) / 60)
    files = {about.result: "scores"} | (
        {about.training: "training"} if about.training not in (None, about.result) else {}
    )
    links = ", ".join(f"[{what}]({LINKS}/{file}.json)" for file, what in files.items())
    return [score, _written(minutes), links]


def _written(minutes: float) -> str:
    if not minutes:
        return ""
    return f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.1f}"


def _read(name: str) -> JsonObject:
    content: JsonObject = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content
