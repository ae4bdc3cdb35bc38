"""Subcommands that pack: orders, throughput, published protocols.

Not here: the work itself (`palletizing`, `evaluation.packing`). Imports nothing heavy.
"""
