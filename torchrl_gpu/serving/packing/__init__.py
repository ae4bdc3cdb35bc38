"""What packing adds to a policy server.

These are a picture of the chosen placement, and sessions of a pallet. Not here are the sessions themselves
(`palletizing.sessions`) and how a bin is drawn (`envs.packing.render`). Read `pallets.py` first.
"""
