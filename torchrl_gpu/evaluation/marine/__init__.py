"""Evaluation of marine navigation."""

from torchrl_gpu.evaluation.marine.episodes import evaluate

__all__ = ["evaluate"]
