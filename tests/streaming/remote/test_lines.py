"""Lines between processes: none is waited for, and none arrives in parts."""

from __future__ import annotations

import os

from torchrl_gpu.streaming.remote.lines import Speaker, hear


def test_there_and_back() -> None:
    reading, writing = os.pipe()
    speaker = Speaker(writing)
    assert speaker.say("state", values={"a": "ü\n", "b": None})
    assert speaker.say("stop")
    speaker.close()
    speaker.close()
    assert not speaker.say("state", values={})
    with os.fdopen(reading, "rb") as pipe:
        assert [hear(line) for line in pipe] == [("state", {"values": {"a": "ü\n", "b": None}}), ("stop", {})]


def test_a_reader_that_hangs_is_not_waited_for_and_gets_all_but_what_may_be_lost() -> None:
    reading, writing = os.pipe()
    speaker = Speaker(writing)
    said = [speaker.say("frame", may_be_lost=True, number=number, pad="x" * 1000) for number in range(200)]
    assert said[0]
    assert not said[-1]
    kept = [speaker.say("state", number=number) for number in range(3)]
    assert kept == [True] * 3
    heard = []
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        data = b""
        while not data.endswith(b"\n") or not heard or heard[-1] != ("state", {"number": 3}):
            data += pipe.read(1 << 20) or b""
            speaker.say("state", number=3)
            heard = [hear(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
        speaker.close()
    frames = [fields["number"] for op, fields in heard if op == "frame"]
    states = [fields["number"] for op, fields in heard if op == "state"]
    assert frames == list(range(len(frames)))
    assert 0 < len(frames) < 200
    assert states[:3] == [0, 1, 2]


def test_a_reader_that_is_gone_and_one_that_never_comes_back() -> None:
    reading, writing = os.pipe()
    speaker = Speaker(writing)
    assert all(speaker.say("state", pad="x" * 100_000) for _ in range(10))
    assert not all(speaker.say("state", pad="x" * 100_000) for _ in range(10)), "a megabyte waits"
    os.close(reading)
    assert not speaker.say("state")
    assert not speaker.say("frame", may_be_lost=True)
