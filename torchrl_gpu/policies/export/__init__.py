"""Policies as ONNX files and torch programs, with a manifest of their inputs and outputs.

Serving is in `serving`, loading in `policies.loading`.
"""
