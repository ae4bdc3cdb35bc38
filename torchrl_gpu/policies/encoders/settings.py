"""`ClipEncoder`: plain settings of a clip encoder, for YAML files."""

from __future__ import annotations

import inspect
import logging
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from torchrl_gpu.policies.encoders.clips import ENCODERS, VideoEncoder
from torchrl_gpu.policies.weights import check_weights
from torchrl_gpu.system import arguments
from torchrl_gpu.system.archives import describe_refusal

_LOG = logging.getLogger(__name__)
# Defaults of options that some encoders lack.
_OF_SOME = {"size": "tiny", "patch": 8, "norm": "auto"}


@dataclass(frozen=True)
class ClipEncoder:
    """Settings of a clip encoder, which `make` builds for clips of a shape.

    Args:
        arch: Name of the encoder's class in lower case: "simple2dcnn", "simple3dcnn", "r3d18", "timesformer", or one
            that is registered.
        pretrained: False for random weights; True for published ones (`R3D18` after Kinetics-400, from torch's cache or
            the network); or the path of a file with the state dict of the whole encoder, as `torch.save` writes it. For
            `R3D18` that may also be torchvision's own file. Files are read with `weights_only`.
        num_features: Features of a clip.
        size: Size of `TimeSformer`; the others have one.
        patch: Sides of the patches of `TimeSformer`, pixels.
        norm: Normalisation of `R3D18`: "frozen" running statistics, "group" for GroupNorm; "auto" is frozen with
            pretrained weights, and group otherwise.
        checkpointing: Whether the backward pass computes activations again instead of keeping them.
    """

    arch: str = "simple2dcnn"
    pretrained: bool | str = False
    num_features: int = 64
    size: Literal["tiny", "small", "base"] = "tiny"
    patch: int = 8
    norm: Literal["auto", "frozen", "group"] = "auto"
    checkpointing: bool = False

    def __post_init__(self) -> None:
        arguments.choice("ClipEncoder", "arch", self.arch, ENCODERS)
        arguments.choice("ClipEncoder", "size", self.size, ("tiny", "small", "base"))
        arguments.choice("ClipEncoder", "norm", self.norm, ("auto", "frozen", "group"))
        arguments.whole("ClipEncoder", "num_features", self.num_features, 1)
        arguments.whole("ClipEncoder", "patch", self.patch, 1)
        arguments.flag("ClipEncoder", "checkpointing", self.checkpointing)
        for name, default in _OF_SOME.items():
            having = []
            for arch, encoder in ENCODERS.items():
                if name in inspect.signature(encoder).parameters:
                    having.append(arch)
            # A warning and no error: checkpoints of earlier runs hold such settings, and are to be opened.
            if self.arch not in having and getattr(self, name) != default:
                archs = " or ".join(having)
                _LOG.warning("ClipEncoder: %s does nothing without arch %s; got %r", name, archs, getattr(self, name))
        if not isinstance(self.pretrained, (bool, str)) or self.pretrained == "":
            arguments.refuse("ClipEncoder", "pretrained", "true, false or the path of a file", self.pretrained)
        published = [name for name, encoder in ENCODERS.items() if encoder.published_weights is not None]
        if self.pretrained is True and self.arch not in published:
            raise ValueError(
                f"ClipEncoder: pretrained true needs published weights, which only {', '.join(published)} has: give"
                f" false or the path of a file for {self.arch}"
            )

    def make(self, clip_shape: Sequence[int]) -> VideoEncoder:
        """Make the encoder for clips (T, 3, H, W), on the CPU.

        Raises:
            ValueError: Clips of this shape are too small for it or cannot be cut into its patches, a file holds other
                weights, or published ones are neither in torch's cache nor to be had from the network.
            FileNotFoundError: There is no such file.
        """
        cls = ENCODERS[self.arch]
        norm = self.norm
        if norm == "auto":
            norm = "frozen" if self.pretrained else "group"
        options = {"size": self.size, "patch": self.patch, "norm": norm}
        known = inspect.signature(cls).parameters
        taken = {name: value for name, value in options.items() if name in known}
        encoder = cls(clip_shape, self.num_features, checkpointing=self.checkpointing, **taken)
        if isinstance(self.pretrained, str):
            where = f"weights {self.pretrained}"
            path = Path(self.pretrained).expanduser()
            state = read_weights(path)
        elif self.pretrained and cls.published_weights is not None:
            where = f"published weights of {self.arch}"
            state = cls.published_weights()
        else:
            return encoder
        # Files of torchvision have other names, which the encoder knows.
        adapted = encoder.adapted(state)
        check_weights(where, adapted, encoder)
        encoder.load_state_dict(adapted)
        return encoder


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the dict that `torch.save` wrote, on the CPU.

    The older format, of torchvision's files, is read too. ValueError if the file holds code or something else.
    """
    where = f"weights {path}"
    if not path.is_file():
        raise FileNotFoundError(f"{where}: no such file")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{where} must hold tensors only, not {describe_refusal(error)}") from error
    except (RuntimeError, EOFError, KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
        first_line = str(error).strip().splitlines()[:1]
        reason = " ".join([f"{type(error).__name__}:", *first_line])
        raise ValueError(f"{where} is not a complete file as torch.save writes it: {reason}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{where} must hold a state dict, not a {type(found).__name__}")
    return dict(found)
