"""Settings of an encoder, and the encoders that they make."""

from __future__ import annotations

import inspect
import pickle
import re
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.policies.encoders.scenes import SHAPES, made, random_clips, scramble, torchvisions
from torchrl_gpu.policies import R3D18, ClipEncoder, Simple2DCNN, Simple3DCNN, TimeSformer
from torchrl_gpu.policies.encoders import clips, settings
from torchrl_gpu.policies.encoders.clips import register_encoder
from torchrl_gpu.policies.encoders.r3d import FrozenBatchNorm3d

SHAPE = SHAPES["simple2dcnn"]
CLASSES = {"simple2dcnn": Simple2DCNN, "simple3dcnn": Simple3DCNN, "r3d18": R3D18, "timesformer": TimeSformer}


@pytest.mark.parametrize("arch", CLASSES)
def test_the_settings_reach_the_encoder(arch: str) -> None:
    patch = {"patch": 4} if arch == "timesformer" else {}
    encoder = ClipEncoder(arch, num_features=7, checkpointing=True, **patch).make(list(SHAPES[arch]))
    assert type(encoder) is CLASSES[arch]
    assert (encoder.num_features, encoder.checkpointing, encoder.clip_shape) == (7, True, SHAPES[arch])
    assert not isinstance(encoder, TimeSformer) or encoder.patch == 4


@pytest.mark.parametrize(("name", "value"), [("size", "small"), ("patch", 4), ("norm", "frozen")])
@pytest.mark.parametrize("arch", CLASSES)
def test_settings_that_an_encoder_does_not_have_are_told(
    arch: str, name: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = ClipEncoder(arch, **{name: value})
    assert getattr(made, name) == value
    is_known = name in inspect.signature(CLASSES[arch]).parameters
    assert (f"{name} does nothing without arch" in caplog.text) is not is_known


def test_an_encoder_of_ones_own_is_another_arch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clips, "ENCODERS", dict(clips.ENCODERS))
    monkeypatch.setattr(settings, "ENCODERS", clips.ENCODERS)
    with pytest.raises(ValueError, match=r"arch .*; got 'wide'"):
        ClipEncoder("wide")

    @register_encoder
    class Wide(Simple2DCNN):
        def __init__(self, clip_shape: Any, num_features: int = 64, *, checkpointing: bool = False) -> None:
            super().__init__(clip_shape, 2 * num_features, checkpointing=checkpointing)

    encoder = ClipEncoder("wide", num_features=7).make(SHAPE)
    assert type(encoder) is Wide
    assert encoder(random_clips(2, SHAPE)).shape[-1] == 14


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"checkpointing": 1}, "checkpointing must be true or false; got 1"),
        ({"pretrained": 3}, "pretrained must be true, false or the path of a file; got 3"),
        (
            {"arch": "timesformer", "pretrained": True},
            "pretrained .*r3d18 .*timesformer",
        ),
    ],
)
def test_encoders_refuse_settings_without_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"ClipEncoder: {message}"):
        ClipEncoder(**changes)


@pytest.mark.parametrize("arch", ["simple2dcnn", "simple3dcnn", "timesformer"])
def test_weights_of_a_file_are_those_that_were_saved(arch: str, tmp_path: Path) -> None:
    shape = SHAPES[arch]
    saved = made(ClipEncoder(arch), shape)
    scramble(saved)
    torch.save(saved.state_dict(), tmp_path / "encoder.pt")
    clips = random_clips(2, shape)
    assert torch.equal(ClipEncoder(arch, pretrained=str(tmp_path / "encoder.pt")).make(shape)(clips), saved(clips))


