"""Look-ahead planners: expectimax over the next item, or beam search over a known stream.

Values come from `policies.packing.ntuple`.
"""
