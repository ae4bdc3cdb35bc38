"""Files of weights: what is in them is looked at before it is taken."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torchrl_gpu.policies import ClipEncoder

SHAPE = (2, 3, 16, 16)


class Hostile:
    """A pickle that would write a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open, (str(self.path), "w")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "encoder.pt"


def refused(path: Path) -> str:
    with pytest.raises(ValueError) as error:
        ClipEncoder(pretrained=str(path)).make(SHAPE)
    assert str(error.value).startswith(f"weights {path}: want ")
    return str(error.value)


def without(state: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: without(s, "stem.bias"), "this Simple2DCNN; got none for stem.bias"),
        (lambda s: without(s, *list(s)[:5]), "none for stem.weight, stem.bias, second.weight and 2 more"),
        (lambda s: s | {"extra": torch.zeros(1)}, "got others too extra"),
        (lambda s: s | {7: torch.zeros(1)}, "got others too 7"),
        (lambda s: s | {"stem.bias": 3}, "got no tensors stem.bias"),
        (
            lambda s: s | {"stem.bias": torch.zeros(17)},
            r"want stem.bias as torch.float32 (16,); got torch.float32 (17,)",
        ),
        (
            lambda s: s | {"stem.bias": torch.zeros(16, dtype=torch.float16)},
            r"want stem.bias as torch.float32 (16,); got torch.float16 (16,)",
        ),
        (lambda s: s | {"stem.bias": torch.full((16,), torch.nan)}, "want finite weights; got others in stem.bias"),
        (lambda s: s | {"stem.bias": torch.full((16,), torch.inf)}, "want finite weights; got others in stem.bias"),
        (lambda s: [s], "want a state dict; got a list"),
    ],
)
def test_other_weights_are_refused_by_name(change: Callable[[Any], Any], message: str, path: Path) -> None:
    torch.save(change(ClipEncoder().make(SHAPE).state_dict()), path)
    assert message in refused(path)


@pytest.mark.parametrize("write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, 2))])
def test_no_code_of_a_file_runs(write: Callable[[Any, Path], Any], path: Path) -> None:
    mark = path.with_name("ran")
    write({"stem.bias": Hostile(mark)}, path)
    assert "want tensors only; got a pickle that calls" in refused(path)
    assert not mark.exists()


@pytest.mark.parametrize("length", [0, 3, 1000, -100])
def test_a_file_that_was_cut_off_is_refused(length: int, path: Path) -> None:
    torch.save(ClipEncoder().make(SHAPE).state_dict(), path)
    path.write_bytes(path.read_bytes()[:length])
    assert "got " in refused(path)


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"weights {path}: want an existing file; got none there"):
        ClipEncoder(pretrained=str(path)).make(SHAPE)
