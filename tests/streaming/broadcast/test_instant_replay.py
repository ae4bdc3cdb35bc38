"""Instant replay: what is kept, against a list that keeps everything."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streaming.viewers import encoded
from torchrl_gpu.streaming.broadcast.frames import EncodedPicture
from torchrl_gpu.streaming.broadcast.instant_replay import InstantReplay


def seqs(clip: list[EncodedPicture]) -> list[int]:
    return [picture.seq for picture in clip]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.integers(1, 400), st.booleans()), max_size=60))
def test_the_clip_is_what_lay_in_the_last_seconds_before_the_mark(events: list[tuple[float, int, bool]]) -> None:
    ring, kept, clip, now = InstantReplay(seconds=2.0, max_bytes=1000), [], [], 0.0
    for seq, (gap, size, is_mark) in enumerate(events):
        now += gap
        if is_mark:
            ring.mark(now, {})
            clip = list(kept)
        else:
            kept.append(encoded(seq, size, captured=now))
            ring.add(kept[-1])
            while kept[0].captured < now - 2.0 or sum(len(each.data) for each in kept) > 1000:
                kept.pop(0)
    assert seqs(ring.clip()) == seqs(clip or kept)


def test_frames_that_were_still_being_encoded_at_the_mark_belong_to_the_episode() -> None:
    ring = InstantReplay(seconds=10.0)
    ring.add(encoded(1, captured=1.0))
    ring.mark(2.0, {"return": 0.5})
    ring.add(encoded(2, captured=1.9))
    ring.add(encoded(3, captured=2.1))
    clip = ring.clip()
    assert seqs(clip) == [1, 2]
    assert all(picture.replay for picture in clip)
    assert [dict(picture.meta) for picture in clip] == [{}, {"return": 0.5}]


def test_without_a_mark_it_is_the_newest_and_without_seconds_nothing() -> None:
    ring, off = InstantReplay(seconds=1.0), InstantReplay(seconds=0.0)
    for captured in (0.0, 0.5, 1.2):
        ring.add(encoded(int(10 * captured), captured=captured))
        off.add(encoded(int(10 * captured), captured=captured))
    assert seqs(ring.clip()) == [5, 12]
    assert (off.clip(), off.is_on, ring.is_on) == ([], False, True)
