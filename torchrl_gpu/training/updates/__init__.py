"""Updates of weights: clipping, compiled losses, CUDA graphs of updates.

Not here: losses, which agents have (`policies.losses`). Read `optimizers` first, then `graphed`.
"""
