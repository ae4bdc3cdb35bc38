"""Adapters of batched environments to Gymnasium, Stable-Baselines3 and rsl_rl."""
