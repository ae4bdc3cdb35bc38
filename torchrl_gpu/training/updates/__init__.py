"""Updates of weights: clipping, CUDA graphs of one and of all from a rollout."""
