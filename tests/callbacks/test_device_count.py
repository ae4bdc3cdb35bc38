"""A count that lags behind the device instead of waiting for it, on a stand-in for a CUDA tensor."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from torchrl_gpu.callbacks.device_count import DeviceCount


class OnCuda(Tensor):
    """A tensor of the host that says that it is not, and knows how often it was waited for."""

    waits: ClassVar[int] = 0

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda")

    def __int__(self) -> int:
        OnCuda.waits += 1
        return int(self.as_subclass(Tensor))


class Event:
    """One that has passed as soon as `arrived` says so."""

    arrived: ClassVar[bool] = True

    def record(self, stream: object) -> None: ...

    def query(self) -> bool:
        return Event.arrived


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(OnCuda, "waits", 0)
    monkeypatch.setattr(Event, "arrived", True)


def on_cuda(count: int) -> Tensor:
    return torch.tensor(count).as_subclass(OnCuda)


def test_what_is_on_the_host_is_read_at_once() -> None:
    seen = DeviceCount()
    assert [seen(3), seen(torch.tensor(4)), seen(5)] == [3, 4, 5]


def test_only_the_first_call_waits_and_later_ones_lag_by_one() -> None:
    seen = DeviceCount()
    assert [seen(on_cuda(count)) for count in (5, 7, 8, 11)] == [5, 5, 7, 8]
    assert OnCuda.waits == 1


def test_a_copy_on_its_way_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = DeviceCount()
    seen(on_cuda(5))
    monkeypatch.setattr(Event, "arrived", False)
    assert [seen(on_cuda(count)) for count in (7, 8)] == [5, 5]
    monkeypatch.setattr(Event, "arrived", True)
    assert [seen(on_cuda(count)) for count in (9, 10)] == [5, 9]  # the copy was that of the first call
    assert OnCuda.waits == 1
