"""Cores that this process may use, by its affinity and its control groups.

This module imports nothing heavy.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def usable_cores() -> int:
    """Number of cores that this process may use at once.

    A quota of 1.5 cores counts as 2.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, core_quota(Path("/")))))


def core_quota(root: Path) -> float:
    """Cores that control groups allow the processes of this container.

    Args:
        root: Folder that holds `proc` and `sys`.

    Returns:
        Their number, infinite without a limit.
    """
    return min(_quotas(root), default=math.inf)


# A container with half a core still sees all cores of its machine, and torch would start as many threads, which then
# wait for each other's share of the time. Python tells of affinity alone, so that the files of the kernel are read. The
# least quota of a group and of all groups above it holds.
def _quotas(root: Path) -> Iterator[float]:
    """Quota of every group above this process, of both versions of control groups."""
    mounts = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        fields = [*line.split(":", 2), "", ""]
        controllers = fields[1]
        path = fields[2]
        if controllers == "":
            for folder in _up_from(mounts, path):
                yield from _version_2(folder)
        elif "cpu" in controllers.split(","):
            for mount in (mounts / controllers, mounts / "cpu"):
                for folder in _up_from(mount, path):
                    yield from _version_1(folder)


def _up_from(mount: Path, path: str) -> list[Path]:
    """Folders of a group and of all above it, where a container sees them."""
    inside = Path(path.lstrip("/"))
    # The group of a process may be outside of what its container sees.
    if ".." in inside.parts:
        return [mount]
    return [mount / part for part in (inside, *inside.parents)]


def _version_2(folder: Path) -> Iterator[float]:
    for line in _lines(folder / "cpu.max")[:1]:
        fields = [*line.split(), "", ""]
        yield from _share_of_time(fields[0], fields[1])


def _version_1(folder: Path) -> Iterator[float]:
    quotas = _lines(folder / "cpu.cfs_quota_us")
    periods = _lines(folder / "cpu.cfs_period_us")
    if quotas and periods:
        yield from _share_of_time(quotas[0], periods[0])


def _share_of_time(quota: str, period: str) -> Iterator[float]:
    """Cores of a quota of microseconds in each period.

    Nothing where either is no number, as it is without a limit.
    """
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        yield int(quota) / int(period)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
