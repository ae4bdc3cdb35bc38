"""Cores that this process may use, by its affinity and by the quotas of its control groups. Imports nothing heavy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def usable_cores() -> int:
    """Number of cores that this process may use at once; a container's quota of 1.5 cores counts as 2."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, core_quota(Path("/")))))


def core_quota(root: Path) -> float:
    """Cores that control groups allow the processes of this container; infinite without a limit.

    Args:
        root: Folder that holds `proc` and `sys`.
    """
    return min(_quotas(root), default=math.inf)


def _quotas(root: Path) -> Iterator[float]:
    """The quota of every group above this process, of both versions of control groups."""
    mounts = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            for folder in _up_from(mounts, path):
                yield from _version_2(folder)
        elif "cpu" in controllers.split(","):
            for mount in (mounts / controllers, mounts / "cpu"):
                for folder in _up_from(mount, path):
                    yield from _version_1(folder)


def _up_from(mount: Path, path: str) -> list[Path]:
    """Folders of a group and of all above it; a container may see only the topmost."""
    inside = Path(path.lstrip("/"))
    if ".." in inside.parts:
        return [mount]
    return [mount / part for part in (inside, *inside.parents)]


def _version_2(folder: Path) -> Iterator[float]:
    for line in _lines(folder / "cpu.max")[:1]:
        quota, period = [*line.split(), "", ""][:2]
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            yield int(quota) / int(period)


def _version_1(folder: Path) -> Iterator[float]:
    quotas, periods = _lines(folder / "cpu.cfs_quota_us"), _lines(folder / "cpu.cfs_period_us")
    for quota, period in zip(quotas[:1], periods[:1], strict=False):
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            yield int(quota) / int(period)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
