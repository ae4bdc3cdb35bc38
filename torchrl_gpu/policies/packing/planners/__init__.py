"""Look-ahead planners: expectimax over the next item, or beam search.

Values of bins come from `policies.packing.ntuple`; nothing here is trained but the next-item network. Read
`afterstates.py` first (bins after placements), then `beam_search.py`.
"""
