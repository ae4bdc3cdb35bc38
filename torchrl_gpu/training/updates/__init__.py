"""Updates of weights: clipping, CUDA graphs."""
