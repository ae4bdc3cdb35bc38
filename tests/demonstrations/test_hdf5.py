"""robomimic and Minari: each number where it belongs, and no row behind the last action."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from tests.demonstrations import row_files
from torchrl_gpu.demonstrations import read_demonstrations
from torchrl_gpu.envs import memory


def test_robomimic(tmp_path: Path) -> None:
    shown = read_demonstrations(row_files.write_robomimic(tmp_path / "a.hdf5"))
    assert shown.lengths.tolist() == list(row_files.LENGTHS)
    assert set(shown.rows.keys()) == {"action", "state", "hand"}
    for name in ("action", "state", "hand"):
        assert torch.equal(shown.rows[name], row_files.joined(name))


@pytest.mark.parametrize(("grouped", "name"), [(True, "observation.state"), (False, "observation")])
def test_minari(grouped: bool, name: str, tmp_path: Path) -> None:
    folder = row_files.write_minari(tmp_path / "a", grouped)
    for path in (folder, folder / "data" / "main_data.hdf5"):
        shown = read_demonstrations(path)
        assert shown.lengths.tolist() == list(row_files.LENGTHS)
        assert torch.equal(shown.rows[name], row_files.joined("state"))
        assert torch.equal(shown.rows["action"], row_files.joined("action"))


def test_episodes_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in (10, 9, 2):
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"] = np.full((1, 1), float(number))
            demo["obs/state"] = np.zeros((1, 1))
    assert read_demonstrations(tmp_path / "a.hdf5").rows["action"].flatten().tolist() == [2.0, 9.0, 10.0]


def test_compressed_pictures_and_flags(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), np.uint8)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((6, 1))
        demo.create_dataset("obs/frames", data=frames, compression="gzip", shuffle=True)
        demo.create_dataset("obs/shut", data=np.arange(6) > 2, compression="lzf")
    rows = read_demonstrations(tmp_path / "a.hdf5").rows
    assert torch.equal(rows["frames"], torch.from_numpy(frames))
    assert rows["shut"].tolist() == [False] * 3 + [True] * 3


def test_an_install_without_h5py_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = row_files.write_robomimic(tmp_path / "a.hdf5")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(ModuleNotFoundError, match=r"demonstrations: want h5py, .* 'torchrl_gpu\[hdf5\]'"):
        read_demonstrations(path)


def test_what_does_not_fit_into_memory_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:  # of 10 kB
        demo = file.create_group("data/demo_0")
        demo["actions"] = np.zeros((6, 1))
        demo.create_dataset("obs/frames", (6, 4096, 4096, 3), np.uint8, chunks=(1, 1024, 1024, 3), compression="gzip")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 2**28)
    with pytest.raises(ValueError, match=r"demo_0/obs/frames: want arrays that fit into memory; got .* too many"):
        read_demonstrations(tmp_path / "a.hdf5")
