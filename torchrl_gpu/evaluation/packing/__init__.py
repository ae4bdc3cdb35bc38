"""Evaluation of bin packing."""

from torchrl_gpu.evaluation.packing.episodes import evaluate

__all__ = ["evaluate"]
