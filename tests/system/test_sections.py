"""A clock by hand, and what a run says of its time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from tests.training.tiny import fit, module
from torchrl_gpu.callbacks import EpisodeCheckpoint
from torchrl_gpu.system import sections


class Hand:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    hand = Hand()
    monkeypatch.setattr(sections, "_clock", sections.Clock(hand))
    return hand


def seconds() -> dict[str, float]:
    clock = sections.running_clock()
    assert clock is not None
    return clock.read()


def test_each_moment_belongs_to_the_innermost_section(hand: Hand) -> None:
    hand.at += 1
    with sections.section("step"):
        hand.at += 2
        for _ in range(2):
            with sections.section("update"):
                hand.at += 4
        hand.at += 8
    hand.at += 16
    assert seconds() == {sections.OUTSIDE: 17, "step": 10, "update": 8}


def test_inside_of_validation_nothing_else_counts(hand: Hand) -> None:
    with sections.section("validation"), sections.section("policy"):
        hand.at += 3
    assert seconds() == {sections.OUTSIDE: 0, "validation": 3}


def test_an_error_ends_a_section(hand: Hand) -> None:
    @sections.in_section("update")
    def fail() -> None:
        hand.at += 1
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    hand.at += 5
    assert seconds() == {sections.OUTSIDE: 5, "update": 1}


def test_sections_are_ranges_of_torchs_profiler(hand: Hand) -> None:
    traced = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with traced, sections.section("step"), sections.section("update"):
        torch.ones(2).sum()
    assert {"step", "update"} <= {each.key for each in traced.key_averages()}
    # There is no clock here, as before.
    with sections.section("step"):
        hand.at += 2
    assert seconds()["step"] == 2


def test_other_threads_are_not_counted(hand: Hand) -> None:
    def elsewhere() -> None:
        with sections.section("update"):
            hand.at += 7

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seconds() == {sections.OUTSIDE: 7}


def test_the_line_of_a_run_by_hand() -> None:
    said = sections.summary({"update": 6.0, sections.OUTSIDE: 1.0, "logging": 0.5, "policy": 2.5})
    assert said == (
        "10.0 s of training: update 60.0%, policy 25.0%, Lightning 10.0%, logging 5.0%; Lightning and logging together"
        " 15.0%"
    )


def test_a_run_says_where_its_time_went(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        fit(module(), tmp_path, 6, EpisodeCheckpoint())
    matching = [record.getMessage() for record in caplog.records if " s of training: " in record.getMessage()]
    (said,) = matching
    names = ("environment", "policy", "replay", "update", "transfer", "logging", "validation", "saving", "Lightning")
    assert said.startswith("OffPolicy: ")
    assert [name for name in names if f" {name} " not in said] == []
    assert sections.running_clock() is None
