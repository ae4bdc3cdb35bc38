"""What is said where an update does not fit, on a device that is only said to be full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.tiny import data, module, trainer
from torchrl_gpu.cli.errors import is_for_user, one_line
from torchrl_gpu.training import DeviceReplay, out_of_memory
from torchrl_gpu.training.out_of_memory import Memory, OutOfMemoryAdvice, advice, advised

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
GIB = 2**30
SAID = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10.00 GiB"


def test_what_is_advised_would_have_fitted() -> None:
    # 4 GiB stay, 3 of them replay; the update had made 5 and wanted 2 more. There are 9 of 10 to be used.
    text = advised("OffPolicy", GPU, Memory(10 * GIB, 4 * GIB), 5 * GIB, SAID, 700, (3000, 3 * GIB))
    assert text == (
        "OffPolicy: want an update that fits into 10.0 GiB of cuda:0; got one of 700 transitions that takes 7.0 GiB or"
        " more, beside 4.0 GiB that stay, of which replay has 3.0; at most this can fit: --model.batch_size 500 or"
        " --model.replay.init_args.capacity 1000"
    )


@pytest.mark.parametrize(
    ("taken", "replay_gib", "expected"),
    [
        (9.5, 0.1, "fewer environments, smaller frames or a smaller network"),
        (8.0, 0.5, "--model.batch_size 50"),  # without any replay it would still not fit
    ],
)
def test_nothing_is_advised_that_would_not_help(taken: float, replay_gib: float, expected: str) -> None:
    memory = Memory(10 * GIB, int(taken * GIB))
    text = advised("X", GPU, memory, 5 * GIB, "out of memory", 250, (1000, int(replay_gib * GIB)))
    assert text.endswith(f"at most this can fit: {expected}")


def test_a_run_that_does_not_fit_says_what_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = iter([Memory(10 * GIB, 9 * GIB), Memory(10 * GIB, 4 * GIB)])
    monkeypatch.setattr(out_of_memory, "device_memory", lambda device: next(memories))
    made: Any = module()

    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError(SAID)

    monkeypatch.setattr(made, "_update", full)
    with pytest.raises(OutOfMemoryAdvice, match=r"got one of 16 transitions that takes 7.0 GiB or more") as caught:
        trainer(tmp_path).fit(made, data())
    assert is_for_user(caught.value)
    assert one_line(caught.value).endswith("--model.batch_size 11")  # replay is too small for less of it to help


def test_elsewhere_torch_says_it_itself() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="Tried"), advice("X", CPU, 4, DeviceReplay(1, CPU)):
        raise torch.OutOfMemoryError(SAID)
