"""Signals of programs that serve: a handler sets a flag, and no more."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest

from torchrl_gpu.serving import ending as module
from torchrl_gpu.serving.ending import Flag, hangups, until_told_to_end


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_sets_the_flag_and_nothing_else(name: str) -> None:
    before = signal.getsignal(getattr(signal, name))
    with until_told_to_end() as ending:
        assert not ending.event.wait(0.0)
        signal.raise_signal(getattr(signal, name))
        signal.raise_signal(getattr(signal, name))
        assert ending.event.wait()
    assert signal.getsignal(getattr(signal, name)) is before


def test_a_signal_breaks_off_what_is_to_be_broken_off_even_if_it_came_before() -> None:
    for early in (True, False):
        ran = []
        with until_told_to_end() as ending:
            if early:
                signal.raise_signal(signal.SIGTERM)
            with ending.at_once():
                ran.append("begun")
                signal.raise_signal(signal.SIGTERM)
                ran.append("went on")
        assert ending.event.is_set()
        assert ran == ([] if early else ["begun"])


def test_a_hangup_is_taken_once() -> None:
    with hangups() as again:
        assert not again.take()
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert (again.take(), again.take()) == (True, False)


def test_a_flag_is_waited_for_while_a_handler_sets_it() -> None:
    """An event's lock is held by whoever begins to wait, whom its handler would then wait for: here at any moment."""
    flag, end = Flag(), time.monotonic() + 0.05
    assert not flag.wait(0.05)
    assert time.monotonic() >= end
    threading.Timer(0.01, flag.set).start()
    assert flag.wait(20)


def test_signals_that_a_system_has_not_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SIGALRM", "SIGHUP", "setitimer"):
        monkeypatch.delattr(module.signal, name)
    with until_told_to_end() as ending, hangups() as again, ending.at_once():
        pass
    assert not again.is_set()


def test_on_another_thread_nothing_is_taken() -> None:
    found: list[Any] = []

    def run() -> None:
        with until_told_to_end() as ending, hangups():
            found.append((ending.event.is_set(), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(False, signal.getsignal(signal.SIGTERM))]
