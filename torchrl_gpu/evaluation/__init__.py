"""Policies evaluated: episodes, tables, plans and pictures."""
