"""Newest-wins places, against what they are defined to hold."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streaming.viewers import encoded
from torchrl_gpu.streaming.broadcast.frames import CapturedFrame, EncodedPicture
from torchrl_gpu.streaming.broadcast.mailboxes import FrameMailbox, GopQueue, NewestPicture


def capture(seq: int, pixels: np.ndarray | None = None) -> CapturedFrame:
    return CapturedFrame(np.zeros((1, 1, 3), np.uint8) if pixels is None else pixels, False, 0.0, seq, {})


def test_the_box_holds_the_newest_and_says_what_was_lost() -> None:
    box = FrameMailbox()
    assert box.take() is None
    assert [box.put(capture(1)), box.put(capture(2))] == [False, True]
    taken = box.take()
    assert taken is box.current
    assert taken is not None
    assert taken.seq == 2
    assert box.take() is None
    assert box.current is taken


def test_three_buffers_do_and_none_is_written_while_it_is_read() -> None:
    box, made = FrameMailbox(), 0
    for seq in range(30):
        buffer = box.buffer()
        made += buffer is None
        pixels = np.zeros((1, 1, 3), np.uint8) if buffer is None else buffer
        assert box.current is None or pixels is not box.current.pixels
        box.put(capture(seq, pixels))
        if seq % 3:
            box.take()
    assert made == 3


@settings(deadline=None)
@given(st.lists(st.sampled_from(["offer", "take"]), max_size=40))
def test_newest_gives_the_last_offer_and_counts_the_others(operations: list[str]) -> None:
    slot, naive, dropped = NewestPicture(), [], 0
    for seq, operation in enumerate(operations):
        if operation == "offer":
            dropped += len(naive)
            naive = [seq]
            slot.offer(encoded(seq))
        else:
            taken = slot.take()
            assert ([] if taken is None else [taken.seq]) == naive
            naive = []
    assert slot.dropped == dropped


@settings(deadline=None)
@given(st.lists(st.sampled_from(["key", "delta", "take"]), max_size=60), st.integers(1, 4))
def test_a_chain_gives_no_picture_whose_forerunner_it_left_out(operations: list[str], limit: int) -> None:
    slot = GopQueue(limit)
    given: list[EncodedPicture] = []
    for seq, operation in enumerate(operations):
        if operation == "take":
            taken = slot.take()
            given += [] if taken is None else [taken]
        else:
            slot.offer(encoded(seq, key=operation == "key", codec="h264"))
    offers = [seq for seq, operation in enumerate(operations) if operation != "take"]
    for i, picture in enumerate(given):
        assert picture.key or (i > 0 and offers.index(picture.seq) == offers.index(given[i - 1].seq) + 1)
    assert [picture.seq for picture in given] == sorted({picture.seq for picture in given})


def test_a_full_chain_drops_all_and_goes_on_at_the_next_key_picture() -> None:
    slot = GopQueue(limit=2)
    for seq, key in enumerate([False, True, False, False, False, True, False]):
        slot.offer(encoded(seq, key=key, codec="h264"))
        if seq == 3:
            assert slot.needs_key
    assert not slot.needs_key
    taken = [slot.take(), slot.take(), slot.take()]
    assert [picture and picture.seq for picture in taken] == [5, 6, None]
    assert slot.dropped == 4  # 1 and 2 that waited, 3 that did not fit, 4 that built on it; 0 came before the first key


def test_a_key_picture_makes_what_waits_superfluous() -> None:
    slot = GopQueue(limit=6)
    for seq, key in enumerate([True, False, False, True]):
        slot.offer(encoded(seq, key=key, codec="h264"))
    first = slot.take()
    assert first is not None
    assert (first.seq, slot.take(), slot.dropped) == (3, None, 3)
