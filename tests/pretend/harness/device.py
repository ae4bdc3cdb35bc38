"""A stand-in for `torch.cuda`: one device, one stream at a time, events that are always there."""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from tests.pretend.harness import waits
from tests.pretend.harness.graphs import CudaGraph, capture
from tests.pretend.harness.tensors import CUDA, check_index, generators

FREE, TOTAL = 70 << 30, 80 << 30
"""What `mem_get_info` says; a test may patch that."""


class Generator(torch.Generator):
    """A generator of the device it is asked for, which draws on the CPU."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        check_index(torch.device(device))
        self = super().__new__(cls)
        self._device = CUDA if torch.device(device).type == "cuda" else torch.device("cpu")
        (generators.add if self._device == CUDA else generators.discard)(self._cdata)
        return self

    @property
    def device(self) -> torch.device:
        return self._device


class Stream:
    """A stream; all of them run what they are given at once."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.priority, self.cuda_stream, self.device_index = CUDA, priority, id(self), 0
        self.device_type, self.stream_id = 1, id(self)

    def synchronize(self) -> None:
        waits.note("Stream.synchronize")

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return Event() if event is None else event

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        return None


class Event:
    """An event, which has happened."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: Any) -> None:
        self.recorded_on: Any = None

    def record(self, stream: Any = None) -> None:
        self.recorded_on = torch.cuda.current_stream() if stream is None else stream

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        waits.note("Event.synchronize")

    def elapsed_time(self, other: Any) -> float:
        return 0.0


_DEFAULT = Stream()


class _Current(threading.local):
    stream = _DEFAULT


_current = _Current()


@contextmanager
def _stream(stream: Any) -> Any:
    before, _current.stream = _current.stream, stream or _current.stream
    try:
        yield
    finally:
        _current.stream = before


def _set_stream(stream: Any) -> None:
    _current.stream = stream


class _OnDevice(nullcontext):
    """`torch.cuda.device`."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        if not isinstance(device, int) and device is not None:
            check_index(torch.device(device))
        elif device not in (None, -1, 0):
            raise RuntimeError("CUDA error: invalid device ordinal")


def _properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name="pretended CUDA device", major=9, minor=0, total_memory=TOTAL, multi_processor_count=132
    )


def _inference_mode(mode: Any = True) -> Any:
    if callable(mode):
        return torch.no_grad()(mode)
    return torch.no_grad() if mode else nullcontext()


def _seed_all(seed: int) -> None:
    for generator in torch.cuda.default_generators:
        generator.manual_seed(int(seed))


def _get_rng_state(device: Any = "cuda") -> Tensor:
    return torch.cuda.default_generators[0].get_state()


def _set_rng_state(state: Tensor, device: Any = "cuda") -> None:
    torch.cuda.default_generators[0].set_state(state)


def _always(value: object) -> Any:
    return lambda *_, **__: value


def install() -> None:
    """Puts all of it into `torch.cuda`."""
    torch.Generator = Generator  # type: ignore[misc, assignment]
    generator = Generator("cuda")
    generator.manual_seed(torch.initial_seed())
    stand_ins = {
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), _always(True)),
        **dict.fromkeys(("init", "_lazy_init", "set_device", "set_sync_debug_mode"), _always(None)),
        **dict.fromkeys(("reset_peak_memory_stats", "empty_cache", "ipc_collect"), _always(None)),
        **dict.fromkeys(("device_count", "_device_count_nvml"), _always(1)),
        **dict.fromkeys(("current_device", "_exchange_device", "_maybe_exchange_device", "utilization"), _always(0)),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated"), _always(0)),
        **dict.fromkeys(("memory_reserved", "max_memory_reserved"), _always(0)),
        **dict.fromkeys(("device", "device_of", "_DeviceGuard"), _OnDevice),
        **dict.fromkeys(("Stream", "ExternalStream"), Stream),
        **dict.fromkeys(("manual_seed", "manual_seed_all"), _seed_all),
        "_initialized": True,
        "get_device_name": _always("pretended CUDA device"),
        "get_device_capability": _always((9, 0)),
        "get_device_properties": _properties,
        "get_arch_list": _always(["sm_90"]),
        "mem_get_info": lambda device=None: (FREE, TOTAL),
        "memory_stats": lambda device=None: {},
        "synchronize": lambda device=None: waits.note("synchronize"),
        "Event": Event,
        "stream": _stream,
        "set_stream": _set_stream,
        "current_stream": lambda device=None: _current.stream,
        "default_stream": lambda device=None: _DEFAULT,
        "default_generators": (generator,),
        "seed": lambda: _seed_all(torch.seed()),
        "seed_all": lambda: _seed_all(torch.seed()),
        "initial_seed": lambda: generator.initial_seed(),
        "get_rng_state": _get_rng_state,
        "get_rng_state_all": lambda: [_get_rng_state()],
        "set_rng_state": _set_rng_state,
        "set_rng_state_all": lambda states: _set_rng_state(states[0]),
        "CUDAGraph": CudaGraph,
        "graph": capture,
        "graph_pool_handle": _always((0, 0)),
        "is_current_stream_capturing": lambda: waits.capturing,
    }
    for name, stand_in in stand_ins.items():
        setattr(torch.cuda, name, stand_in)
        for module in (torch.cuda.random, torch.cuda.memory, torch.cuda.streams, torch.cuda.graphs):
            if hasattr(module, name):
                setattr(module, name, stand_in)
    torch.inference_mode = _inference_mode  # type: ignore[misc, assignment]
    torch.backends.cudnn.enabled = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
