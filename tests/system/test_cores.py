"""Cores that a process may use, from files as the kernel shows them to containers."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from torchrl_gpu.system import cores


def machine(root: Path, groups: str, **files: str) -> Path:
    """A folder with the files of `/proc` and `/sys/fs/cgroup`.

    `__` in a name stands for a slash.
    """
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups, encoding="utf-8")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"cpu_dot_max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu_dot_max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"a__cpu_dot_max": "200000 100000\n", "a__b__cpu_dot_max": "max 100000\n"}, 2),
        ("0::/a/b\n", {"cpu_dot_max": "50000 100000\n"}, 0.5),
        ("0::/../other\n", {"cpu_dot_max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu_dot_max": "nonsense\n"}, math.inf),
        ("0::/\n", {"cpu_dot_max": ""}, math.inf),
        ("", {}, math.inf),
        (
            "5:memory:/x\n4:cpu,cpuacct:/docker/1\n",
            {"cpu,cpuacct__cpu_dot_cfs_quota_us": "300000\n", "cpu,cpuacct__cpu_dot_cfs_period_us": "100000\n"},
            3,
        ),
        ("4:cpu:/\n", {"cpu__cpu_dot_cfs_quota_us": "-1\n", "cpu__cpu_dot_cfs_period_us": "100000\n"}, math.inf),
    ],
)
def test_quota_of_control_groups(tmp_path: Path, groups: str, files: dict[str, str], quota: float) -> None:
    assert cores.core_quota(machine(tmp_path, groups, **files)) == quota


def test_without_control_groups_nothing_limits(tmp_path: Path) -> None:
    assert cores.core_quota(tmp_path) == math.inf


@pytest.mark.parametrize(("quota", "wanted"), [(0.2, 1), (1.5, 2), (math.inf, 3)])
def test_usable_cores_obey_affinity_and_quota(monkeypatch: pytest.MonkeyPatch, quota: float, wanted: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(cores, "core_quota", lambda _: quota)
    assert cores.usable_cores.__wrapped__() == wanted
