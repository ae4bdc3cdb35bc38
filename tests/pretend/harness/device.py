"""A stand-in for `torch.cuda`.

It has one device, one stream at a time, and events that are always there.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.types import Device

from tests.pretend.harness import waits
from tests.pretend.harness.graphs import CudaGraph, capture
from tests.pretend.harness.tensors import CUDA, check_index, generators

FREE, TOTAL = 70 << 30, 80 << 30
"""What `mem_get_info` says; a test may patch that."""


class Generator(torch.Generator):
    """A generator of the device it is asked for, which draws on the CPU."""

    def __new__(cls, device: Device = "cpu") -> torch.Generator:
        check_index(torch.device(device))
        self = super().__new__(cls)
        self._device = CUDA if torch.device(device).type == "cuda" else torch.device("cpu")
        (generators.add if self._device == CUDA else generators.discard)(self._cdata)
        return self

    @property
    def device(self) -> torch.device:
        return self._device


class Stream:
    """A stream.

    All streams run what they are given at once.
    """

    def __init__(self, device: Device = None, priority: int = 0, **_: object) -> None:
        self.device = CUDA
        self.priority = priority
        self.cuda_stream = id(self)
        self.device_index = 0
        self.device_type = 1
        self.stream_id = id(self)

    def synchronize(self) -> None:
        waits.note("Stream.synchronize")

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record_event(self, event: object = None) -> Any:
        return Event() if event is None else event

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class Event:
    """An event, which has happened."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: object) -> None:
        self.recorded_on: Any = None

    def record(self, stream: object = None) -> None:
        self.recorded_on = torch.cuda.current_stream() if stream is None else stream

    def wait(self, stream: object = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        waits.note("Event.synchronize")

    def elapsed_time(self, other: object) -> float:
        return 0.0


_DEFAULT = Stream()


class _Current(threading.local):
    stream = _DEFAULT


_current = _Current()


@contextmanager
def _stream(stream: object) -> Any:
    before, _current.stream = _current.stream, stream or _current.stream
    try:
        yield
    finally:
        _current.stream = before


def _set_stream(stream: object) -> None:
    _current.stream = stream


class _OnDevice(nullcontext):
    """`torch.cuda.device`."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        if not isinstance(device, int) and device is not None:
            check_index(torch.device(device))
        elif device not in (None, -1, 0):
            raise RuntimeError("CUDA error: invalid device ordinal")


def _properties(device: Device = None) -> SimpleNamespace:
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


def _get_rng_state(device: Device = "cuda") -> Tensor:
    return torch.cuda.default_generators[0].get_state()


def _set_rng_state(state: Tensor, device: Device = "cuda") -> None:
    torch.cuda.default_generators[0].set_state(state)


def _always(value: object) -> Any:
    return lambda *_, **__: value


def _constants() -> dict[str, object]:
    """Return functions that always return the same."""
    answers: dict[str, object] = {"is_available": True, "is_initialized": True, "is_bf16_supported": True}
    answers |= dict.fromkeys(("init", "_lazy_init", "set_device", "set_sync_debug_mode"))
    answers |= dict.fromkeys(("reset_peak_memory_stats", "empty_cache", "ipc_collect"))
    answers |= dict.fromkeys(("device_count", "_device_count_nvml"), 1)
    answers |= dict.fromkeys(("current_device", "_exchange_device", "_maybe_exchange_device", "utilization"), 0)
    answers |= dict.fromkeys(("memory_allocated", "max_memory_allocated"), 0)
    answers |= dict.fromkeys(("memory_reserved", "max_memory_reserved"), 0)
    answers |= {"get_device_name": "pretended CUDA device", "get_device_capability": (9, 0)}
    answers |= {"get_arch_list": ["sm_90"], "graph_pool_handle": (0, 0)}
    return {name: _always(answer) for name, answer in answers.items()}


def _facts_of_the_device() -> dict[str, object]:
    """The device, its properties and its memory."""
    return {
        **dict.fromkeys(("device", "device_of", "_DeviceGuard"), _OnDevice),
        "_initialized": True,
        "get_device_properties": _properties,
        "mem_get_info": lambda device=None: (FREE, TOTAL),
        "memory_stats": lambda device=None: {},
    }


def _streams() -> dict[str, object]:
    """Streams, events and waits."""
    return {
        **dict.fromkeys(("Stream", "ExternalStream"), Stream),
        "synchronize": lambda device=None: waits.note("synchronize"),
        "Event": Event,
        "stream": _stream,
        "set_stream": _set_stream,
        "current_stream": lambda device=None: _current.stream,
        "default_stream": lambda device=None: _DEFAULT,
    }


def _graphs() -> dict[str, object]:
    """CUDA graphs."""
    return {"CUDAGraph": CudaGraph, "graph": capture, "is_current_stream_capturing": lambda: waits.capturing}


def _random_numbers(generator: Generator) -> dict[str, object]:
    """The generator of the device, and its state."""
    seeds = {
        **dict.fromkeys(("manual_seed", "manual_seed_all"), _seed_all),
        "default_generators": (generator,),
        "seed": lambda: _seed_all(torch.seed()),
        "seed_all": lambda: _seed_all(torch.seed()),
    }
    states = {
        "initial_seed": lambda: generator.initial_seed(),
        "get_rng_state": _get_rng_state,
        "get_rng_state_all": lambda: [_get_rng_state()],
        "set_rng_state": _set_rng_state,
        "set_rng_state_all": lambda states: _set_rng_state(states[0]),
    }
    return seeds | states


def install() -> None:
    """Put all of it into `torch.cuda`."""
    torch.Generator = Generator  # type: ignore[misc, assignment]
    generator = Generator("cuda")
    generator.manual_seed(torch.initial_seed())
    stand_ins = _constants() | _facts_of_the_device() | _streams() | _graphs() | _random_numbers(generator)
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
