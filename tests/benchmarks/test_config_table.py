"""The table of every config: all of them, with figures of the committed results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import config_table
from torchrl_gpu import configs


def rows() -> dict[str, list[str]]:
    found = {}
    for line in config_table.table().splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[cells[0].partition("`")[2].partition("`")[0]] = cells[1:]
    return found


def test_every_shipped_config_has_a_row() -> None:
    assert list(rows()) == configs.names()
    assert set(config_table.REACHED) < set(configs.names())


def test_what_was_not_measured_says_so() -> None:
    found = rows()
    for name in configs.names():
        reached, minutes, figures = found[name][2:]
        assert (reached == "not measured as shipped") == (name not in config_table.REACHED)
        assert (figures == "") == (name not in config_table.REACHED)
        assert minutes == "" or name in config_table.REACHED


def test_figures_are_those_of_the_results() -> None:
    fit = json.loads((config_table.RESULTS / "fit.json").read_text())
    (ours,) = [each for each in fit["policies"] if each["policy"] == "afterstate values"]
    assert rows()["packing.yaml"][2] == f"fills {100 * ours['utilization']:.1f}% ± 0.4% of the bin"
    assert rows()["navigation_iqn.yaml"][2].startswith("all robots cross 84.0% ± 1.6%")


def test_another_result_is_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(name: str) -> Any:
        return {
            "policies": [{"policy": "afterstate values", "utilization": 0.5, "utilization_error": 0.01}],
            "minutes": 7,
        }

    monkeypatch.setattr(config_table, "_read", read)
    assert config_table._reached("packing.yaml")[:2] == ["fills 50.0% ± 1.0% of the bin", "7.0"]


def test_a_header_gives_its_first_sentence() -> None:
    assert config_table.learns("packing_dqn.yaml") == "Learns to pack boxes into a bin of 10×10×10 cells"
