"""Demonstrations on the pretended device.

They are decoded onto it, clips are gathered there without a wait, and rows are staged through pinned memory.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.demonstrations.drawn import write_dataset
from tests.pretend_cuda import waits
from torchrl_gpu.demonstrations import ClipStore, load_demonstrations, save_store

CUDA = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("lerobot") / "sink")


@pytest.fixture(scope="module")
def store(dataset: Path) -> ClipStore:
    return load_demonstrations(dataset, size=(8, 8), device="cuda", decoder="pyav")


def test_clips_are_gathered_on_the_device_without_a_wait(store: ClipStore) -> None:
    index = torch.arange(0, 22, 3, device=CUDA)
    with waits() as counted:
        batch = store.batch(index, 4)
    assert counted.total == 0, counted.report()
    assert store.frames.device == CUDA
    assert all(value.device == CUDA for value in batch.values(True, True))


def test_staged_clips_are_the_same(store: ClipStore, dataset: Path, tmp_path: Path) -> None:
    index = torch.arange(0, 22, 3, device=CUDA)
    staged = load_demonstrations(dataset, size=(8, 8), device="cuda", placement="host", decoder="pyav")
    assert staged.frames.device.type == "cpu"
    opened = load_demonstrations(save_store(store, tmp_path / "clips"), device="cuda")
    assert opened.frames.device == CUDA
    for other in (staged, opened):
        clips = other.clips(index, 4)
        assert clips.device == CUDA
        assert torch.equal(clips.cpu(), store.clips(index, 4).cpu())
