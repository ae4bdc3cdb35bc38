"""Adapters of batched environments to Gymnasium, Stable-Baselines3 and rsl_rl.

Environments themselves are in the folders next to this one. Read `agent_rows.py` first, which all adapters share.
"""
