"""`get_device`: each word, and each way in which it is refused."""

from __future__ import annotations

import pytest
import torch

import torchrl_gpu
from torchrl_gpu.device import cuda_problem, get_device


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which torch reports two CUDA devices.

    The second is the current one.
    """
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)


def test_is_a_name_of_the_package() -> None:
    assert torchrl_gpu.get_device is get_device


@pytest.mark.parametrize("word", ["cpu", "cpu:0", torch.device("cpu")])
def test_device_without_cuda_is_the_cpu(word: str | torch.device) -> None:
    assert get_device(word) == torch.device("cpu")


@pytest.mark.usefixtures("no_gpu")
def test_auto_is_the_cpu_without_cuda() -> None:
    assert get_device() == torch.device("cpu")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("word", "index"), [("auto", 1), ("cuda", 1), ("cuda:0", 0), (torch.device("cuda"), 1), (torch.device("cuda:1"), 1)]
)
def test_cuda_gets_its_index(word: str | torch.device, index: int) -> None:
    assert get_device(word) == torch.device("cuda", index)


@pytest.mark.usefixtures("two_gpus")
def test_index_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=r"get_device: .*index.* 2.*'cuda:2'"):
        get_device("cuda:2")


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("word", ["cuda", "cuda:0"])
def test_cuda_without_cuda_says_why(word: str) -> None:
    with pytest.raises(ValueError, match=rf"get_device: .*'{word}'.*without CUDA"):
        get_device(word)


@pytest.mark.parametrize(
    "word", ["gpu", "", "cuda:", "cuda:-1", "cuda:x", "cpu:1", "mps", torch.device("meta"), None, 0]
)
def test_other_words_are_refused(word: object) -> None:
    with pytest.raises(ValueError, match=r"get_device: device "):
        get_device(word)  # type: ignore[arg-type]


def test_a_driver_problem_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError("Found no NVIDIA driver.\nPlease install one. Then try again.")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", init)
    assert cuda_problem() == "Found no NVIDIA driver"


@pytest.mark.gpu
def test_auto_is_usable_cuda() -> None:
    device = get_device()
    assert device.type == "cuda"
    assert device.index is not None
    assert torch.ones(1, device=device).device == device
