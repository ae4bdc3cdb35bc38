"""Planners that look ahead: one item by expectation, or a known stream by a beam.

Values come from `policies.packing.ntuple`.
"""
