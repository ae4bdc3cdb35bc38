"""`ClipEncoder`: plain settings of a clip encoder, for YAML files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchrl_gpu.policies.encoders.clips import VideoEncoder
from torchrl_gpu.policies.encoders.r3d import R3D18
from torchrl_gpu.policies.encoders.simple import Simple2DCNN, Simple3DCNN
from torchrl_gpu.policies.encoders.timesformer import SIZES, TimeSformer
from torchrl_gpu.policies.encoders.weights import kinetics_weights, read_weights
from torchrl_gpu.policies.weights import check_weights
from torchrl_gpu.system import arguments

ARCHITECTURES = ("simple2dcnn", "simple3dcnn", "r3d18", "timesformer")
NORMS = ("auto", "frozen", "group")


@dataclass(frozen=True)
class ClipEncoder:
    """Settings of a clip encoder; `make` builds it for clips of a shape.

    Args:
        arch: Which: `Simple2DCNN`, `Simple3DCNN`, `R3D18` or `TimeSformer`.
        pretrained: False for random weights; True for those of `R3D18` after Kinetics-400, from torch's cache or the
            network; or the path of a file with the state dict of the whole encoder, as `torch.save` writes it. For
            `R3D18` that may also be torchvision's own file. Files are read with `weights_only`.
        num_features: Features of a clip.
        size: Of `TimeSformer`; the others have one.
        patch: Sides of the patches of `TimeSformer`, pixels.
        norm: Of `R3D18`: "frozen" running statistics, "group" for GroupNorm; "auto" is frozen with weights that were
            trained before, and group otherwise.
        checkpointing: Whether the backward pass computes activations again instead of keeping them.
    """

    arch: Literal["simple2dcnn", "simple3dcnn", "r3d18", "timesformer"] = "simple2dcnn"
    pretrained: bool | str = False
    num_features: int = 64
    size: Literal["tiny", "small", "base"] = "tiny"
    patch: int = 8
    norm: Literal["auto", "frozen", "group"] = "auto"
    checkpointing: bool = False

    def __post_init__(self) -> None:
        arguments.choice("ClipEncoder", "arch", self.arch, ARCHITECTURES)
        arguments.choice("ClipEncoder", "size", self.size, SIZES)
        arguments.choice("ClipEncoder", "norm", self.norm, NORMS)
        arguments.whole("ClipEncoder", "num_features", self.num_features, 1)
        arguments.whole("ClipEncoder", "patch", self.patch, 1)
        arguments.flag("ClipEncoder", "checkpointing", self.checkpointing)
        if not isinstance(self.pretrained, (bool, str)) or self.pretrained == "":
            arguments.refuse("ClipEncoder", "pretrained", "true, false or the path of a file", self.pretrained)
        if self.pretrained is True and self.arch != "r3d18":
            raise ValueError(
                "ClipEncoder: pretrained must be false or the path of a file, since only r3d18 has published weights;"
                f" got true for {self.arch}"
            )

    def make(self, clip_shape: Sequence[int]) -> VideoEncoder:
        """The encoder for clips (T, 3, H, W), on the CPU.

        Raises:
            ValueError: Clips of this shape are too small for it or cannot be cut into its patches, a file holds other
                weights, or published ones are neither in torch's cache nor to be had from the network.
            FileNotFoundError: There is no such file.
        """
        encoder = self._without_weights(clip_shape)
        if self.pretrained is False:
            return encoder
        where = "Kinetics weights" if self.pretrained is True else f"weights {self.pretrained}"
        state = kinetics_weights() if self.pretrained is True else read_weights(Path(self.pretrained).expanduser())
        if isinstance(encoder, R3D18) and "fc.weight" in state:
            state = encoder.adapted(state)
        check_weights(where, state, encoder)
        encoder.load_state_dict(state)
        return encoder

    def _without_weights(self, clip_shape: Sequence[int]) -> VideoEncoder:
        features, checkpointing = self.num_features, self.checkpointing
        if self.arch == "simple2dcnn":
            return Simple2DCNN(clip_shape, features, checkpointing=checkpointing)
        if self.arch == "simple3dcnn":
            return Simple3DCNN(clip_shape, features, checkpointing=checkpointing)
        if self.arch == "timesformer":
            return TimeSformer(clip_shape, features, size=self.size, patch=self.patch, checkpointing=checkpointing)
        norm = self.norm
        if norm == "auto":
            norm = "frozen" if self.pretrained else "group"
        return R3D18(clip_shape, features, norm=norm, checkpointing=checkpointing)
