"""Evaluation of marine navigation."""

from torchrl_gpu.evaluation.navigation.episodes import evaluate

__all__ = ["evaluate"]
