"""The report of `make gpu`.

Parts that fail, hang, crash or say nothing leave the others, and the report says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import page, report
from benchmarks.gpu.parts import Part, parts
from torchrl_gpu import configs


def part(name: str, code: str, limit_s: float = 60, **changes: object) -> Part:
    return Part(name, f"A part that {name}", (sys.executable, "-c", code), limit_s, avoid="--without", **changes)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report of one part of every kind, on a CPU."""
    folder = tmp_path_factory.mktemp("report")
    written = folder / "good.json"
    data = '{"rows": [{"config": "packing", "num_envs": 4, "seconds_per_step": 0.01, "steps_per_s": 400.0,' + (
        ' "backend": "compiled", "kernels": []}]}'
    )
    kinds = [
        part("timings", f"open({str(written)!r}, 'w').write({data!r}); print('fine')", output=written),
        part("fails", "import sys; print('so far', flush=True); sys.exit('no such <option>')"),
        part("hangs", "import time; print('still here', flush=True); time.sleep(60)", limit_s=1.5),
        part("crashes", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"),
        part("says nothing", "pass", output=folder / "nothing.json"),
        part("needs a GPU", "raise AssertionError", cuda_only=True),
    ]
    before = os.environ.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "parts", lambda device, quick, folder: kinds)
        assert report.main(["--device", "cpu", "--quick", "--output", str(folder / "report")]) == 1
    assert os.environ == before
    told: dict[str, Any] = json.loads((folder / "report" / "report.json").read_text())
    return told | {"page": (folder / "report" / "index.html").read_text(), "folder": folder}


def test_each_part_leaves_the_rest(made: dict[str, Any]) -> None:
    states = {found["name"]: (found["state"], found["detail"], found["avoid"]) for found in made["parts"]}
    assert states == {
        "timings": ("passed", "", ""),
        "fails": ("failed", "no such <option>", "--without"),
        "hangs": ("ended: too long", "no end within 2 s; last: still here", "--without"),
        "crashes": ("failed", "died of SIGSEGV; last: ", "--without"),
        "says nothing": (
            "failed",
            f"no JSON: [Errno 2] No such file or directory: '{made['folder'] / 'nothing.json'}'",
            "--without",
        ),
        "needs a GPU": ("not tried", "not tried: no CUDA", ""),
    }
    assert made["parts"][0]["data"]["rows"][0]["steps_per_s"] == 400
    assert {"device", "driver", "versions", "commit"} <= set(made["machine"])


def test_the_page_needs_nothing_beside_it_and_is_escaped(made: dict[str, Any]) -> None:
    said = made["page"]
    assert "no such &lt;option&gt;" in said
    assert "no such <option>" not in said
    assert "not tried: no CUDA" in said
    assert "<code>--without</code>" in said
    assert not any(word in said for word in ("<script", "http://", "https://", 'src="/', "href="))


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
def test_what_is_ended_ends_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(60)"
    )
    found = report.run(part("hangs", code, limit_s=5), tmp_path)
    assert found["state"] == report.LATE
    process = int((tmp_path / "pid").read_text())
    # It may have ended already.
    with contextlib.suppress(ProcessLookupError):
        ended, _, _ = select.select([os.pidfd_open(process)], [], [], 20)
        assert ended


def test_unknown_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--only: .*drs.* doctor, tests, "):
        report.main(["--device", "cpu", "--output", str(tmp_path), "--only", "drs"])


ROWS = [{"name": "ours eager, 4", "rate": 1234.5, "range": [1000.0, 2000.0], "ratios": {"numpy": 2.0}}]
KERNEL = {"kernel": "drop_boxes_kernel", "launches_per_step": 1.0, "seconds": 2e-5, "bound_s": 1e-5, "limit": "bytes"}
DOCTOR = [{"group": "device", "name": "cuda:0", "state": "works", "detail": "a chip"}]
PARITY = {"backend": "triton", "device": "cuda:0", "setting": "s", "difference": "z", "ran": True}
TIMINGS = {"config": "packing", "num_envs": 4, "seconds_per_step": 1.0, "steps_per_s": 4.0, "backend": "triton"}
TIMINGS |= {"kernels": [KERNEL | {"measured_over_bound": 2.0}]}
PACKING = ROWS[0] | {"group": "bpp10", "notes": "", "name": "4 envs", "ratio": 3.0}
KERNELS = {"title": "t", "unit": "z-maps/s", "rows": ROWS}
FIT = {"config": "packing_dqn.yaml", "graphs": True, "num_envs": 128, "loss": 0.5, "frames_per_s": 10.0}
FIT |= {"updates_per_s": 5.0, "warnings": ["GraphedRollout: not <steps>"]}
# What a part writes, and words of the page about it.
DATA: dict[str, tuple[object, str]] = {"doctor": (DOCTOR, "a chip"), "parity": ({"rows": [PARITY]}, "z")}
DATA |= {
    "timings": ({"rows": [TIMINGS]}, "2.00"),
    "packing": ({"rows": [PACKING]}, "1,23"),
    "kernels": ({"sections": [KERNELS], "missing": ["ours triton: no"]}, "triton: no"),
    "fit_packing": (FIT, "GraphedRollout: not &lt;steps&gt;"),
}


@pytest.mark.parametrize("name", DATA)
def test_what_a_part_found_stands_on_the_page(name: str) -> None:
    pytest.importorskip("matplotlib")
    data, wanted = DATA[name]
    found = {"name": name, "title": name, "state": "passed", "seconds": 1.0, "detail": "", "avoid": "", "log": ""}
    machine = {"device_name": "a chip", "device": "cuda:0", "driver": "1", "cpu": "c", "cores": 2, "system": "s"}
    machine |= {"versions": {"torch": "2"}, "commit": None}
    said = page.html({"machine": machine, "made": "now", "quick": False, "parts": [found | {"data": data}]})
    assert wanted in said
    assert ("data:image/png;base64," in said) is (name not in ("doctor", "parity"))


def test_every_part_has_a_limit_and_fits_are_of_shipped_configs(tmp_path: Path) -> None:
    found = parts("cuda:0", False, tmp_path)
    assert all(each.limit_s > 0 and (each.avoid or each.name == "doctor") for each in found)
    assert sum(each.limit_s for each in found) < 8 * 3600
    words = set().union(*(each.command for each in found))
    assert {word for word in words if word.endswith(".yaml")} <= set(configs.names())
