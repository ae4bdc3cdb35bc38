"""Subcommands that pack: orders onto pallets, this machine's throughput, published protocols.

Not here: the work itself (`palletizing`, `evaluation.packing`). Imports nothing heavy.
"""
