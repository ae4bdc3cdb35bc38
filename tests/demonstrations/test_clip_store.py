"""Clips of stored frames, against a loop, and without a host read."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from tests.no_host_reads import NoHostReads
from torchrl_gpu.demonstrations import ClipStore


def store_of(lengths: list[int]) -> ClipStore:
    """Every frame has its number as its only value."""
    total = sum(lengths)
    frames = torch.arange(total, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2).contiguous()
    rows = TensorDict({"action": torch.arange(total).float()[:, None]}, [total])
    return ClipStore(frames, lengths, rows, fps=10.0)


def naive_clip(lengths: list[int], number: int, length: int) -> list[int]:
    """Frame by frame, backwards from one of them."""
    begins = [sum(lengths[:i]) for i in range(len(lengths))]
    begin = max(each for each in begins if each <= number)
    clip = [number]
    while len(clip) < length:
        clip.insert(0, clip[0] - 1 if clip[0] > begin else clip[0])
    return clip


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 12), st.data())
def test_clips_are_those_of_a_loop(lengths: list[int], length: int, data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, sum(lengths) - 1), min_size=1, max_size=6))
    clips = store_of(lengths).clips(torch.tensor(index), length)
    assert clips.shape == (len(index), length, 3, 2, 2)
    assert clips.dtype == torch.uint8
    assert clips[:, :, 0, 0, 0].tolist() == [naive_clip(lengths, number, length) for number in index]


def test_nothing_is_read_back() -> None:
    store, index = store_of([3, 4]), torch.tensor([0, 6, 3])
    with NoHostReads():
        store.clips(index, 4)
        store.batch(index, 4)


def test_indices_beyond_the_store_are_the_nearest() -> None:
    clips = store_of([3, 4]).clips(torch.tensor([-5, 99]), 2)[:, :, 0, 0, 0]
    assert clips.tolist() == [[0, 0], [5, 6]]


def test_a_batch_has_what_belongs_to_the_last_frames() -> None:
    batch = store_of([3, 4]).batch(torch.tensor([2, 5]), 3)
    assert batch["action"].flatten().tolist() == [2.0, 5.0]
    assert batch["clip"][:, -1, 0, 0, 0].tolist() == [2, 5]


@pytest.mark.parametrize("lengths", [[], [2], [8], [7, 0]])
def test_lengths_add_up(lengths: list[int]) -> None:
    frames = torch.zeros(7, 3, 2, 2, dtype=torch.uint8)
    with pytest.raises(ValueError, match="want lengths of episodes that add up"):
        ClipStore(frames, lengths, TensorDict(batch_size=[7]), fps=10.0)
