"""What a policy server shows and answers of packing: the chosen placement, and sessions of a pallet.

Not here: the sessions themselves (`palletizing.sessions`).
"""
