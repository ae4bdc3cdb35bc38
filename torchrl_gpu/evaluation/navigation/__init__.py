"""Evaluation of marine navigation."""