def test_the_norm_follows_the_weights_of_the_network_or_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    theirs: Any = torchvisions()
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda *_, **__: theirs.state_dict())
    shape = SHAPES["r3d18"]
    with torch.device("meta"):
        for norm, kind in (("auto", nn.GroupNorm), ("frozen", FrozenBatchNorm3d)):
            assert type(ClipEncoder("r3d18", norm=norm).make(shape).stem[1]) is kind
    norm = ClipEncoder("r3d18", pretrained=True).make(shape).stem[1]
    assert type(norm) is FrozenBatchNorm3d
    assert torch.equal(norm.running_var, theirs.stem[1].running_var)
    path = tmp_path / "r3d_18.pth"
    # Old files have this format.
    torch.save(theirs.state_dict(), path, _use_new_zipfile_serialization=False)
    encoder = ClipEncoder("r3d18", pretrained=str(path), norm="group").make(shape)
    assert type(encoder.stem[1]) is nn.GroupNorm
    assert torch.equal(encoder.stem[1].weight, theirs.stem[1].weight)
    assert torch.equal(encoder.layers[2][0].conv1[0].weight, theirs.layer3[0].conv1[0].weight)
    path.unlink()


def test_without_network_it_says_which_file_to_place_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*args: object, **options: Any) -> None:
        assert options["weights_only"]
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", unreachable)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(ValueError) as error:
        ClipEncoder("r3d18", pretrained=True).make(SHAPES["r3d18"])
    message = str(error.value)
    assert message.startswith("R3D18: no Kinetics weights in torch's cache, nor from the network: URLError:")
    assert f"place it at {tmp_path / 'checkpoints' / 'r3d_18-b3b3357e.pth'}" in message
    assert "https://download.pytorch.org/models/r3d_18-b3b3357e.pth" in message


# -- files: what is in them is looked at before it is taken --


class Hostile:
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
    assert re.match(rf"weights {re.escape(str(path))}\b", str(error.value))
    return str(error.value)


def without(state: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: without(s, "stem.bias"), "no weights for stem.bias of Simple2DCNN"),
        (lambda s: without(s, *list(s)[:5]), "no weights for stem.weight, stem.bias, second.weight and 2 more"),
        (lambda s: s | {"extra": torch.zeros(1)}, "extra is none of"),
        (lambda s: s | {7: torch.zeros(1)}, "7 is none of"),
        (lambda s: s | {"stem.bias": 3}, "stem.bias of Simple2DCNN must be dense tensors"),
        (
            lambda s: s | {"stem.bias": torch.zeros(17)},
            r"stem.bias must be torch.float32 (16,), not torch.float32 (17,)",
        ),
        (
            lambda s: s | {"stem.bias": torch.zeros(16, dtype=torch.float16)},
            r"stem.bias must be torch.float32 (16,), not torch.float16 (16,)",
        ),
        (lambda s: s | {"stem.bias": torch.full((16,), torch.nan)}, "stem.bias must be finite"),
        (lambda s: s | {"stem.bias": torch.full((16,), torch.inf)}, "stem.bias must be finite"),
        (lambda s: [s], "state dict, not a list"),
    ],
)
def test_other_weights_are_refused_by_name(change: Callable[[Any], Any], message: str, path: Path) -> None:
    torch.save(change(ClipEncoder().make(SHAPE).state_dict()), path)
    assert message in refused(path)


@pytest.mark.parametrize("write", [torch.save, lambda content, path: path.write_bytes(pickle.dumps(content, 2))])
def test_no_code_of_a_file_runs(write: Callable[[Any, Path], Any], path: Path) -> None:
    mark = path.with_name("ran")
    write({"stem.bias": Hostile(mark)}, path)
    assert "tensors only, not a pickle that calls" in refused(path)
    assert not mark.exists()


@pytest.mark.parametrize("length", [0, 3, 1000, -100])
def test_a_file_that_was_cut_off_is_refused(length: int, path: Path) -> None:
    torch.save(ClipEncoder().make(SHAPE).state_dict(), path)
    path.write_bytes(path.read_bytes()[:length])
    assert re.search("torch.save|tensors only", refused(path))


def test_a_file_that_is_not_there_is_named(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"weights {path}: .*no such file"):
        ClipEncoder(pretrained=str(path)).make(SHAPE)
