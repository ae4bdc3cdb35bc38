from __future__ import annotations

import sys

import numpy as np
import pytest

from benchmarks import ros
from torchrl_gpu.streaming.ros2.decider import Decider
from torchrl_gpu.streaming.ros2.images import RosImage
from torchrl_gpu.streaming.ros2.messages import IMAGE, Messages


def test_images_by_hand_are_those_of_rosbags() -> None:
    data = ros.pixels(Messages(), (4, 6), 1_700_000_000_000_000_123)
    assert ros.by_hand((4, 6), data) == data
    assert ros.by_hand((6, 4), data) != data


def test_a_message_of_each_type_is_checked() -> None:
    names = {name.partition(" ")[0].rpartition("/")[2] for name in ros.samples()}
    assert names == {"Image", "CompressedImage", "JointState", "Float32MultiArray", "Float64MultiArray"}


def test_nothing_is_timed_while_parity_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Messages.pixels
    monkeypatch.setattr(Messages, "pixels", lambda *given: broken(*given)[:-1] + b"\0")
    monkeypatch.setattr(ros, "SIZES", {"6x4": (4, 6)})
    monkeypatch.setattr(ros, "run", lambda *_: pytest.fail("timed"))
    monkeypatch.setattr(sys, "argv", ["ros", "--domain", "211"])
    with pytest.raises(SystemExit):
        ros.main()
    shown = capsys.readouterr()
    assert f"parity fails in {IMAGE} 6x4, CDR by hand" in shown.err
    assert not shown.out


def test_the_policy_decides() -> None:
    decided = Decider(ros.Washer()).decide(RosImage(np.zeros((480, 640, 3), np.uint8), "rgb8"), {})
    assert decided.action.shape == (2,)
