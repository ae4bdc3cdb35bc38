"""Copies from host memory, where it can be pinned and where it cannot."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from torchrl_gpu.envs.memory import Staging

CUDA = torch.device("cuda", 0)


class Copies:
    """Notes what is pinned and copied, and keeps it on the CPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, can_pin: bool) -> None:
        self.made: list[Any] = []

        def pin(tensor: Any, *args: Any) -> Any:
            self.made.append("pin")
            if not can_pin:
                raise RuntimeError("no more memory can be pinned")
            return tensor

        def to(tensor: Any, device: Any, *, non_blocking: bool) -> Any:
            self.made.append((device, non_blocking))
            return tensor

        for kind in (Tensor, TensorDict):
            monkeypatch.setattr(kind, "pin_memory", pin)
            monkeypatch.setattr(kind, "to", to)


@pytest.mark.parametrize("held", [torch.arange(3), TensorDict({"a": torch.arange(3)}, [3])], ids=["tensor", "tensors"])
def test_what_can_be_pinned_does_not_wait(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(monkeypatch, can_pin=True)
    assert Staging("X", "clips", CUDA)(held) is held
    assert copies.made == ["pin", (CUDA, True)]


def test_what_cannot_be_pinned_is_copied_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copies, staging = Copies(monkeypatch, can_pin=False), Staging("ClipReplay", "clips", CUDA)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert torch.equal(staging(torch.arange(3)), torch.arange(3))
    assert copies.made == ["pin", (CUDA, False), (CUDA, False), (CUDA, False)]
    assert [record.getMessage() for record in caplog.records] == [
        "ClipReplay: clips are copied from pageable memory, as pinning failed: no more memory can be pinned"
    ]


def test_nothing_is_pinned_for_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Copies(monkeypatch, can_pin=True)
    Staging("X", "clips", torch.device("cpu"))(torch.arange(3))
    assert copies.made == [(torch.device("cpu"), False)]
