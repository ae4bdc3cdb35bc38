"""Packing kernels in Triton, the default on CUDA.

`kernels` is the entry point, with the functions of every backend; `reference` defines their results.
"""
