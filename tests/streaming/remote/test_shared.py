"""Memory that two processes share, here by two maps of one."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrl_gpu.streaming.remote import shared
from torchrl_gpu.streaming.remote.shared import DEMAND_AT, HEIGHT, WATCHERS, Board, SharedFrames, SharedMemory


def test_a_frame_there_and_back() -> None:
    mine = SharedFrames(SharedMemory(size=SharedFrames.bytes_for(5 * 7 * 3)))
    theirs = SharedFrames(SharedMemory(mine.memory.path))
    pixels = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    version = mine.begin()
    mine.pixels(version, (5, 7, 3))[:] = pixels
    assert not theirs.holds(version)
    mine.commit(version)
    assert theirs.holds(version)
    np.testing.assert_array_equal(theirs.pixels(version, (5, 7, 3)), pixels)
    mine.memory.unlink()
    assert not Path(mine.memory.path).exists()
    np.testing.assert_array_equal(theirs.pixels(version, (5, 7, 3)), pixels)
    mine.memory.unlink()
    for memory in (mine.memory, theirs.memory):
        memory.close()


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=40))
def test_a_reader_knows_whether_it_was_overtaken(writes: list[bool]) -> None:
    frames = SharedFrames(SharedMemory(size=SharedFrames.bytes_for(3)))
    whole: dict[int, int] = {}
    for finished in writes:
        version = frames.begin()
        frames.pixels(version, (1, 1, 3))[:] = version % 251
        if finished:
            frames.commit(version)
            whole[version] = version % 251
        for old, shade in whole.items():
            if frames.holds(old):
                assert frames.pixels(old, (1, 1, 3)).tolist() == [[[shade] * 3]]
        assert not finished or frames.holds(version)
    frames.memory.unlink()
    frames.memory.close()


def test_the_memory_is_of_this_user_alone() -> None:
    memory = SharedMemory(size=100)
    assert stat.S_IMODE(os.stat(memory.path).st_mode) == 0o600
    memory.unlink()
    memory.close()


def test_a_full_disk_is_an_error_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def full(descriptor: int, size: int) -> None:
        made.append(os.readlink(f"/proc/self/fd/{descriptor}") if os.path.isdir("/proc/self/fd") else "")
        raise OSError(28, "no space left")

    monkeypatch.setattr(shared, "_set_aside", full)
    with pytest.raises(OSError, match="want 100 bytes of shared memory; got none"):
        SharedMemory(size=100)
    assert made
    assert not any(map(os.path.exists, filter(None, made)))


def test_the_board() -> None:
    mine = Board(SharedMemory(size=Board.SIZE))
    theirs = Board(SharedMemory(mine.memory.path))
    mine.forget_demand()
    assert theirs.get(63, DEMAND_AT) == math.inf
    theirs.set(5, DEMAND_AT, 12.25)
    theirs.set(5, WATCHERS, 3)
    theirs.set(5, HEIGHT, 480)
    assert (mine.get(5, DEMAND_AT), mine.get(5, WATCHERS), mine.get(5, HEIGHT)) == (12.25, 3, 480)
    mine.forget_demand()
    assert (theirs.get(5, DEMAND_AT), theirs.get(5, WATCHERS), theirs.get(5, HEIGHT)) == (math.inf, 0, 480)
    mine.memory.unlink()
    mine.close()
    theirs.close()
