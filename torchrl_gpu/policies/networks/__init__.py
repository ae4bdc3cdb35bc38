"""Networks of agents for observations that any task may have.

Here: vectors, and the embedding of quantile fractions. Networks of a task are with it, in `marine` and `packing`;
those of clips are in `encoders`. Read `vectors.py` first.
"""
