"""Functions in a faster form: as a CUDA graph, or compiled.

`machine.py` decides when a form is made, tested and given up, `graphs.py` captures, `functions.py` makes one graph of
any function of tensors. What is played stands in `training.collect`, what is learnt in `training.updates`.
"""
