"""Heightmaps kept in the process and in files."""

from __future__ import annotations

import logging
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.records import values_by_name
from torchrl_gpu.envs.packing.items import mesh_cache as module
from torchrl_gpu.envs.packing.items.mesh_cache import MeshCache, cache_key
from torchrl_gpu.envs.packing.items.rasterise import Heightmaps
from torchrl_gpu.envs.packing.rotations import orientation_set

CPU = torch.device("cpu")
KEY = "ab" * 32


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_kept", OrderedDict())


def some_maps(num_orientations: int = 2, size: int = 3) -> Heightmaps:
    top = torch.full((num_orientations, size, size), 0.5)
    bottom = torch.zeros_like(top)
    top[:, 1, 1], bottom[:, 1, 1] = 0.0, torch.inf
    return Heightmaps(top, bottom, torch.full((num_orientations, 2), size))


def assert_same(found: Heightmaps | None, expected: Heightmaps) -> None:
    assert found is not None
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_process_keeps_what_it_has_made(device: torch.device) -> None:
    maps = Heightmaps(*(value.to(device) for value in some_maps()))
    device = maps.top.device
    assert MeshCache(None).get(KEY, 2, device) is None
    MeshCache(None).put(KEY, maps)
    assert MeshCache(None).get(KEY, 2, device) is maps
    assert MeshCache(None).get("other", 2, device) is None


def test_the_process_keeps_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = MeshCache(None)
    monkeypatch.setattr(module, "_MOST_BYTES", 2 * module.bytes_of(some_maps()))
    cache.put("a", some_maps())
    cache.put("b", some_maps())
    # Now b is the one not used for longest.
    assert cache.get("a", 2, CPU) is not None
    cache.put("c", some_maps())
    assert [cache.get(key, 2, CPU) is not None for key in "abc"] == [True, False, True]


def test_a_folder_outlives_the_process(tmp_path: Path) -> None:
    MeshCache(tmp_path / "new" / "folder").put(KEY, some_maps())
    module.forget()
    assert_same(MeshCache(tmp_path / "new" / "folder").get(KEY, 2, CPU), some_maps())
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == [f"{KEY}.pt"]
    # A folder gets what the process has kept.
    assert_same(MeshCache(tmp_path).get(KEY, 2, CPU), some_maps())
    module.forget()
    assert_same(MeshCache(tmp_path).get(KEY, 2, CPU), some_maps())


def saved(**changes: object) -> Callable[[Path], object]:
    held = {"key": KEY} | values_by_name(some_maps()) | changes
    return lambda path: torch.save(held, path)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a file of the cache was executed",))


MAPS = some_maps()
BROKEN: dict[str, Callable[[Path], object]] = {}
BROKEN["empty"] = lambda path: path.write_bytes(b"")
BROKEN["text"] = lambda path: path.write_text("hello")
BROKEN["cut off"] = lambda path: (saved()(path), path.write_bytes(path.read_bytes()[:700]))
BROKEN["a pickle"] = lambda path: path.write_bytes(pickle.dumps(Evil()))
BROKEN["a pickle in a tensor file"] = lambda path: torch.save({"key": KEY, "top": Evil()}, path)
BROKEN["no dict"] = lambda path: torch.save([1, 2], path)
BROKEN["of another mesh"] = saved(key="cd" * 32)
BROKEN["a part missing"] = saved(bottom=None)
BROKEN["another type"] = saved(top=MAPS.top.double())
BROKEN["another shape"] = saved(top=MAPS.top[:, :2])
BROKEN["other orientations"] = lambda path: torch.save({"key": KEY} | values_by_name(some_maps(3)), path)
BROKEN["another extent"] = saved(extent=MAPS.extent + 1)
BROKEN["not a number"] = saved(top=MAPS.top * torch.nan)
BROKEN["negative"] = saved(bottom=MAPS.bottom - 1)
BROKEN["upside down"] = saved(top=MAPS.top * 0.0, bottom=MAPS.bottom + 1)
BROKEN["material on nothing"] = saved(top=MAPS.top + 1)


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_and_foreign_files_are_reported_and_made_again(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / f"{KEY}.pt"
    BROKEN[kind](path)
    cache = MeshCache(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert cache.get(KEY, 2, CPU) is None
    (record,) = caplog.records
    assert record.getMessage().startswith(f"MeshCache: {path}: made again: ")
    cache.put(KEY, some_maps())
    module.forget()
    assert_same(cache.get(KEY, 2, CPU), some_maps())


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = MeshCache(tmp_path)
    cache.put(KEY, some_maps())

    def full(_: object, file: Any) -> None:
        file.write(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"no space .*left"):
        cache.put(KEY, some_maps(size=5))
    module.forget()
    assert_same(cache.get(KEY, 2, CPU), some_maps())
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.pt"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    with pytest.raises(ValueError, match=r"^MeshCache: .*a.pt: .*folder"):
        MeshCache(tmp_path / "a.pt")


def test_keys_hang_on_all_that_decides_the_maps() -> None:
    cube = orientation_set("cube", boxes=False)
    yaw = orientation_set("yaw", boxes=False)
    keys = [
        cache_key("a", 1.0, cube, (0.1, 0.1)),
        cache_key("b", 1.0, cube, (0.1, 0.1)),
        cache_key("a", 1.1, cube, (0.1, 0.1)),
        cache_key("a", 1.0, yaw, (0.1, 0.1)),
        cache_key("a", 1.0, cube, (0.1, 0.2)),
    ]
    assert len(set(keys)) == len(keys)
    assert cache_key("a", 1.0, cube.copy(), (0.1, 0.1)) == keys[0]
    assert cache_key("a", 1.0, np.where(cube == 0, -0.0, cube), (0.1, 0.1)) == keys[0]
